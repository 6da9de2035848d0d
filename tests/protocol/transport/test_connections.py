"""Which peers count as connected, by connections that open and close.  The swarm is the test's, the clock a mock."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from protocol.transport.connections import Banned, Connected, Connections, Disconnected, Gone
from protocol.transport.inbound import InboundConnections
from protocol.transport.inbound_policy import InboundLimits
from protocol.transport.library import HostConnections, LibraryId, library_id
from protocol.transport.limits import ABUSE, Reputation
from protocol.wire.identity import Identity
from tests.protocol.peers import TheseMembers

pytestmark = pytest.mark.usefixtures("virtual_time")

PEER = Identity.generate().peer_id


class OneConnection:
    """As the library shows one; it is its own multiplexed connection."""

    def __init__(self, direction: str) -> None:
        self.direction, self.is_closed = direction, False

    @property
    def muxed_conn(self) -> OneConnection:
        return self

    @property
    def peer_id(self) -> LibraryId:
        return library_id(PEER)

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 1

    async def close(self) -> None:
        self.is_closed = True


class OnePeer:
    """A swarm with connections to one peer, and the bookkeeping over it."""

    def __init__(self) -> None:
        self.connections: dict[LibraryId, list[OneConnection]] = {library_id(PEER): []}
        self.reputation = Reputation(trio.current_time, lambda peer, why: None)
        self.inbound = InboundConnections(self.reputation, InboundLimits(), TheseMembers(), lambda event: None, {})
        self.book = Connections(cast(HostConnections, self), self.reputation, self.inbound)

    def open(self, direction: str) -> OneConnection:
        connection = OneConnection(direction)
        self.connections[library_id(PEER)].append(connection)
        return connection


async def test_a_peer_that_we_dialled_is_connected_until_its_last_connection_ends() -> None:
    swarm = OnePeer()
    first, second = swarm.open("outbound"), swarm.open("inbound")
    assert swarm.book.update(PEER) == [Connected()] and swarm.book.update(PEER) == []
    await trio.sleep(5)
    await first.close()
    assert swarm.book.update(PEER) == [] and swarm.book.peers() == [PEER]
    await second.close()
    assert swarm.book.update(PEER) == [Gone(), Disconnected(5.0)] and PEER not in swarm.book


async def test_a_stranger_is_connected_when_it_has_greeted() -> None:
    swarm = OnePeer()
    connection = swarm.open("inbound")
    assert swarm.book.update(PEER) == []
    swarm.inbound.welcome(PEER)
    assert swarm.book.update(PEER) == [Connected()]
    await swarm.book.close_all()
    assert connection.is_closed and swarm.book.update(PEER) == [Gone(), Disconnected(0.0)]
    swarm.inbound.revoke(PEER)
    swarm.open("inbound")
    assert swarm.book.update(PEER) == []


async def test_a_connection_of_unknown_direction_is_a_strangers() -> None:
    swarm = OnePeer()
    swarm.open("unknown")
    assert swarm.book.update(PEER) == []


async def test_a_banned_peer_is_to_be_disconnected_and_its_address_is_known() -> None:
    swarm = OnePeer()
    assert swarm.book.address_group_of(PEER) is None
    swarm.open("outbound")
    swarm.reputation.penalise(PEER, ABUSE, "bad")
    assert swarm.book.update(PEER) == [Banned()] and not swarm.book.peers()
    assert swarm.book.address_group_of(PEER) == "192.0.2.1"
