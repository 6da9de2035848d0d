"""Tokenizer files of the folder with which a run began, kept in the run's folder for exports.

Only the organiser's data directory has all these files.  Other peers have the run's tokenizer.json, fetched from its peers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.paths import make_private
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
    if not (folder / "tokenizer.json").exists() and (unread := _unread_in(folder)):
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


def _copy(source: Path, target: Path) -> None:
    for name in NAMES:
        if (source / name).is_file():
            _copy_file(source / name, target / name)


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
