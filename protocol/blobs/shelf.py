"""What is here of blobs: where the bytes of a chunk are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.blobs.blob import ChunkSet
from protocol.wire.hashes import Hash


@dataclass(frozen=True)
class Holding:
    """A blob that others can have from us, as `peer weights --json` shows it.

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
        """Those that can be read."""
        ...

    @property
    def is_urgent(self) -> bool:
        """Whether a round may wait for it; what is not takes what others leave of our line."""
        ...

    def leaves(self) -> Sequence[Hash] | None:
        """The hashes of all chunks, if they are known here.  Blocking."""
        ...

    def read(self, chunk: int) -> bytes | None:
        """The bytes of a chunk; None when they are not here any more, or not what they were.  Blocking."""
        ...


class Shelf(Protocol):
    """The blobs on a peer's disk."""

    def find(self, name: Hash) -> Held | None:
        """A blob that is here; None for others.  Blocking."""
        ...


class ListedShelf(Shelf, Protocol):
    """One that tells what is on it."""

    def holdings(self) -> list[Holding]:
        """The complete blobs that are here.  Blocking."""
        ...
