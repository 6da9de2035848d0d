"""When a peer in the address book is dialled.  The clock is a mock."""

from __future__ import annotations

from typing import cast

import trio
import trio.testing

from protocol.network.libp2p.dialer import LASTING_S, MAX_PAUSE_S, Dialer
from protocol.network.libp2p.library import Host
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers


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
            Identity.generate().peer_id,
            TheseMembers(),
            lambda peer: self.connected,
            lambda peer: False,
            lambda peer: None,
        )

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


def test_a_peer_that_soon_closes_is_dialled_ever_more_rarely() -> None:
    times = dials(10.0)
    assert len(times) < 3600 / MAX_PAUSE_S + 10
    assert times[1] - times[0] < 15, "once it may have been chance"


def test_a_connection_that_lasted_is_made_again_at_once() -> None:
    times = dials(LASTING_S)
    assert len(times) > 3600 / (LASTING_S + 3)
