"""What binds this peer at each tip that it voted on, on disk: what a restarted peer must not contradict."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.state.disk import Disk
from protocol.state.guarded import corrupt_name, read_guarded, write_guarded
from protocol.wire.hashes import Hash

NEVER = 1 << 62
_NAME = re.compile(r"(\d{8})-[0-9a-f]{64}")


class VoteFiles:
    """One encoded `Kept` a tip.  Blocking.

    A tip's file outlives the branch that the tip is on: a peer that comes back to it is bound by what it said there.
    `complete-from` says since when they are complete.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._complete = folder / "complete-from"

    def save(self, round: int, tip: Hash, raw: bytes) -> None:
        """Replace what is kept for the round on this tip, for good when this returns.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._path(round, tip), raw)

    def load(self, round: int, tip: Hash) -> bytes | None:
        """What is kept for the round on this tip; None when nothing is."""
        return read_guarded(self._disk, self._path(round, tip))

    def has_lost(self, round: int, tip: Hash) -> bool:
        """Whether there is, or was, a file for the round on this tip; asked when `load` gave none that can be read."""
        path = self._path(round, tip)
        return path.exists() or corrupt_name(path).exists()

    def complete_from(self) -> int:
        """The first round from which on we know all that we voted: 0, unless our files were put back or copied."""
        raw = read_guarded(self._disk, self._complete)
        if raw is not None:
            return int.from_bytes(raw)
        return NEVER if self._complete.exists() or corrupt_name(self._complete).exists() else 0

    def set_complete_from(self, round: int) -> None:
        """What we may have voted before this round is not all here.  For good when this returns.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._complete, round.to_bytes(8))

    def any(self) -> bool:
        """Whether this peer has ever voted."""
        return any(_NAME.fullmatch(path.name) for path in self._folder.iterdir())

    def drop_before(self, round: int) -> None:
        """Forget the tips before `round`: records there are final, and are voted on no more."""
        for path in self._folder.iterdir():
            named = _NAME.fullmatch(path.name)
            if named and int(named[1]) < round:
                self._disk.remove(path)

    def _path(self, round: int, tip: Hash) -> Path:
        return self._folder / f"{round:08d}-{tip.hex()}"
