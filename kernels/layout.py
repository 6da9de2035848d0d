"""Layout of the flat parameter vector; only this module decides where a fragment, a chunk and a block lie.

A state is divided into fragments, and a round exchanges one of them. A fragment's contribution and its result are the
encoded chunks of the fragment, in sequence. The same chunks have one layout in contributions and another in results, because
a codec may encode them in two formats (`kernels.codecs.ladder`). Fragments and chunks are whole numbers of the codec's
blocks, except that the last one may end with a partial block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels.codecs.format import Format
from kernels.codecs.ladder import Codec


@dataclass(frozen=True)
class ChunkSpan:
    """Chunk of a contribution or a result: parameters [start, start + count), encoded bytes [offset, offset + size)."""

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
        """Slice of a contribution or a result that holds the encoded chunk."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Layout:
    """Chunks of a contribution or of a result, in order, and their format."""

    format: Format
    spans: tuple[ChunkSpan, ...]

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, chunk: int) -> ChunkSpan:
        return self.spans[chunk]

    def __iter__(self) -> Iterator[ChunkSpan]:
        return iter(self.spans)

    @property
    def payload_bytes(self) -> int:
        """Number of bytes of all chunks."""
        last = self.spans[-1]
        return last.offset + last.size

    def zeros(self) -> bytearray:
        """Return the contribution that changes no parameter."""
        return bytearray().join(self.format.zeros(span.count) for span in self.spans)


class Layouts(NamedTuple):
    """Layouts of the same chunks in contributions and in results, and the codec that has both formats."""

    codec: Codec
    contribution: Layout
    result: Layout

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of a contribution and a result together; each of N members sends and receives (N - 1) / N of them."""
        return self.contribution.payload_bytes + self.result.payload_bytes


def fragment_span(parameters: int, block: int, fragment: int = 0, fragments: int = 1) -> range:
    """Return the range of parameters of one of `fragments` fragments, whose lengths in blocks differ by at most one.

    No fragment is empty if there are at least as many blocks as fragments.
    """
    assert 0 <= fragment < fragments
    blocks = -(-parameters // block)
    start, stop = (min(parameters, blocks * edge // fragments * block) for edge in (fragment, fragment + 1))
    return range(start, stop)


def chunk_layouts(codec: Codec, parameters: int, chunk_parameters: int, fragment: int = 0, fragments: int = 1) -> Layouts:
    """Return the chunks of a fragment of a vector of `parameters` values; the last chunk may be shorter.

    chunk_parameters: a multiple of the codec's block.
    """
    assert chunk_parameters % codec.block == 0
    span = fragment_span(parameters, codec.block, fragment, fragments)

    def layout(format: Format) -> Layout:
        spans, offset = [], 0
        for start in range(span.start, span.stop, chunk_parameters):
            count = min(chunk_parameters, span.stop - start)
            spans.append(ChunkSpan(start, count, offset, format.encoded_bytes(count)))
            offset += spans[-1].size
        return Layout(format, tuple(spans))

    return Layouts(codec, layout(codec.contribution), layout(codec.result))


def chunk_count(parameters: int, chunk_parameters: int) -> int:
    """Return the number of chunks of the whole vector, without building a layout."""
    return -(-parameters // chunk_parameters)
