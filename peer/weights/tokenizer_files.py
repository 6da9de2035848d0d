"""The tokenizer files of the folder that a run began with, kept in the run's folder for what is exported from it.

Only the organiser's data directory has all of them.  Other peers have the run's tokenizer.json, fetched from its peers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from peer.paths import make_private

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
"""What transformers reads beside config.json and the weights; the last one says which token ends a text."""
ESSENTIAL = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of these there is no tokenizer."""


def keep_tokenizer(source: Path, run_folder: Path) -> None:
    """Copy the tokenizer files of a Hugging Face folder, if it has any, into a run's folder."""
    if _is_tokenizer(source):
        _copy(source, make_private(run_folder / "tokenizer"))


def copy_tokenizer(run_folder: Path, target: Path, fetched: Path | None) -> bool:
    """Copy what `keep_tokenizer` kept to `target`, else the tokenizer.json that this peer fetched; whether there was any."""
    kept = run_folder / "tokenizer"
    if _is_tokenizer(kept):
        _copy(kept, target)
        return True
    if fetched is None or not fetched.is_file():
        return False
    _copy_file(fetched, target / "tokenizer.json")
    return True


def take_tokenizer(source: Path, target: Path) -> bool:
    """Copy these files from one Hugging Face folder to another; whether there is a tokenizer among them."""
    _copy(source, target)
    return _is_tokenizer(source)


def _is_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ESSENTIAL)


def _copy(source: Path, target: Path) -> None:
    for name in NAMES:
        if (source / name).is_file():
            _copy_file(source / name, target / name)


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
