"""The last promise and vote on disk: what a restarted peer must not contradict."""

from __future__ import annotations

from pathlib import Path

from protocol.state.disk import Disk
from protocol.state.guarded import read_guarded, write_guarded


class PromiseFile:
    """Holds one encoded `Promise`.  Blocking."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._path = disk, path

    def save(self, raw: bytes) -> None:
        """Replace it, for good when this returns.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._path, raw)

    def load(self) -> bytes | None:
        """The last one saved; None when there is none."""
        return read_guarded(self._disk, self._path)
