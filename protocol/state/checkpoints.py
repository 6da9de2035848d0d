"""The outer state on disk as it was after some rounds, with the hashes of its pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from protocol.state.chain_view import Chain
from protocol.state.disk import Disk, map_file
from protocol.state.guarded import read_guarded, write_guarded
from protocol.state.parts import Part, Parts
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes

Mark = tuple[int, Hash]
"""Rounds applied, and the tip after them."""
_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})")


class CheckpointDownload:
    """A checkpoint being fetched into place; survives a restart, since every piece is checked against its hash."""

    def __init__(self, checkpoints: Checkpoints, mark: Mark, leaves: Sequence[Hash], part: Part, piece: int) -> None:
        self._checkpoints, self._mark, self._leaves = checkpoints, mark, list(leaves)
        self._part, self._piece = part, piece
        self.view = memoryview(part.mapping)

    def end(self) -> None:
        """As `Parts.end`."""
        self._checkpoints.parts.end(self._part)

    def missing(self) -> list[int]:
        """The pieces that are not here yet."""
        step = self._piece
        return [i for i, leaf in enumerate(self._leaves) if chunk_hash(self.view[i * step : (i + 1) * step]) != leaf]

    def commit(self) -> None:
        """All pieces are here: fsync and rename.  Raises `StoreFailed`."""
        self._checkpoints.write_leaves(*self._mark, self._leaves)
        self._checkpoints.disk.publish(self._part.path, self._part.mapping, self._checkpoints.path(*self._mark))


class Checkpoints:
    """Named by the number of rounds applied and the tip, for there may be some of branches.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self._folder = disk, folder
        self.parts = Parts(disk, folder)
        self._read: dict[Mark, int] = {}
        """For checkpoints that others asked for: how many rounds our chain had when they did last."""

    def write(self, rounds: int, tip: Hash, leaves: Sequence[Hash], state: memoryview) -> None:
        """Raises `StoreFull`; an older checkpoint stays then."""
        self.write_leaves(rounds, tip, leaves)
        self.disk.write_file(self.path(rounds, tip), state)

    def write_leaves(self, rounds: int, tip: Hash, leaves: Sequence[Hash]) -> None:
        """Write the hashes of a checkpoint's pieces.  Raises `StoreFull`."""
        write_guarded(self.disk, self._leaves_path(rounds, tip), b"".join(leaves))

    def marks(self) -> list[Mark]:
        """Rounds and tip of each checkpoint here, ascending."""
        named = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        return sorted((int(match[1]), Hash(bytes.fromhex(match[2]))) for match in named if match)

    def of(self, chain: Chain) -> list[int]:
        """After how many rounds of this chain there are checkpoints, ascending."""
        return [rounds for rounds, tip in self.marks() if rounds <= chain.length and chain.tip_at(rounds) == tip]

    def open(self, rounds: int, tip: Hash) -> tuple[list[Hash], memoryview] | None:
        """(hashes of the pieces, bytes) of a checkpoint; None when it is not here."""
        raw = read_guarded(self.disk, self._leaves_path(rounds, tip))
        view = self.view(rounds, tip)
        if raw is None or view is None or not raw or len(raw) % HASH_BYTES:
            return None
        return [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)], view

    def view(self, rounds: int, tip: Hash) -> memoryview | None:
        """The bytes of a checkpoint; None when it is not here."""
        return map_file(self.path(rounds, tip))

    def note_read(self, mark: Mark, rounds: int) -> None:
        """Somebody asks for a checkpoint, while our chain has `rounds` rounds."""
        self._read[mark] = rounds

    def was_read(self, mark: Mark, since: int) -> bool:
        """Whether somebody has asked for it since our chain had `since` rounds."""
        return self._read.get(mark, -1) >= since

    def stamp(self, rounds: int, tip: Hash) -> tuple[int, int]:
        """Another one when the hashes of a checkpoint's pieces were written anew; zeros where there are none."""
        try:
            found = self._leaves_path(rounds, tip).stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def download(self, rounds: int, tip: Hash, leaves: Sequence[Hash], size: int, piece: int) -> CheckpointDownload:
        """Begin, or go on with, fetching a checkpoint of `size` bytes in pieces of `piece` bytes, until its `end`.

        Raises `StoreFull`.
        """
        part = self.parts.begin(hash_bytes("download", b"".join(leaves))[:8].hex(), size)
        return CheckpointDownload(self, (rounds, tip), leaves, part, piece)

    def remove(self, rounds: int, tip: Hash) -> None:
        """Remove a checkpoint."""
        self._read.pop((rounds, tip), None)
        self.disk.remove(self.path(rounds, tip))
        self.disk.remove(self._leaves_path(rounds, tip))

    def path(self, rounds: int, tip: Hash) -> Path:
        """Where a checkpoint lies."""
        return self._folder / f"{rounds:08}-{tip.hex()}"

    def _leaves_path(self, rounds: int, tip: Hash) -> Path:
        return self._folder / f"{rounds:08}-{tip.hex()}.leaves"
