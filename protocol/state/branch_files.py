"""Records of branches that are not our chain, on disk beside it: on their way to us, or given up and kept for a while."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.state.disk import Disk
from protocol.state.guarded import read_guarded, set_aside, write_guarded
from protocol.state.records import MAX_RECORD_BYTES
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.messages import Commit

_NAME = re.compile(r"([0-9A-Za-z]+)-(\d{8})")


class BranchFiles:
    """One file a record; the records of one branch are in one slot, a word.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def append(self, slot: str, commit: Commit) -> int:
        """Write a record; returns how many bytes it takes.  Raises `StoreFailed`."""
        raw = commit.encode()
        write_guarded(self._disk, self.path(slot, commit.record.round), raw)
        return len(raw)

    def at(self, slot: str, round: int) -> Commit | None:
        """The record of a round; None when it is not here, or not readable."""
        raw = read_guarded(self._disk, self.path(slot, round))
        if raw is None:
            return None
        try:
            return decode_body(Commit, raw, max_bytes=MAX_RECORD_BYTES)
        except Malformed:
            set_aside(self._disk, self.path(slot, round))
            return None

    def slots(self) -> dict[str, list[int]]:
        """The rounds of which each slot has a record, ascending."""
        found: dict[str, list[int]] = {}
        for path in sorted(self._folder.iterdir()):
            named = _NAME.fullmatch(path.name)
            if named:
                found.setdefault(named[1], []).append(int(named[2]))
        return found

    def size_bytes(self, slot: str) -> int:
        """Of all its files."""
        return sum(path.stat().st_size for path in self._folder.glob(f"{slot}-*"))

    def drop(self, slot: str) -> None:
        """Remove the records of a slot."""
        for path in sorted(self._folder.glob(f"{slot}-*"), reverse=True):
            self._disk.remove(path)

    def path(self, slot: str, round: int) -> Path:
        """Where a record lies."""
        return self._folder / f"{slot}-{round:08}"
