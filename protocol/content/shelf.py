"""What is here of blobs: where the bytes of a chunk are read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.content.blob import ChunkSet
from protocol.wire.hashes import Hash


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
