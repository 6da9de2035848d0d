"""The cut of a vector: fragments, chunks and blocks leave no gap and never overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.codecs.ladder import LADDER, Codec
from kernels.layout import chunk_count, chunk_layouts, fragment_span


@given(
    codec=st.sampled_from([*LADDER.values()]),
    parameters=st.integers(1, 50_000),
    blocks=st.integers(1, 40),
    fragments=st.integers(1, 8),
)
def test_fragments_and_chunks_fill_the_vector_in_whole_blocks(
    codec: Codec, parameters: int, blocks: int, fragments: int
) -> None:
    parameter, chunk = 0, blocks * codec.block
    for fragment in range(fragments):
        layouts = chunk_layouts(codec, parameters, chunk, fragment, fragments)
        assert fragment_span(parameters, codec.block, fragment, fragments).start == parameter
        assert [span.values for span in layouts.contribution] == [span.values for span in layouts.result]
        for layout in (layouts.contribution, layouts.result):
            at, byte = parameter, 0
            for span in layout:
                assert (span.start, span.offset, span.size) == (at, byte, layout.format.encoded_bytes(span.count))
                assert at % codec.block == 0 and 0 < span.count <= chunk
                at, byte = span.values.stop, span.encoded.stop
            assert not layout.spans or layout.payload_bytes == byte
        parameter = at
    assert parameter == parameters


@pytest.mark.parametrize(("parameters", "counts"), [(2500, [1024, 1024, 452]), (1024, [1024]), (3, [3])])
def test_one_fragment_is_the_whole_vector(parameters: int, counts: list[int]) -> None:
    assert [span.count for span in chunk_layouts(LADDER["int8"], parameters, 1024).result] == counts
    assert chunk_count(parameters, 1024) == len(counts)


@given(parameters=st.integers(1, 50_000), fragments=st.integers(1, 8))
def test_fragments_are_as_long_as_each_other_to_a_block(parameters: int, fragments: int) -> None:
    counts = [len(fragment_span(parameters, 256, fragment, fragments)) for fragment in range(fragments)]
    assert max(counts) - min(counts) < 2 * 256
