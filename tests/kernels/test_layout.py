"""The cut of a vector: fragments, chunks and blocks leave no gap and never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.codecs.ladder import LADDER, Codec
from kernels.layout import chunk_count, chunk_layouts, fragment_length, fragment_spans


@given(codec=st.sampled_from([*LADDER.values()]), values=st.integers(1, 50_000), blocks=st.integers(1, 40))
def test_chunks_fill_a_fragment_in_whole_blocks(codec: Codec, values: int, blocks: int) -> None:
    chunk = blocks * codec.block
    layouts = chunk_layouts(codec, values, chunk)
    assert [span.values for span in layouts.contribution] == [span.values for span in layouts.result]
    for layout in (layouts.contribution, layouts.result):
        at, byte = 0, 0
        for span in layout:
            assert (span.start, span.offset, span.size) == (at, byte, layout.format.encoded_bytes(span.count))
            assert at % codec.block == 0 and 0 < span.count <= chunk
            at, byte = span.values.stop, span.encoded.stop
        assert (at, byte) == (values, layout.payload_bytes) and layout.length == values
        assert [span.start for span in layout.moved(7)] == [7 + span.start for span in layout]
    assert chunk_count(values, chunk) == len(layouts.result)


@given(parameters=st.integers(1, 50_000), block=st.sampled_from([64, 256, 4096]), fragments=st.integers(1, 8))
def test_fragments_are_equally_long_and_fill_the_vector(parameters: int, block: int, fragments: int) -> None:
    length, parameter = fragment_length(parameters, block, fragments), 0
    for span in fragment_spans(parameters, block, fragments):
        assert span.start == parameter and (len(span) == length or span.stop == parameters)
        parameter = span.stop
    assert parameter == parameters and (fragments == 1 or length % block == 0)
