"""Runs whose manifests this data directory keeps, as a person wants to see them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.control.client import ControlClient, ControlError
from peer.errors import PeerError
from peer.joining.run_source import read_manifest


@dataclass(frozen=True)
class KnownRun:
    """A stored run.  rounds: records on disk.  disk_bytes: of all its files.  last: time of its latest change, unix
    seconds.  problem: why its manifest cannot be read; empty if it can."""

    run: str
    name: str
    rounds: int
    disk_bytes: int
    last: float
    running: bool
    problem: str = ""


def known_runs(data: Path) -> list[KnownRun]:
    """Return the stored runs: the running one first, then by the time of the last change.  Blocking; changes nothing."""
    running = ""
    with suppress(ControlError):
        running = ControlClient(data).status().run
    found = [_known(path, running) for path in data.glob("runs/*/manifest")]
    return sorted(found, key=lambda each: (each.running, each.last), reverse=True)


def _known(manifest: Path, running: str) -> KnownRun:
    folder, name, problem = manifest.parent, "", ""
    try:
        name = read_manifest(manifest).manifest.name
    except (PeerError, OSError) as error:
        problem = str(error)
    stats = [stat for path in _files_in(folder) if (stat := _stat_of(path)) is not None]
    last = max((stat.st_mtime for stat in stats), default=0.0)
    records = folder / "records"
    rounds = sum(path.name.isdigit() for path in _files_in(records))
    return KnownRun(folder.name, name, rounds, sum(stat.st_size for stat in stats), last, folder.name == running, problem)


def _files_in(folder: Path) -> list[Path]:
    """Return all files below `folder`; some may be missing if a peer removes files meanwhile."""
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names]


def _stat_of(path: Path) -> os.stat_result | None:
    """Return a file's status; None if it is no file or has just gone, because a peer may be running."""
    try:
        return path.stat() if path.is_file() else None
    except OSError:
        return None
