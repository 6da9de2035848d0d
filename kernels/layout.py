"""Layout of the flat parameter vector; only this module decides where a fragment, a chunk and a block lie.

A state is divided into fragments of equal length, and a round exchanges one of them. A fragment's contribution and its
result are the encoded chunks of the fragment, in sequence. The same chunks have one layout in contributions and another in
results, because a codec may encode them in two formats (`kernels.codecs.ladder`). Fragments and chunks are whole numbers of
the codec's blocks, except that a single fragment may end with a partial block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels.codecs.format import Format
from kernels.codecs.ladder import Codec


@dataclass(frozen=True)
class ChunkSpan:
    """Chunk of a fragment: values [start, start + count), encoded bytes [offset, offset + size)."""

    start: int
    count: int
    offset: int
    size: int

    @property
    def values(self) -> slice:
        """Slice of the fragment that holds the chunk's values."""
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

    @property
    def length(self) -> int:
        """Number of values of all chunks."""
        return self.spans[-1].start + self.spans[-1].count

    def moved(self, start: int) -> Layout:
        """Return the same chunks, with their values counted from `start` values before the first."""
        return replace(self, spans=tuple(replace(span, start=start + span.start) for span in self.spans))

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


def fragment_length(parameters: int, block: int, fragments: int) -> int:
    """Return the number of values in each of `fragments` equal fragments.

    Several fragments are whole numbers of blocks. The last one reaches beyond the vector, where all values are zeros, so all
    fragments have the same chunks.
    """
    return parameters if fragments == 1 else -(-parameters // (block * fragments)) * block


def fragment_span(parameters: int, length: int, fragment: int) -> range:
    """Return the parameters of a fragment of `length` values: fewer if it reaches beyond the vector."""
    return range(min(parameters, fragment * length), min(parameters, (fragment + 1) * length))


def fragment_spans(parameters: int, block: int, fragments: int) -> tuple[range, ...]:
    """Return the parameters of each fragment."""
    length = fragment_length(parameters, block, fragments)
    return tuple(fragment_span(parameters, length, fragment) for fragment in range(fragments))


def chunk_layouts(codec: Codec, values: int, chunk_parameters: int) -> Layouts:
    """Return the chunks of a fragment of `values` values; the last chunk may be shorter.

    chunk_parameters: a multiple of the codec's block.
    """
    assert chunk_parameters % codec.block == 0

    def layout(format: Format) -> Layout:
        spans, offset = [], 0
        for start in range(0, values, chunk_parameters):
            count = min(chunk_parameters, values - start)
            spans.append(ChunkSpan(start, count, offset, format.encoded_bytes(count)))
            offset += spans[-1].size
        return Layout(format, tuple(spans))

    return Layouts(codec, layout(codec.contribution), layout(codec.result))


def chunk_count(values: int, chunk_parameters: int) -> int:
    """Return the number of chunks of a fragment, without building a layout."""
    return -(-values // chunk_parameters)
