"""The committed records of a run on disk, each with its index and certificate."""

from __future__ import annotations

from pathlib import Path

from protocol.state.disk import Disk
from protocol.state.guarded import read_guarded, set_aside, write_guarded
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.messages import Commit

MAX_RECORD_BYTES = 4 << 20


class Records:
    """One file a round.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def length(self) -> int:
        """Rounds from 0 on without a gap."""
        rounds = {int(path.name) for path in self._folder.iterdir() if path.name.isdigit()}
        length = 0
        while length in rounds:
            length += 1
        return length

    def write(self, commit: Commit) -> None:
        """Write the record of its round, or write it anew with another certificate.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._path(commit.record.round), commit.encode())

    def at(self, round: int) -> Commit | None:
        """The commit of a round; None when it is not here, or not readable."""
        raw = read_guarded(self._disk, self._path(round))
        if raw is None:
            return None
        try:
            return decode_body(Commit, raw, max_bytes=MAX_RECORD_BYTES)
        except Malformed:
            set_aside(self._disk, self._path(round))
            return None

    def truncate(self, length: int) -> None:
        """Remove the records of rounds `length` and above, the newest first."""
        for path in sorted(self._folder.iterdir(), reverse=True):
            if path.name.isdigit() and int(path.name) >= length:
                self._disk.remove(path)

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:08}"
