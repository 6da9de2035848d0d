"""What a manifest says of a tokenizer, read from the files that a model's folder has beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from peer.errors import ExitCode, PeerError
from trainer.data.marks import MESSAGE_END, TURN_END, Mark
from trainer.data.templates import TEMPLATES
from trainer.data.tokens import special_in
from trainer.git_lfs import POINTER_FLAW, is_pointer_file
from trainer.models.llama.huggingface import ends_in
from trainer.weights.errors import FolderError
from trainer.weights.reading import json_in

TURN_ENDS = {"chatml": TURN_END, "llama3": MESSAGE_END}
MOST_ENDS = 8


def tokenizer_facts(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """template and ends for the tokenizer in `path`.  said: what a person says of them, which is taken as it is.

    The template is the one whose marks the tokenizer has; the end tokens are the one that the template ends turns with, and
    those that the folder names.  Raises `PeerError`.
    """
    try:
        special = special_in(path)
    except ValueError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
    facts = {name: value for name, value in said.items() if name != "from"}
    template = facts.setdefault("template", _template(special))
    if "ends" not in facts:
        named = [TURN_ENDS[template]] if template in TURN_ENDS else []
        ends = [special[name] for name in named if name in special]
        ends += [end for end in _ends(path.parent, special) if end in special.values()]
        facts["ends"] = list(dict.fromkeys(ends))[:MOST_ENDS]
    if facts["ends"] == []:
        raise PeerError(
            f"nothing beside {path} says which token ends a text; add ends = [NUMBER] to [tokenizer] in the run file",
            ExitCode.INPUT,
        )
    return facts


def _template(special: Mapping[str, int]) -> str:
    """The first one that needs marks and has them all; "plain" where none does."""
    for name, template in TEMPLATES.items():
        marks = {piece for piece in (*template.begin, *template.heading, *template.close) if isinstance(piece, Mark)}
        if marks and marks <= special.keys():
            return name
    return "plain"


def _ends(folder: Path, special: Mapping[str, int]) -> Iterator[int]:
    """The end tokens that the folder names, the most particular file first."""
    for name in ("generation_config.json", "config.json"):
        yield from ends_in(_json(folder / name))
    text = _json(folder / "tokenizer_config.json").get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    if isinstance(text, str) and text in special:
        yield special[text]


def _json(path: Path) -> Mapping[str, Any]:
    """An object in a file; empty for a file that is not there or none.  Raises `PeerError` for a pointer of Git LFS."""
    if is_pointer_file(path):
        raise PeerError(f"{path} {POINTER_FLAW}", ExitCode.INPUT)
    with suppress(FolderError):
        return json_in(path, "copy it again")
    return {}
