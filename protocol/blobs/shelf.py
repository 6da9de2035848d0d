"""Shelves of blobs on a peer's disk, from which the bytes of chunks are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.blobs.blob import ChunkSet
from protocol.wire.hashes import Hash


@dataclass(frozen=True)
class Holding:
    """A blob that others can get from us, as `peer weights --json` shows it.

    what, number, blob: as in `protocol.events.events.TransferProgress`.
    """

    what: str
    number: int
    blob: str
    size_bytes: int


class Held(Protocol):
    """A blob, or a part of it, that is here."""

    @property
    def count(self) -> int:
        """Chunks of the whole blob."""
        ...

    @property
    def here(self) -> ChunkSet:
        """Chunks that can be read."""
        ...

    @property
    def is_urgent(self) -> bool:
        """True if a round may wait for the blob; other blobs get only the spare capacity of our line."""
        ...

    def leaves(self) -> Sequence[Hash] | None:
        """Return the hashes of all chunks, if they are known here.  Blocking."""
        ...

    def read(self, chunk: int) -> bytes | None:
        """Return the bytes of a chunk; None if they are not here any more, or were altered.  Blocking."""
        ...


class Shelf(Protocol):
    """The blobs on a peer's disk."""

    def find(self, name: Hash) -> Held | None:
        """Return a blob that is here; None for others.  Blocking."""
        ...


class ListedShelf(Shelf, Protocol):
    """A shelf that lists its blobs."""

    def holdings(self) -> list[Holding]:
        """Return the complete blobs that are here.  Blocking."""
        ...
