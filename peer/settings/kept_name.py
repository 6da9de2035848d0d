"""The name that a person gave with --name, kept in the data directory: the next `peer join` there needs it no more.

It counts where neither the command line nor the environment nor peer.toml says another one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peer.files.atomic import write_atomically
from peer.settings.file import DEFAULT, Effective, Gathered
from peer.settings.preferences import SETTINGS
from peer.settings.values import read_name

FILE_NAME = "name"
MAX_FILE_BYTES = 1024
KEPT = "kept from --name"
"""The source of a name that was given at an earlier start."""


def with_kept_name(gathered: Gathered, folder: Path) -> Gathered:
    """The settings with the kept name, where nothing else says one.  Blocking."""
    name = _kept(folder)
    if gathered.settings["name"].source != DEFAULT or not name:
        return gathered
    return replace(gathered, settings={**gathered.settings, "name": Effective(name, KEPT)})


def keep_name(gathered: Gathered, folder: Path) -> None:
    """Keep the name that the command line says, if it says one; an empty one is forgotten.  Blocking.  Raises OSError."""
    effective = gathered.settings["name"]
    if effective.source != SETTINGS["name"].flag:
        return
    if effective.value:
        write_atomically(folder / FILE_NAME, effective.value.encode())
    else:
        (folder / FILE_NAME).unlink(missing_ok=True)


def _kept(folder: Path) -> str:
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return read_name(file.read(MAX_FILE_BYTES).decode())
    except (OSError, ValueError):
        return ""
