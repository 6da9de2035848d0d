"""Layout of the flat parameter vector; only this module decides where a fragment, a chunk and a block lie.

A state is divided into fragments, and a round exchanges one of them. A fragment's contribution and its result are the codec
bytes of its chunks, in sequence; a chunk is encoded in blocks of `kernels.codec.BLOCK` values. Fragments and chunks are
whole numbers of blocks, except that the last one may end with a partial block, which has its own scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.codec import BLOCK, blocks_of, encoded_bytes


@dataclass(frozen=True)
class ChunkSpan:
    """Chunk of a contribution: parameters [start, start + count), codec bytes [offset, offset + size)."""

    start: int
    count: int
    offset: int
    size: int

    @property
    def values(self) -> slice:
        """Slice of the flat vector that holds the chunk's parameters."""
        return slice(self.start, self.start + self.count)

    @property
    def encoded(self) -> slice:
        """Slice of a contribution or a result that holds the chunk's codec bytes."""
        return slice(self.offset, self.offset + self.size)


Layout = Sequence[ChunkSpan]
"""Chunks of a contribution, in order."""


def fragment_span(parameters: int, fragment: int = 0, fragments: int = 1) -> range:
    """Return the range of parameters of one of `fragments` fragments, whose lengths in blocks differ by at most one.

    No fragment is empty if there are at least as many blocks as fragments.
    """
    assert 0 <= fragment < fragments
    blocks = blocks_of(parameters)
    start, stop = (min(parameters, blocks * edge // fragments * BLOCK) for edge in (fragment, fragment + 1))
    return range(start, stop)


def chunk_layout(parameters: int, chunk_parameters: int, fragment: int = 0, fragments: int = 1) -> tuple[ChunkSpan, ...]:
    """Return the chunks of the contribution to a fragment of a vector of `parameters` values; the last may be shorter.

    chunk_parameters: a multiple of the block.
    """
    span, spans, offset = fragment_span(parameters, fragment, fragments), [], 0
    for start in range(span.start, span.stop, chunk_parameters):
        count = min(chunk_parameters, span.stop - start)
        spans.append(ChunkSpan(start, count, offset, encoded_bytes(count)))
        offset += encoded_bytes(count)
    return tuple(spans)


def chunk_count(parameters: int, chunk_parameters: int, fragment: int = 0, fragments: int = 1) -> int:
    """Return the number of chunks of the contribution to a fragment, without building the layout."""
    return -(-len(fragment_span(parameters, fragment, fragments)) // chunk_parameters)


def payload_bytes(layout: Layout) -> int:
    """Return the number of codec bytes of a whole contribution or result."""
    return layout[-1].offset + layout[-1].size
