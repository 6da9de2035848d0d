"""How far a file of a version is on its way, how fast it comes, and for how long still."""

from __future__ import annotations

from collections.abc import Callable

from protocol.content.blob import ChunkSet, to_bitmap
from protocol.events import VersionProgress
from protocol.wire.versions import BlobName

EVERY_S = 1.0
MEMORY = 0.3


class Progress:
    """Of one file.  here: the chunks that need not be fetched.  now: trio time.  emit: told once in `EVERY_S`."""

    def __init__(
        self, version: int, what: str, blob: BlobName, here: ChunkSet, now: float, emit: Callable[[VersionProgress], None]
    ) -> None:
        self._version, self._what, self._blob, self._emit = version, what, blob, emit
        self._here, self._sources = here, 0
        self._told_at, self._told_bytes = now, self._bytes()
        self._rate = 0.0

    def update(self, here: ChunkSet, sources: int, now: float) -> None:
        """These chunks are here now."""
        self._here, self._sources = here, sources
        passed_s, arrived = now - self._told_at, self._bytes() - self._told_bytes
        if passed_s >= EVERY_S or here.bit_count() == self._blob.count:
            if passed_s > 0:
                rate = arrived / passed_s
                self._rate += (MEMORY if self._rate else 1.0) * (rate - self._rate)
            self._told_at, self._told_bytes = now, self._told_bytes + arrived
            self._emit(self.told())

    def told(self) -> VersionProgress:
        """As an event."""
        left = self._blob.size - self._bytes()
        return VersionProgress(
            version=self._version,
            blob=self._blob.root.hex(),
            what=self._what,
            done=self._here.bit_count(),
            total=self._blob.count,
            size_bytes=self._blob.size,
            chunks=to_bitmap(self._here, self._blob.count).hex(),
            down_bytes_per_s=self._rate,
            sources=self._sources,
            left_s=left / self._rate if self._rate else None,
        )

    def _bytes(self) -> int:
        """Of the file that are here."""
        last = self._blob.size - (self._blob.count - 1) * self._blob.chunk_bytes
        lacks = self._blob.chunk_bytes - last if self._here >> (self._blob.count - 1) & 1 else 0
        return self._here.bit_count() * self._blob.chunk_bytes - lacks
