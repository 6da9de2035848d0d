"""Tokenizer files of a model's folder: one check for all commands, facts for a manifest, and copies.

A run's folder keeps the files of the folder with which the run began, for exports.  Only the organiser's data directory has
all of them.  Other peers have the run's tokenizer.json, fetched from its peers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.outside_files import read_outside
from peer.errors import ExitCode, PeerError
from peer.formatting import size
from peer.paths import make_private
from trainer.data.templates import TEMPLATES
from trainer.data.tokenizer_json import MESSAGE_END, TURN_END, Mark
from trainer.data.tokens import MAX_TOKENIZER_BYTES, TokenizerFile, special_in
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
UNREAD = (*ESSENTIAL[1:], "*.tiktoken", "*.spm", "*.sp.model")
"""File names of tokenizers in formats that cannot be read."""


def check_readable(folder: Path) -> None:
    """Raise `PeerError` if the folder's tokenizer is not a tokenizer.json, because the run would then read bytes."""
    if not os.path.lexists(folder / "tokenizer.json") and (unread := _unread_in(folder)):
        raise PeerError(
            f"{folder} has no tokenizer.json, and its tokenizer ({', '.join(unread)}) is in a format that cannot be read; "
            f'convert it with transformers: AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}"), or name '
            'another one in the run file: [tokenizer] from = "tokenizer.json"',
            ExitCode.INPUT,
        )


def keep_tokenizer(source: Path, run_folder: Path) -> None:
    """Copy the tokenizer files of a Hugging Face folder, if it has any, into a run's folder."""
    if _is_tokenizer(source):
        _copy(source, make_private(run_folder / "tokenizer"))


def copy_tokenizer(run_folder: Path, target: Path, fetched: Path | None) -> bool:
    """Copy the files kept by `keep_tokenizer`, else the fetched tokenizer.json, to `target`; False without any files."""
    kept = run_folder / "tokenizer"
    if _is_tokenizer(kept):
        _copy(kept, target)
        return True
    if fetched is None or not fetched.is_file():
        return False
    _copy_file(fetched, target / "tokenizer.json")
    return True


def take_tokenizer(source: Path, target: Path) -> bool:
    """Copy the tokenizer files from one Hugging Face folder to another; return True if the files include a tokenizer."""
    _copy(source, target)
    return _is_tokenizer(source)


def take_config(source: Path, target: Path) -> None:
    """Copy the config.json, which may tell transformers the class of the tokenizer."""
    _copy_file(source / "config.json", target / "config.json")


def generation_in(folder: Path) -> dict[str, Any]:
    """Return the generation_config.json in a folder; empty if the file is missing or unreadable."""
    try:
        return json_in(folder / "generation_config.json", "copy it again")
    except FolderError:
        return {}


def _unread_in(folder: Path) -> list[str]:
    return sorted({path.name for pattern in UNREAD for path in folder.glob(pattern) if path.is_file()})


def _is_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ESSENTIAL)


def check_files(folder: Path) -> None:
    """Raise `PeerError` for a file that `keep_tokenizer` and `take_tokenizer` would refuse."""
    for name in _present(folder):
        _content(folder / name)


def _present(folder: Path) -> list[str]:
    return [name for name in NAMES if os.path.lexists(folder / name)]


def _copy(source: Path, target: Path) -> None:
    for name in _present(source):
        _copy_file(source / name, target / name)


def _copy_file(source: Path, target: Path) -> None:
    data = _content(source)
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
        raise PeerError(
            f"{path}: {error.strerror}; put the file itself into its folder, or remove it", ExitCode.INPUT
        ) from error


# ------------------------------------------------------------------------------------------------------------------------
# Tokenizer of a model's folder, and the facts about it that stand in the files beside it.


TURN_ENDS = {"chatml": TURN_END, "llama3": MESSAGE_END}
MOST_ENDS = 8


def tokenizer_facts(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template and the end tokens for the tokenizer in `path`.  said: the run file's values, used unchanged.

    The template is the first one whose marks the tokenizer has.  The end tokens are the template's end of a turn, and the
    end tokens that the folder names.  Raises `PeerError`.
    """
    special = _special(path)
    facts = {name: value for name, value in said.items() if name != "from"}
    template = facts.setdefault("template", template_of(special))
    if "ends" not in facts:
        facts["ends"] = text_ends(path.parent, template, special)
    if facts["ends"] == []:
        raise PeerError(
            f"nothing beside {path} says which token ends a text; add ends = [NUMBER] to [tokenizer] in the run file",
            ExitCode.INPUT,
        )
    return facts


def text_ends(folder: Path, template: str, special: Mapping[str, int]) -> list[int]:
    """Return the template's end of a turn, then the end tokens that a folder names; none if there are none."""
    named = [TURN_ENDS[template]] if template in TURN_ENDS else []
    ends = [special[name] for name in named if name in special]
    numbers = set(special.values())
    ends += [end for end in _ends(folder, special) if end in numbers]
    return list(dict.fromkeys(ends))[:MOST_ENDS]


def template_of(special: Mapping[str, int]) -> str:
    """Return the first template with marks whose marks are all in `special`; "plain" if there is none."""
    for name, template in TEMPLATES.items():
        marks = {piece for piece in (*template.begin, *template.heading, *template.close) if isinstance(piece, Mark)}
        if marks and marks <= special.keys():
            return name
    return "plain"


def _ends(folder: Path, special: Mapping[str, int]) -> Iterator[int]:
    """Yield the end tokens that the folder names, the most specific file first."""
    for name in ("generation_config.json", "config.json"):
        yield from ends_in(_json(folder / name))
    text = _json(folder / "tokenizer_config.json").get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    if isinstance(text, str) and text in special:
        yield special[text]


def _json(path: Path) -> Mapping[str, Any]:
    """Return the object in a file; empty if the file is missing or has none.  Raises `PeerError` for a Git LFS pointer."""
    if is_pointer_file(path):
        raise PeerError(f"{path} {POINTER_FLAW}", ExitCode.INPUT)
    with suppress(FolderError):
        return json_in(path, "copy it again")
    return {}


@dataclass(frozen=True)
class FolderTokenizer:
    """Tokenizer of a model's folder.  template: the one that its marks are of.  special: its added tokens, by name."""

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
    special = _special(path)
    template = template_of(special)
    ends = text_ends(folder, template, special)
    if not ends:
        raise PeerError(
            f'nothing in {folder} says which token ends a text; add "eos_token_id": NUMBER to its generation_config.json',
            ExitCode.INPUT,
        )
    return FolderTokenizer(tokenizer_file(path, ends, vocab), template, special)


def tokenizer_file(path: Path, ends: list[int], vocab: int) -> TokenizerFile:
    """Return the tokenizer in a file, for a model of `vocab` tokens.  Raises `PeerError`."""
    try:
        tokenizer = TokenizerFile(path, ends)
    except ValueError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
    if tokenizer.vocab > vocab:
        raise PeerError(
            f"{path} has {tokenizer.vocab} tokens, more than the model ({vocab}); copy both from one place", ExitCode.INPUT
        )
    return tokenizer


def _special(path: Path) -> Mapping[str, int]:
    try:
        return special_in(path)
    except ValueError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
