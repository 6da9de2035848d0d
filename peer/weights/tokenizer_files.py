"""Tokenizer files of a model's folder: one check for all commands, facts for a manifest, copies, and the files of an export.

An export's files follow from the manifest and the run's tokenizer.json alone, so they are the same at every peer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.outside_files import read_outside
from peer.errors import ExitCode, PeerError, told_as
from protocol.formatting import size
from protocol.run.manifest import RunManifest
from trainer.data.templates import TEMPLATES, chat_template
from trainer.data.tokenizer_json import MESSAGE_END, QWEN2, TURN_END, Mark
from trainer.data.tokens import MAX_TOKENIZER_BYTES, TokenizerFile, TokenNames, checked_file, names_in
from trainer.git_lfs import POINTER_FLAW, is_pointer_file
from trainer.models.llama.huggingface import ends_in
from trainer.weights.folder import json_in
from trainer.weights.safetensors_file import FolderError

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that transformers reads beside config.json and the weights; the last one names the token that ends a text."""
ESSENTIAL = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Names of files; a tokenizer needs at least one of them."""
PLAIN_CLASS = "PreTrainedTokenizerFast"
"""Class of transformers that reads a tokenizer.json as it is, whatever the family of the model."""
REPLACED, QWEN2_END = ("Qwen2",), "<|endoftext|>"
"""Families of models for which transformers uses its own class, and a token that this class adds if it is missing."""
LOADING = (
    "AutoTokenizer of transformers splits texts for a Qwen2 model as Qwen2's tokenizer does, and so into other tokens than "
    f"the run; load the tokenizer with {PLAIN_CLASS}.from_pretrained"
)
UNREAD = (*ESSENTIAL[1:], "*.tiktoken", "*.spm", "*.sp.model")
"""File names of tokenizers in formats that cannot be read."""


def check_readable(folder: Path) -> None:
    """Raise `PeerError` if the folder's tokenizer is not a tokenizer.json, because the run would then read bytes."""
    unread = sorted({path.name for pattern in UNREAD for path in folder.glob(pattern) if path.is_file()})
    if unread and not os.path.lexists(folder / "tokenizer.json"):
        raise PeerError(
            f"{folder} has no tokenizer.json, and its tokenizer ({', '.join(unread)}) is in an unsupported format; "
            f'convert it with transformers: AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}"), or name '
            'another one in the run file: [tokenizer] from = "tokenizer.json"',
            ExitCode.INPUT,
        )


def write_tokenizer(manifest: RunManifest, source: Path, target: Path) -> str:
    """Write the tokenizer of a run into a folder, so that transformers splits texts into the same tokens as trainers.

    source: the run's tokenizer.json.  The file loses what trainers do not use (`trainer.data.tokenizer_json`), and
    tokenizer_config.json names the class that uses it unchanged, because the class of a model's family replaces parts of
    other tokenizers.  Returns a remark as `loading_remark` does.  Raises `PeerError`.
    """
    section, data = manifest.tokenizer, _checked(manifest, source)
    assert section is not None, "a run whose model reads bytes has no tokenizer"
    names = {token["id"]: token["content"] for token in json.loads(data)["added_tokens"]}
    described: dict[str, Any] = {"tokenizer_class": PLAIN_CLASS, "clean_up_tokenization_spaces": False}
    if (end := names.get(section.ends[0])) is not None:
        described["eos_token"] = end
        if converses(manifest):
            described["chat_template"] = chat_template(section.template, end)
    _write(target / "tokenizer.json", data, source)
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    _write(target / "tokenizer_config.json", text.encode(), source)
    return "" if _survives(manifest, data) else LOADING


def loading_remark(manifest: RunManifest, source: Path) -> str:
    """Return a sentence for people if transformers' AutoTokenizer reads exports of a run with other tokens; else "".

    source: the run's tokenizer.json.  Raises `PeerError`.
    """
    if manifest.model.family not in REPLACED:
        return ""
    return "" if _survives(manifest, _checked(manifest, source)) else LOADING


def _checked(manifest: RunManifest, source: Path) -> bytes:
    """Return the run's tokenizer.json as trainers read it."""
    assert manifest.tokenizer is not None, "a run whose model reads bytes has no tokenizer"
    with told_as(ExitCode.INPUT, ValueError):
        return checked_file(source, manifest.tokenizer.ends)


def _survives(manifest: RunManifest, data: bytes) -> bool:
    """Return True if transformers' AutoTokenizer keeps the tokens of a checked tokenizer.json.

    For a Qwen2 model, AutoTokenizer always uses the class Qwen2Tokenizer (transformers 5), which keeps vocabulary and
    merges, and replaces all other parts by Qwen2's.
    """
    if manifest.model.family not in REPLACED:
        return True
    said = json.loads(data)
    model, parts = said["model"], (said["normalizer"], said["pre_tokenizer"])
    match parts:
        case (
            {"type": "NFC"},
            {
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": str(expression)}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                ]
            },
        ) if expression == QWEN2:
            pass
        case _:
            return False
    switches = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk", "ignore_merges")
    if "merges" not in model or any(model.get(name) for name in switches):
        return False
    return QWEN2_END in {*model["vocab"], *(token["content"] for token in said["added_tokens"])}


def converses(manifest: RunManifest) -> bool:
    """Return True if the model of a run with a tokenizer has learned to converse."""
    assert manifest.tokenizer is not None, "a run whose model reads bytes has no template"
    template, learns = manifest.tokenizer.template, manifest.data.format != "text" or manifest.rl is not None
    return template in TURN_ENDS or (template == "plain" and learns)


def take_tokenizer(source: Path, target: Path) -> bool:
    """Copy the tokenizer files from one Hugging Face folder to another; return True if the files include a tokenizer."""
    for name in _present(source):
        _write(target / name, _content(source / name), source / name)
    return any((source / name).is_file() for name in ESSENTIAL)


def take_config(source: Path, target: Path) -> None:
    """Copy the config.json, which may tell transformers the class of the tokenizer."""
    path = source / "config.json"
    _write(target / path.name, _content(path), path)


def is_plain(folder: Path) -> bool:
    """Return True if a folder names the class that reads its tokenizer.json unchanged; config.json does not matter."""
    return _json(folder / "tokenizer_config.json").get("tokenizer_class") == PLAIN_CLASS


def check_files(folder: Path) -> None:
    """Raise `PeerError` for a file that `take_tokenizer` would refuse."""
    for name in _present(folder):
        _content(folder / name)


def _present(folder: Path) -> list[str]:
    return [name for name in NAMES if os.path.lexists(folder / name)]


def _write(target: Path, data: bytes, source: Path) -> None:
    free = shutil.disk_usage(target.parent).free
    if len(data) > free:
        raise PeerError(
            f"{source} takes {size(len(data))}, and the disk has {size(free)} free; make room, or name a folder on another "
            "disk",
            ExitCode.RESOURCES,
        )
    with target.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _content(path: Path) -> bytes:
    try:
        return read_outside(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise PeerError(f"{path}: {error.strerror}; put the file into the folder, or remove it", ExitCode.INPUT) from error


# ------------------------------------------------------------------------------------------------------------------------
# Tokenizer of a model's folder, and the facts about it in the files beside it.


TURN_ENDS = {"chatml": TURN_END, "llama3": MESSAGE_END}
MOST_ENDS = 8


def tokenizer_facts(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template and the end tokens for the tokenizer in `path`.  said: the values in the run file, used unchanged.

    The template is the first one whose marks the tokenizer has.  The end tokens are the template's end of a turn, and the
    end tokens that the folder names.  Raises `PeerError`.
    """
    names = _names(path)
    facts = {name: value for name, value in said.items() if name != "from"}
    template = facts.setdefault("template", template_of(names.special))
    if "ends" not in facts:
        facts["ends"] = text_ends(path.parent, template, names)
    if facts["ends"] == []:
        raise PeerError(
            f"no file beside {path} says which token ends a text; add ends = [NUMBER] to [tokenizer] in the run file",
            ExitCode.INPUT,
        )
    return facts


def text_ends(folder: Path, template: str, names: TokenNames) -> list[int]:
    """Return the template's end of a turn, then the end tokens that a folder names; none if there are none.

    The end tokens are added tokens.  If the folder names none of these, a token of the model's own vocabulary ends a text if
    tokenizer_config.json or generation_config.json names it; config.json alone may have its family's default there.
    """
    named = [TURN_ENDS[template]] if template in TURN_ENDS else []
    ends = [names.special[name] for name in named if name in names.special]
    added, known = set(names.special.values()), set(names.all.values())
    ends += [end for end in _ends(folder, names, ENDING_FILES) if end in added]
    ends = ends or [end for end in _ends(folder, names, ENDING_FILES[:1]) if end in known]
    return list(dict.fromkeys(ends))[:MOST_ENDS]


def template_of(special: Mapping[str, int]) -> str:
    """Return the first template with marks whose marks are all in `special`; "plain" if there is none."""
    for name, template in TEMPLATES.items():
        marks = {piece for piece in (*template.begin, *template.heading, *template.close) if isinstance(piece, Mark)}
        if marks and marks <= special.keys():
            return name
    return "plain"


ENDING_FILES = ("generation_config.json", "config.json")
"""Files that name end tokens by their numbers, the most specific one first."""


def _ends(folder: Path, names: TokenNames, files: Sequence[str]) -> Iterator[int]:
    """Yield the end tokens that the folder names, by their numbers in `files`, and then by the text of a token."""
    for name in files:
        yield from ends_in(_json(folder / name))
    text = _json(folder / "tokenizer_config.json").get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    if isinstance(text, str) and text in names.all:
        yield names.all[text]


def _json(path: Path) -> Mapping[str, Any]:
    """Return the object in a file; empty if the file is missing or has none.  Raises `PeerError` for a Git LFS pointer."""
    if is_pointer_file(path):
        raise PeerError(f"{path} {POINTER_FLAW}", ExitCode.INPUT)
    with suppress(FolderError):
        return json_in(path, "copy it again")
    return {}


@dataclass(frozen=True)
class FolderTokenizer:
    """Tokenizer of a model's folder.

    template: the template to which its marks belong.  special: its added tokens, by name.
    """

    file: TokenizerFile
    template: str
    special: Mapping[str, int]


def folder_tokenizer(folder: Path, vocab: int) -> FolderTokenizer | None:
    """Return the tokenizer of a model of `vocab` tokens; None if its folder has none.

    Every command that takes a model's folder begins with this check.  Raises `PeerError` for a tokenizer that no run can
    use.
    """
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        check_readable(folder)
        return None
    names = _names(path)
    template = template_of(names.special)
    ends = text_ends(folder, template, names)
    if not ends:
        raise PeerError(
            f'no file in {folder} says which token ends a text; add "eos_token_id": NUMBER to its generation_config.json',
            ExitCode.INPUT,
        )
    return FolderTokenizer(tokenizer_file(path, ends, vocab), template, names.special)


def tokenizer_file(path: Path, ends: list[int], vocab: int) -> TokenizerFile:
    """Return the tokenizer in a file, for a model of `vocab` tokens.  Raises `PeerError`."""
    with told_as(ExitCode.INPUT, ValueError):
        tokenizer = TokenizerFile(path, ends)
    if tokenizer.vocab > vocab:
        raise PeerError(
            f"{path} has {tokenizer.vocab} tokens, more than the model ({vocab}); copy the tokenizer and the "
            "model from one place",
            ExitCode.INPUT,
        )
    return tokenizer


def _names(path: Path) -> TokenNames:
    with told_as(ExitCode.INPUT, ValueError):
        return names_in(path)
