"""When a peer in the address book is dialled.  The clock is a mock."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing
from libp2p.peer.peerinfo import PeerInfo

from protocol.transport.addresses import CircuitAddress
from protocol.transport.dialer import CLAIMS_OF_MEMBERS, CLAIMS_OF_STRANGERS, LASTING_S, MAX_PAUSE_S, Dialer
from protocol.transport.library import Host, LibraryId, library_id
from protocol.transport.rate_limit import Allowance
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.tiers import first_fast


async def no_relay(address: CircuitAddress) -> None:
    raise AssertionError("no address leads through a relay")


OURS = Identity.generate().peer_id


class Unwelcoming:
    """Stands in for a host: every dial connects, and the other end closes the connection `lasting_s` later."""

    def __init__(self, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self.dials: list[float] = []
        self.there = Identity.generate().peer_id
        self.connected = False
        self.connections: dict[object, object] = {}
        self.dialer = Dialer(
            cast(Host, self),
            TheseMembers(),
            lambda peer: self.connected,
            lambda peer: False,
            lambda peer: None,
            no_relay,
            lambda: [],
        )

    def get_id(self) -> LibraryId:
        return library_id(OURS)

    def get_network(self) -> Unwelcoming:
        return self

    def get_peerstore(self) -> Unwelcoming:
        return self

    def unblock_peer(self, peer: object) -> None:
        return

    def clear_addrs(self, peer: object) -> None:
        return

    async def connect(self, info: object) -> None:
        self.dials.append(trio.current_time())
        self.connected = True

    async def run(self, hours: float) -> None:
        self.dialer.remember([f"/ip4/127.0.0.1/tcp/1/p2p/{self.there}"])
        with trio.move_on_after(hours * 3600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dialer.run)
                while True:
                    await trio.sleep(self.lasting_s)
                    if self.connected:
                        self.connected = False
                        self.dialer.lost(PeerId(self.there), self.lasting_s)


def dials(lasting_s: float) -> list[float]:
    host = Unwelcoming(lasting_s)
    trio.run(host.run, 1.0, clock=trio.testing.MockClock(autojump_threshold=0))
    return host.dials


class Dark:
    """Stands in for a host: nobody answers.  dialled: when each peer was first dialled."""

    def __init__(self) -> None:
        self.dialled: dict[str, float] = {}
        self.connections: dict[object, object] = {}

    def get_id(self) -> LibraryId:
        return library_id(OURS)

    def get_network(self) -> Dark:
        return self

    def get_peerstore(self) -> Dark:
        return self

    def unblock_peer(self, peer: object) -> None:
        return

    def clear_addrs(self, peer: object) -> None:
        return

    async def connect(self, info: PeerInfo) -> None:
        self.dialled.setdefault(str(info.peer_id), trio.current_time())
        await trio.sleep_forever()


async def _redialled_after(crowd: int, is_member: bool) -> float:
    """Seconds until a lost peer is dialled again, when so many keys claim addresses at which nobody answers."""
    host, connected, lost = Dark(), set[PeerId](), Identity.generate().peer_id
    members, nobody = TheseMembers(*([lost] if is_member else [])), lambda peer: None
    dialer = Dialer(
        cast(Host, host),
        members,
        connected.__contains__,
        lambda peer: False,
        nobody,
        no_relay,
        lambda: [],
    )
    connected.add(lost)
    dialer.remember([f"/ip4/192.0.2.1/tcp/4001/p2p/{lost}"], claimed=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialer.run)
        for number in range(crowd):
            key = Identity.generate().peer_id
            dialer.remember([f"/ip4/198.51.100.{n}/tcp/{1024 + number}/p2p/{key}" for n in range(8)], claimed=True)
        assert len(dialer.attempts()) == 0 and not [a for a in dialer.known() if "198.51.100" in a]
        await trio.sleep(5.0)
        connected.discard(lost)
        dialer.lost(lost, 100.0)
        began = trio.current_time()
        while lost not in host.dialled:
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    return host.dialled[lost] - began


@pytest.mark.parametrize("is_member", [True, False])
def test_addresses_that_nobody_answers_do_not_delay_the_dialling_of_a_peer_that_was_met(is_member: bool) -> None:
    assert trio.run(_redialled_after, 400, is_member, clock=trio.testing.MockClock(autojump_threshold=0)) < 3


def test_a_peer_that_soon_closes_is_dialled_ever_more_rarely() -> None:
    times = dials(10.0)
    assert len(times) < 3600 / MAX_PAUSE_S + 10
    assert times[1] - times[0] < 15, "once it may have been chance"


def test_a_connection_that_lasted_is_made_again_at_once() -> None:
    times = dials(LASTING_S)
    assert len(times) > 3600 / (LASTING_S + 3)


class Refusing(Dark):
    """Stands in for a host: nothing listens where it dials."""

    def __init__(self) -> None:
        super().__init__()
        self.dials = 0

    async def connect(self, info: PeerInfo) -> None:
        self.dials += 1
        raise ConnectionRefusedError


def _dials(host: Refusing, *members: PeerId) -> Dialer:
    nobody, never = lambda peer: None, lambda peer: False
    return Dialer(cast(Host, host), TheseMembers(*members), never, never, nobody, no_relay, lambda: [])


async def _attempts_at_claims(seconds: int, member: bool) -> int:
    """How often a peer dials when another, or one key after the other, says every second that it is elsewhere now."""
    host, keys = Refusing(), [Identity.generate().peer_id for _ in range(1 if member else seconds)]
    dialer = _dials(host, *(keys if member else []))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialer.run)
        for second in range(seconds):
            claims = [f"/ip4/198.51.100.{n}/tcp/{1024 + second}/p2p/{keys[second % len(keys)]}" for n in range(100)]
            for each in range(0, 100, 8):
                dialer.remember(claims[each : each + 8], claimed=True)
                await trio.sleep(1 / 13)
        nursery.cancel_scope.cancel()
    return host.dials


@pytest.mark.parametrize(("member", "allowance"), first_fast([(False, CLAIMS_OF_STRANGERS), (True, CLAIMS_OF_MEMBERS)]))
def test_whoever_claims_addresses_cannot_have_us_dial_without_end(member: bool, allowance: Allowance) -> None:
    most = (300 + allowance.burst_s) * allowance.per_s
    dials = trio.run(_attempts_at_claims, 300, member, clock=trio.testing.MockClock(autojump_threshold=0))
    assert most / 2 < dials <= most + 1


def test_names_and_this_computer_are_not_dialled_because_others_say_so() -> None:
    async def main() -> None:
        dialer, key = _dials(Refusing()), Identity.generate().peer_id
        dialer._listening = lambda: [("192.0.2.1", 4001)]
        odd = [
            f"{at}/p2p/{key}" for at in ("/dns4/example.org/tcp/4001", "/ip4/127.0.0.1/tcp/6379", "/ip4/192.0.2.2/tcp/22")
        ]
        dialer.remember(odd, claimed=True)
        assert dialer._book.get(key) is None
        dialer.remember(odd)
        assert [*dialer._book.get(key).addresses] == odd[::-1]  # type: ignore[union-attr]

    trio.run(main)
