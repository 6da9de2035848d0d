"""When a peer in the address book is dialled, and who has a place there.  The clock is a mock, or the test's."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import pytest
import trio
from libp2p.peer.peerinfo import PeerInfo

from protocol.transport.addresses import CircuitAddress
from protocol.transport.dialer import (
    CLAIM_S,
    CLAIMS_OF_MEMBERS,
    CLAIMS_OF_STRANGERS,
    LASTING_S,
    MAX_ADDRESSES_PER_PEER,
    MAX_KEPT,
    MAX_PAUSE_S,
    MAX_STRANGERS,
    SILENT,
    Attempt,
    Book,
    Dialer,
)
from protocol.transport.library import Host, LibraryId, library_id
from protocol.transport.limits import Allowance
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers


async def no_relay(address: CircuitAddress) -> None:
    raise AssertionError("no address leads through a relay")


OURS, PEER = (Identity.generate().peer_id for _ in range(2))
pytestmark = pytest.mark.usefixtures("virtual_time")


class StandInHost:
    """In place of a host, its swarm and its peer store; nobody answers, unless a subclass says otherwise.

    dialled: the times at which each peer was dialled.
    """

    def __init__(self, *members: PeerId) -> None:
        self.dialled = defaultdict[str, list[float]](list)
        self.connections: dict[object, object] = {}
        self.connected: set[PeerId] = set()
        self.dialer = Dialer(
            cast(Host, self),
            TheseMembers(*members),
            self.connected.__contains__,
            lambda peer: False,
            lambda peer: None,
            no_relay,
            lambda: [],
        )

    def get_id(self) -> LibraryId:
        return library_id(OURS)

    def get_network(self) -> StandInHost:
        return self

    get_peerstore = get_network

    def unblock_peer(self, peer: object) -> None:
        return

    clear_addrs = unblock_peer

    async def connect(self, info: PeerInfo) -> None:
        self.dialled[str(info.peer_id)].append(trio.current_time())
        await self.answer()

    async def answer(self) -> None:
        await trio.sleep_forever()


class Unwelcoming(StandInHost):
    """Every dial connects, and the other end closes the connection `lasting_s` later."""

    async def answer(self) -> None:
        await trio.lowlevel.checkpoint()
        self.connected.add(PEER)

    async def dials(self, lasting_s: float, hours: float) -> list[float]:
        self.dialer.remember([f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"])
        with trio.move_on_after(hours * 3600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dialer.run)
                while True:
                    await trio.sleep(lasting_s)
                    if PEER in self.connected:
                        self.connected.discard(PEER)
                        self.dialer.lost(PEER, lasting_s)
        return self.dialled[PEER]


class Refusing(StandInHost):
    """Nothing listens where it dials."""

    async def answer(self) -> None:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError


@pytest.mark.slow
@pytest.mark.parametrize("is_member", [True, False])
async def test_addresses_that_nobody_answers_do_not_delay_the_dialling_of_a_peer_that_was_met(is_member: bool) -> None:
    """400 keys claim such addresses."""
    host = StandInHost(*([PEER] if is_member else []))
    dialer = host.dialer
    host.connected.add(PEER)
    dialer.remember([f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"], claimed=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialer.run)
        for number in range(400):
            key = Identity.generate().peer_id
            dialer.remember([f"/ip4/198.51.100.{n}/tcp/{1024 + number}/p2p/{key}" for n in range(8)], claimed=True)
        assert len(dialer.attempts()) == 0 and not [a for a in dialer.known() if "198.51.100" in a]
        await trio.sleep(5.0)
        host.connected.discard(PEER)
        dialer.lost(PEER, 100.0)
        began = trio.current_time()
        while PEER not in host.dialled:
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert host.dialled[PEER][0] - began < 3


async def test_a_peer_that_soon_closes_is_dialled_ever_more_rarely_and_one_that_lasts_at_once() -> None:
    times = await Unwelcoming().dials(10.0, hours=1)
    assert len(times) < 3600 / MAX_PAUSE_S + 10
    assert times[1] - times[0] < 15, "once it may have been chance"
    assert len(await Unwelcoming().dials(LASTING_S, hours=1)) > 3600 / (LASTING_S + 3)


@pytest.mark.slow
@pytest.mark.parametrize(("member", "allowance"), [(False, CLAIMS_OF_STRANGERS), (True, CLAIMS_OF_MEMBERS)])
async def test_whoever_claims_addresses_cannot_have_us_dial_without_end(member: bool, allowance: Allowance) -> None:
    """Another peer, or one key after the other, says every second that it is elsewhere now."""
    seconds = 300
    keys = [Identity.generate().peer_id for _ in range(1 if member else seconds)]
    host = Refusing(*(keys if member else []))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.dialer.run)
        for second in range(seconds):
            claims = [f"/ip4/198.51.100.{n}/tcp/{1024 + second}/p2p/{keys[second % len(keys)]}" for n in range(100)]
            for each in range(0, 100, 8):
                host.dialer.remember(claims[each : each + 8], claimed=True)
                await trio.sleep(1 / 13)
        nursery.cancel_scope.cancel()
    most = (seconds + allowance.burst_s) * allowance.per_s
    assert most / 2 < sum(map(len, host.dialled.values())) <= most + 1


async def test_names_and_this_computer_are_not_dialled_because_others_say_so() -> None:
    dialer = Refusing().dialer
    dialer._listening = lambda: [("192.0.2.1", 4001)]
    odd = [f"{at}/p2p/{PEER}" for at in ("/dns4/example.org/tcp/4001", "/ip4/127.0.0.1/tcp/6379", "/ip4/192.0.2.2/tcp/22")]
    dialer.remember(odd, claimed=True)
    assert dialer._book.get(PEER) is None
    dialer.remember(odd)
    assert [*dialer._book.get(PEER).addresses] == odd[::-1]  # type: ignore[union-attr]


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


@pytest.mark.slow
def test_free_keys_have_a_part_of_the_book_and_leave_the_rest_to_members_and_to_those_who_were_given() -> None:
    desk = Desk()
    assert desk.crowd(5000) == MAX_STRANGERS
    assert desk.claim(MEMBER) and desk.give(FRIEND) and not desk.claim(NEWCOMER)
    assert len(desk.book) == MAX_STRANGERS + 2


@pytest.mark.slow
def test_a_stranger_that_does_not_answer_makes_room_at_once_and_loses_its_place_in_time() -> None:
    desk = Desk()
    desk.crowd(5000)
    desk.fail(PeerId("key 7"))
    assert desk.claim(NEWCOMER) and PeerId("key 7") not in desk.book
    desk.crowd(5000, now=CLAIM_S)  # they say it again and again
    desk.book.expire(CLAIM_S + 1)
    assert len(desk.book) == 0


@pytest.mark.slow
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
