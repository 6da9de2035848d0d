"""The order of mixed sources: shares that hold after any number of rows, and places that agree with the counts."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.mixture import MixturePhase, RowMixture

weights_of_four = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


@st.composite
def mixtures(draw: st.DrawFn) -> RowMixture:
    lengths = draw(st.lists(st.integers(1, 150), max_size=3))
    starts = [0, *accumulate(lengths)]
    return RowMixture([MixturePhase(start, draw(weights_of_four)) for start in starts])


@given(weights=weights_of_four, rows=st.integers(0, 10**12))
def test_shares_are_within_one_row_of_the_weights_after_any_number_of_rows(weights: tuple[int, ...], rows: int) -> None:
    total = sum(weights)
    for count, weight in zip(RowMixture([MixturePhase(0, weights)]).counts(rows), weights, strict=True):
        assert rows * weight // total <= count <= -(-rows * weight // total)


@pytest.mark.slow
@given(mixture=mixtures())
def test_places_are_the_rows_of_each_source_in_order_as_the_counts_say(mixture: RowMixture) -> None:
    seen = [0] * mixture.sources
    for row in range(500):
        assert mixture.counts(row) == tuple(seen)
        source, index = mixture.place(row)
        assert index == seen[source]
        seen[source] += 1


def test_a_phase_begins_at_its_row() -> None:
    mixture = RowMixture([MixturePhase(0, (1, 0)), MixturePhase(7, (0, 1)), MixturePhase(9, (1, 0))])
    assert [mixture.place(row) for row in range(11)] == [
        *((0, row) for row in range(7)), (1, 0), (1, 1), (0, 7), (0, 8),
    ]  # fmt: skip


@given(mixture=mixtures(), limits=st.tuples(*[st.none() | st.integers(0, 80)] * 4))
def test_rows_within_are_the_most_rows_that_exceed_no_limit(mixture: RowMixture, limits: tuple[int | None, ...]) -> None:
    def is_over(rows: int) -> bool:
        return any(limit is not None and count > limit for limit, count in zip(limits, mixture.counts(rows), strict=True))

    rows = mixture.rows_within(limits)
    if rows is None:
        assert not is_over(10**15)
    else:
        assert not is_over(rows) and is_over(rows + 1)
