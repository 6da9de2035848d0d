"""Blobs, sets of their chunks, and what is told of their transfer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.blobs.blob import Blob, Copies, EvenSpans, chunks_in, from_bitmap, set_of, to_bitmap
from protocol.blobs.transfer import Purpose, Transfer, cells
from protocol.events.events import Event, TransferEnded, TransferProgress
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
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


BLOB = Blob.cut(NAME, [Hash(bytes(32))] * 10, EvenSpans(9 * 4096 + 100, 4096))


def test_progress_counts_bytes_that_came_and_none_that_were_there() -> None:
    told: list[Event] = []
    transfer = Transfer(Purpose("checkpoint", 3), BLOB, 0b11, 10.0, told.append)
    assert transfer.told().left_s is None and transfer.told().done == 2
    transfer.update(0b111, 4, 10.5)
    assert told == []
    transfer.update(0b1111, 4, 12.0)
    (progress,) = told
    assert isinstance(progress, TransferProgress)
    assert (progress.done, progress.total, progress.down_bytes_per_s, progress.sources) == (4, 10, 4096.0, 4)
    assert progress.chunks == "####......" and progress.left_s == (5 * 4096 + 100) / 4096
    transfer.update(0b1111111111, 4, 12.1)
    transfer.end(12.5)
    assert told[1:] == [TransferEnded("checkpoint", 3, NAME.hex(), 7 * 4096 + 100, 2.5, complete=True)]


def test_what_was_broken_off_says_so_and_what_was_there_is_not_told() -> None:
    told: list[Event] = []
    Transfer(Purpose("result", 1), BLOB, BLOB.all, 0.0, told.append).end(1.0)
    assert told == []
    Transfer(Purpose("result", 1), BLOB, 0b1, 0.0, told.append).end(1.0)
    assert told == [TransferEnded("result", 1, NAME.hex(), 0, 1.0, complete=False)]


def test_a_map_has_a_cell_for_one_chunk_or_for_several() -> None:
    assert cells(0b1, 1) == "#" and cells(0, 3) == "..." and cells(0b101, 3) == "#.#"
    assert cells((1 << 500) - 1, 1000, 40) == "#" * 20 + "." * 20
    assert cells(1 << 999, 1000, 40) == "." * 39 + "+"
    assert len(cells(0, 30_000)) == 256
