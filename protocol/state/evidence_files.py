"""The proofs that peers lied, on disk under their hashes."""

from __future__ import annotations

import re
from pathlib import Path

from protocol.state.disk import Disk
from protocol.state.guarded import read_guarded, write_guarded
from protocol.wire.hashes import Hash

_NAME = re.compile(r"[0-9a-f]{64}")


class EvidenceFiles:
    """Knows nothing of what is in them.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def save(self, name: Hash, raw: bytes) -> None:
        """Write a proof.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._folder / name.hex(), raw)

    def load(self, name: Hash) -> bytes | None:
        """A proof; None when it is not here."""
        return read_guarded(self._disk, self._folder / name.hex())

    def remove(self, name: Hash) -> None:
        """Forget a proof."""
        self._disk.remove(self._folder / name.hex())

    def names(self) -> list[Hash]:
        """All proofs that are here."""
        names = sorted(path.name for path in self._folder.iterdir())
        return [Hash(bytes.fromhex(name)) for name in names if _NAME.fullmatch(name)]

    def size_bytes(self) -> int:
        """The disk space that the proofs take up."""
        return sum(path.stat().st_size for path in self._folder.iterdir())
