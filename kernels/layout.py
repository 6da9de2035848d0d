"""How the flat parameter vector is cut: the one place that says where a chunk lies.

A contribution and a result are the codec bytes of the chunks, one after the other.  A chunk is a whole number of the
codec's blocks, except the last one, whose last block is filled up by the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.codec import encoded_bytes


@dataclass(frozen=True)
class ChunkSpan:
    """Chunk of a contribution: parameters [start, start + count), codec bytes [offset, offset + size)."""

    start: int
    count: int
    offset: int
    size: int

    @property
    def values(self) -> slice:
        """Where its parameters lie in the flat vector."""
        return slice(self.start, self.start + self.count)

    @property
    def encoded(self) -> slice:
        """Where its codec bytes lie in a contribution or a result."""
        return slice(self.offset, self.offset + self.size)


Layout = Sequence[ChunkSpan]
"""The chunks of a contribution, in order."""


def chunk_layout(parameters: int, chunk_parameters: int) -> tuple[ChunkSpan, ...]:
    """The chunks of a contribution of `parameters` values; the last one may be shorter."""
    spans, offset = [], 0
    for start in range(0, parameters, chunk_parameters):
        count = min(chunk_parameters, parameters - start)
        spans.append(ChunkSpan(start, count, offset, encoded_bytes(count)))
        offset += encoded_bytes(count)
    return tuple(spans)


def payload_bytes(layout: Layout) -> int:
    """Codec bytes of a whole contribution or result."""
    return layout[-1].offset + layout[-1].size
