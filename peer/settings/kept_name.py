"""Name that a person gave with --name, kept in the data directory, so that the next `peer join` there does not need it.

It counts only if neither the command line nor the environment nor peer.toml gives another one.
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
"""Source of a name that was given at an earlier start."""


def with_kept_name(gathered: Gathered, folder: Path) -> Gathered:
    """Return the settings with the kept name, if nothing else gives one.  Blocking."""
    name = _kept(folder)
    if gathered.settings["name"].source != DEFAULT or not name:
        return gathered
    return replace(gathered, settings={**gathered.settings, "name": Effective(name, KEPT)})


def keep_name(gathered: Gathered, folder: Path) -> None:
    """Store the command line's name, if any; an empty name removes the stored one.  Blocking.  Raises OSError."""
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
