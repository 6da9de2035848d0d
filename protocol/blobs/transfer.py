"""Progress of a blob on its way to us: its chunks, its rate, and the time that is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.blobs.blob import Blob, ChunkSet, chunks_in
from protocol.events.events import Event, TransferEnded, TransferProgress

EVERY_S = 1.0
MEMORY = 0.3
MOST_CELLS = 256
"""Most cells of a blob's map, which is told once a second; a blob may have tens of thousands of chunks."""


@dataclass(frozen=True)
class Purpose:
    """Purpose of a blob.

    what: checkpoint, result, weights, patch, file, rollouts, tasks or reference.  number: of the round, version or file.
    """

    what: str
    number: int


class Transfer:
    """Progress of one blob.  here: chunks that need not be fetched.  now: trio time.  emit: told progress once in `EVERY_S`.

    Call `update` often, also when nothing comes: the rate is measured over the last seconds.
    """

    def __init__(self, purpose: Purpose, blob: Blob, here: ChunkSet, now: float, emit: Callable[[Event], None]) -> None:
        self._purpose, self._blob, self._emit = purpose, blob, emit
        self._here, self._sources = here, 0
        self._whole = sum(blob.sizes)
        self._bytes_left = self._whole - self._size(here)
        self._begun_at = self._told_at = now
        self._began_with = self._told_left = self._bytes_left
        self._rate = 0.0

    def update(self, here: ChunkSet, sources: int, now: float) -> None:
        """Note the chunks that are here now, and the number of peers that have some of the blob."""
        self._bytes_left -= self._size(here & ~self._here)
        self._here, self._sources = here, sources
        passed_s, arrived = now - self._told_at, self._told_left - self._bytes_left
        if passed_s >= EVERY_S:
            self._rate += (MEMORY if self._rate else 1.0) * (arrived / passed_s - self._rate)
            self._told_at, self._told_left = now, self._bytes_left
            self._emit(self.told())

    def end(self, now: float) -> None:
        """End the transfer: all chunks are here, nobody has the rest, or it was given up."""
        if self._began_with:
            arrived = self._began_with - self._bytes_left
            complete, seconds = not self._bytes_left, now - self._begun_at
            self._emit(TransferEnded(**self._named(), fetched_bytes=arrived, seconds=seconds, complete=complete))

    def told(self) -> TransferProgress:
        """Return the progress as an event."""
        return TransferProgress(
            **self._named(),
            done=self._here.bit_count(),
            total=len(self._blob),
            size_bytes=self._whole,
            chunks=cells(self._here, len(self._blob)),
            down_bytes_per_s=self._rate,
            sources=self._sources,
            left_s=self._bytes_left / self._rate if self._rate >= 1 else None,
        )

    def _named(self) -> dict[str, Any]:
        return {"what": self._purpose.what, "number": self._purpose.number, "blob": self._blob.name.hex()}

    def _size(self, chunks: ChunkSet) -> int:
        return sum(self._blob.sizes[chunk] for chunk in chunks_in(chunks))


def cells(here: ChunkSet, count: int, most: int = MOST_CELLS) -> str:
    """Return a map of the chunks of a blob, at most `most` cells: # all of a cell's chunks are here, + some, . none."""
    number, line = min(most, count), ""
    for cell in range(number):
        first, end = cell * count // number, (cell + 1) * count // number
        found = (here >> first & ((1 << (end - first)) - 1)).bit_count()
        line += "#" if found == end - first else "+" if found else "."
    return line
