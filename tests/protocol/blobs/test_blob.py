"""Blobs and sets of their chunks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.blobs.blob import Blob, Copies, EvenSpans, any_of, chunks_in, from_bitmap, set_of, to_bitmap
from protocol.wire.canonical import Malformed
from tests.protocol.blobs.peers import NAME


def test_the_last_chunk_is_what_is_left_and_spans_lie_end_to_end() -> None:
    blob = Blob.cut(NAME, [NAME] * 3, EvenSpans(2500, 1000))
    assert blob.sizes == (1000, 1000, 500)
    assert [blob.span(chunk) for chunk in range(3)] == [slice(0, 1000), slice(1000, 2000), slice(2000, 2500)]
    assert len(blob) == 3 and blob.all == 0b111


@given(st.integers(1, 70).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, (1 << count) - 1))))
def test_a_bitmap_says_what_the_set_was(counted: tuple[int, int]) -> None:
    count, chunks = counted
    assert from_bitmap(to_bitmap(chunks, count), count) == chunks
    assert set_of([*chunks_in(chunks)]) == chunks


def test_an_empty_bitmap_is_the_empty_set() -> None:
    assert from_bitmap(b"", 12) == 0


@pytest.mark.parametrize(
    "bitmap", [b"\x01", b"\x01\x00\x00", b"\x00\x10", b"\xff\xff"], ids=["short", "long", "13th", "all"]
)
def test_a_bitmap_that_does_not_fit_is_malformed(bitmap: bytes) -> None:
    with pytest.raises(Malformed):
        from_bitmap(bitmap, 12)


@given(st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=30))
def test_copies_are_counted_as_a_list_would_count_them(changes: list[tuple[int, bool]]) -> None:
    copies, counts = Copies(8), [0] * 8
    for chunks, more in changes:
        if not more:
            chunks &= set_of([chunk for chunk in range(8) if counts[chunk]])
        copies.add(chunks, 1 if more else -1)
        for chunk in chunks_in(chunks):
            counts[chunk] += 1 if more else -1
    assert copies.none == set_of([chunk for chunk in range(8) if not counts[chunk]])
    for among in (0xFF, 0x0F, 0x55):
        fewest = min(counts[chunk] for chunk in chunks_in(among))
        assert copies.rarest(among) == set_of([chunk for chunk in chunks_in(among) if counts[chunk] == fewest])
    assert copies.rarest(0) == 0


def test_any_of_a_set_is_each_of_it_sooner_or_later() -> None:
    random_ = random.Random(1)
    assert {any_of(0b1010010, random_) for _ in range(200)} == {1, 4, 6}
