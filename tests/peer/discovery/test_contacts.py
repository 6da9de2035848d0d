"""What of the network's address book is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.discovery.contacts import BOOK_NAME, AddressBook, read_book
from peer.discovery.contacts import MAX_KEPT_ADDRESSES as MAX_ADDRESSES
from protocol.wire.hashes import ZERO_HASH


class Known:
    """Stands in for a network with these addresses, the best first."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def known_addresses(self) -> list[str]:
        return self.addresses


def saved(folder: Path, addresses: list[str]) -> list[str]:
    network: Any = Known(addresses)
    AddressBook(folder, ZERO_HASH, network, lambda event: None)._save()
    return read_book(folder / BOOK_NAME)


def test_of_too_many_addresses_the_best_are_kept_in_their_order(tmp_path: Path) -> None:
    best, others = ["/z", "/y", "/x"], [f"/a/{number}" for number in range(2 * MAX_ADDRESSES)]
    assert saved(tmp_path, best + others) == [*best, *others[: MAX_ADDRESSES - len(best)]]


def test_a_damaged_book_is_an_empty_one(tmp_path: Path) -> None:
    for damaged in (b"", b"{}", b"[" * 100_000, b'"text"', b"\xff"):
        (tmp_path / BOOK_NAME).write_bytes(damaged)
        assert read_book(tmp_path / BOOK_NAME) == []
