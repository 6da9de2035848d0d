"""What of the network's address book is on disk."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from peer.discovery.contacts import BOOK_NAME, SAVE_EVERY, AddressBook, read_book
from peer.discovery.contacts import MAX_KEPT_ADDRESSES as MAX_ADDRESSES
from peer.discovery.rendezvous import REREAD_S
from protocol.events.events import Event, Notice
from protocol.wire.hashes import ZERO_HASH


class Known:
    """Stands in for a network with these addresses, the best first."""

    def __init__(self, addresses: list[str]) -> None:
        self.known, self.peer_id = addresses, "me"

    def remember(self, addresses: list[str]) -> None:
        pass

    def addresses(self) -> list[str]:
        return self.known

    def known_addresses(self) -> list[str]:
        return self.known


def saved(folder: Path, addresses: list[str]) -> list[str]:
    network: Any = Known(addresses)
    book = AddressBook(folder, ZERO_HASH, network, lambda event: None)
    assert book._save(book._known()) == ""
    return read_book(folder / BOOK_NAME)


def test_of_too_many_addresses_the_best_are_kept_in_their_order(tmp_path: Path) -> None:
    best, others = ["/z", "/y", "/x"], [f"/a/{number}" for number in range(2 * MAX_ADDRESSES)]
    assert saved(tmp_path, best + others) == [*best, *others[: MAX_ADDRESSES - len(best)]]


def test_a_damaged_book_is_an_empty_one(tmp_path: Path) -> None:
    for damaged in (b"", b"{}", b"[" * 100_000, b'"text"', b"\xff"):
        (tmp_path / BOOK_NAME).write_bytes(damaged)
        assert read_book(tmp_path / BOOK_NAME) == []


def test_a_book_that_cannot_be_written_is_reported_once_from_trios_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BOOK_NAME).mkdir()
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    emitted: list[tuple[int, Event]] = []

    async def main() -> None:
        network: Any = Known(["/a"])
        book = AddressBook(tmp_path, ZERO_HASH, network, lambda event: emitted.append((get_ident(), event)))
        with trio.move_on_after(3 * SAVE_EVERY * REREAD_S):
            await book.keep()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    [(thread, notice)] = emitted
    assert thread == get_ident() and isinstance(notice, Notice)
    assert f"{tmp_path / BOOK_NAME} cannot be written" in notice.text
