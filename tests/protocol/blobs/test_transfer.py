"""Progress is told once a second at most, with the rate of what was fetched, and the end always."""

from __future__ import annotations

from protocol.blobs.blob import Blob, EvenSpans
from protocol.blobs.transfer import Purpose, Transfer, cells
from protocol.events.events import Event, TransferEnded, TransferProgress
from protocol.wire.hashes import Hash

NAME = Hash(bytes(32))
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
