"""How the flat parameter vector is cut: the one place that says where a fragment, a chunk and a block lie.

A state is cut into fragments, of which a round exchanges one; a fragment's contribution and its result are the codec bytes
of its chunks, one after the other; a chunk is encoded in blocks of `kernels.codec.BLOCK` values.  Fragments and chunks are
whole numbers of blocks, except that the last one may end in a part of a block, which the codec fills up.
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
        """Where its parameters lie in the flat vector."""
        return slice(self.start, self.start + self.count)

    @property
    def encoded(self) -> slice:
        """Where its codec bytes lie in a contribution or a result."""
        return slice(self.offset, self.offset + self.size)


Layout = Sequence[ChunkSpan]
"""The chunks of a contribution, in order."""


def fragment_span(parameters: int, fragment: int = 0, fragments: int = 1) -> range:
    """The parameters of one of `fragments` fragments: runs of whole blocks, as long as each other to a block.

    Every fragment has parameters if there are as many blocks as fragments.
    """
    assert 0 <= fragment < fragments
    blocks = blocks_of(parameters)
    start, stop = (min(parameters, blocks * edge // fragments * BLOCK) for edge in (fragment, fragment + 1))
    return range(start, stop)


def chunk_layout(parameters: int, chunk_parameters: int, fragment: int = 0, fragments: int = 1) -> tuple[ChunkSpan, ...]:
    """The chunks of the contribution to a fragment of a vector of `parameters` values; the last one may be shorter.

    chunk_parameters: a multiple of the block.
    """
    span, spans, offset = fragment_span(parameters, fragment, fragments), [], 0
    for start in range(span.start, span.stop, chunk_parameters):
        count = min(chunk_parameters, span.stop - start)
        spans.append(ChunkSpan(start, count, offset, encoded_bytes(count)))
        offset += encoded_bytes(count)
    return tuple(spans)


def chunk_count(parameters: int, chunk_parameters: int, fragment: int = 0, fragments: int = 1) -> int:
    """Chunks of the contribution to a fragment, without the work of cutting it."""
    return -(-len(fragment_span(parameters, fragment, fragments)) // chunk_parameters)


def payload_bytes(layout: Layout) -> int:
    """Codec bytes of a whole contribution or result."""
    return layout[-1].offset + layout[-1].size
