"""Who has a place in the address book, and which of its addresses are kept on disk.  The clock is the test's."""

from __future__ import annotations

from protocol.transport.dialer import CLAIM_S, MAX_ADDRESSES_PER_PEER, MAX_KEPT, MAX_STRANGERS, SILENT, Attempt, Book
from protocol.wire.identity import PeerId
from tests.protocol.peers import TheseMembers

MEMBER, FRIEND, NEWCOMER = PeerId("member"), PeerId("friend"), PeerId("newcomer")


class Desk:
    """A book; `in_use`: the peers that are connected."""

    def __init__(self) -> None:
        self.in_use: set[PeerId] = set()
        self.book = Book(TheseMembers(MEMBER), lambda peer: peer in self.in_use)

    def claim(self, peer: PeerId, now: float = 0.0, number: int = 0) -> bool:
        """Whether it has an entry then."""
        self.book.add(peer, f"claimed {number}/{peer}", claimed=True, now=now)
        return peer in self.book

    def give(self, peer: PeerId, now: float = 0.0) -> bool:
        self.book.add(peer, f"given/{peer}", claimed=False, now=now)
        return peer in self.book

    def reach(self, peer: PeerId, now: float, number: int = 0) -> None:
        """Dialled at what it claims, it answers."""
        assert self.claim(peer, now, number)
        entry = self.book.get(peer)
        assert entry is not None
        entry.meet(now, f"claimed {number}/{peer}")

    def fail(self, peer: PeerId) -> None:
        """Dialled once, nobody answers."""
        entry = self.book.get(peer)
        assert entry is not None
        entry.tried = {address: Attempt(address, 1, SILENT) for address in entry.addresses}

    def crowd(self, count: int, now: float = 0.0) -> int:
        """So many keys claim addresses; how many have an entry then."""
        return sum(self.claim(PeerId(f"key {number}"), now) for number in range(count))


def test_free_keys_have_a_part_of_the_book_and_leave_the_rest_to_members_and_to_those_who_were_given() -> None:
    desk = Desk()
    assert desk.crowd(5000) == MAX_STRANGERS
    assert desk.claim(MEMBER) and desk.give(FRIEND) and not desk.claim(NEWCOMER)
    assert len(desk.book) == MAX_STRANGERS + 2


def test_a_stranger_that_does_not_answer_makes_room_at_once_and_loses_its_place_in_time() -> None:
    desk = Desk()
    desk.crowd(5000)
    desk.fail(PeerId("key 7"))
    assert desk.claim(NEWCOMER) and PeerId("key 7") not in desk.book
    desk.crowd(5000, now=CLAIM_S)  # they say it again and again
    desk.book.expire(CLAIM_S + 1)
    assert len(desk.book) == 0


def test_a_stranger_that_was_reached_or_is_connected_stays_until_it_was_away_for_long() -> None:
    desk = Desk()
    desk.in_use.add(FRIEND)
    assert desk.claim(FRIEND)
    desk.reach(NEWCOMER, 0.0)
    desk.crowd(5000)
    desk.book.expire(CLAIM_S + 1)
    assert FRIEND in desk.book and NEWCOMER in desk.book
    for number in range(MAX_STRANGERS):
        desk.claim(PeerId(f"late key {number}"), CLAIM_S + 1)
    assert FRIEND in desk.book and NEWCOMER not in desk.book, "whoever is away makes room when there is none left"


def test_a_member_keeps_its_place_and_of_the_others_the_least_recently_heard_of_makes_room() -> None:
    desk = Desk()
    desk.claim(MEMBER)
    for number in range(MAX_KEPT):
        assert desk.give(PeerId(f"given {number}"))
    assert MEMBER in desk.book and PeerId("given 0") not in desk.book and PeerId("given 1") in desk.book
    desk.book.expire(1e6)
    assert len(desk.book) == MAX_KEPT


def test_claims_about_a_peer_displace_no_address_at_which_it_was_reached() -> None:
    desk = Desk()
    desk.reach(FRIEND, 0.0)
    for number in range(1, 100):
        desk.claim(FRIEND, 0.0, number)
    entry = desk.book.get(FRIEND)
    assert entry is not None and len(entry.addresses) == MAX_ADDRESSES_PER_PEER
    assert "claimed 0/friend" in entry.addresses and next(iter(entry.addresses)) == "claimed 99/friend"


def test_what_only_strangers_claim_is_not_kept_and_what_was_reached_comes_first() -> None:
    desk = Desk()
    desk.crowd(100)
    desk.claim(MEMBER)
    desk.give(FRIEND)
    desk.reach(NEWCOMER, 0.0)
    assert desk.book.worth_keeping() == ["claimed 0/newcomer", "given/friend", "claimed 0/member"]
