"""The cut of a vector: fragments, chunks and blocks leave no gap and never overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.codec import BLOCK, encoded_bytes
from kernels.layout import chunk_count, chunk_layout, fragment_span, payload_bytes


@given(parameters=st.integers(1, 50_000), blocks=st.integers(1, 40), fragments=st.integers(1, 8))
def test_fragments_and_chunks_fill_the_vector_in_whole_blocks(parameters: int, blocks: int, fragments: int) -> None:
    parameter = 0
    for fragment in range(fragments):
        layout, byte = chunk_layout(parameters, blocks * BLOCK, fragment, fragments), 0
        assert fragment_span(parameters, fragment, fragments).start == parameter
        assert chunk_count(parameters, blocks * BLOCK, fragment, fragments) == len(layout)
        for span in layout:
            assert (span.start, span.offset, span.size) == (parameter, byte, encoded_bytes(span.count))
            assert parameter % BLOCK == 0 and 0 < span.count <= blocks * BLOCK
            parameter, byte = span.values.stop, span.encoded.stop
        assert not layout or payload_bytes(layout) == byte
    assert parameter == parameters


@pytest.mark.parametrize(("parameters", "counts"), [(2500, [1024, 1024, 452]), (1024, [1024]), (3, [3])])
def test_one_fragment_is_the_whole_vector(parameters: int, counts: list[int]) -> None:
    assert [span.count for span in chunk_layout(parameters, 1024)] == counts


@given(parameters=st.integers(1, 50_000), fragments=st.integers(1, 8))
def test_fragments_are_as_long_as_each_other_to_a_block(parameters: int, fragments: int) -> None:
    counts = [len(fragment_span(parameters, fragment, fragments)) for fragment in range(fragments)]
    assert max(counts) - min(counts) < 2 * BLOCK
