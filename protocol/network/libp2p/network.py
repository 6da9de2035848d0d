"""`Libp2pNetwork`: the parts of this folder put together behind `protocol.network.interface.Network`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from protocol.events import StrangersClosed
from protocol.network.interface import Bandwidth, Handlers, NetworkError, Traffic, Unreachable
from protocol.network.libp2p.attempts import Attempt
from protocol.network.libp2p.conduct import Conduct
from protocol.network.libp2p.door import Door, neighbourhood
from protocol.network.libp2p.guard import Bounds
from protocol.network.libp2p.host import PortBusy, ask_who, claim_port, forget, interface_addresses, new_host
from protocol.network.libp2p.reached import ReachedBy
from protocol.network.libp2p.visitors import Places
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

if TYPE_CHECKING:
    from protocol.network.libp2p.bulk import Bulk
    from protocol.network.libp2p.dialer import Dialer
    from protocol.network.libp2p.gossip import Gossip
    from protocol.network.libp2p.requests import Requests

__all__ = ["Libp2pNetwork", "PortBusy", "open_network"]

CLOSE_S = 2.0
ENOUGH_PEERS = 512
"""With so many connected nobody more is dialled."""

log = logging.getLogger(__name__)


class Libp2pNetwork:
    """One peer's end of the network; `await nursery.start(network.run)`, stops with `close`.  See `open_network`."""

    def __init__(
        self,
        identity: Identity,
        run: Hash,
        handlers: Handlers,
        *,
        listen_host: str = "0.0.0.0",
        listen_port: int = 0,
        mdns: bool = True,
        up_limit: float | None = None,
        down_limit: float | None = None,
        on_ban: Callable[[PeerId, str], None] = lambda peer, why: None,
        on_strangers: Callable[[StrangersClosed], None] = lambda event: None,
        places: Places = Places(),  # noqa: B008 - frozen
    ) -> None:
        """`up_limit`, `down_limit`: bytes a second in all, of which pushes get what the rest leaves; None for no limit.

          `on_ban`: told why.  `on_strangers`: told of connections that were closed, in sums.  `places`: for connections
          from outside."""
        self._identity = identity
        self._run = run
        self._handlers = handlers
        self._listen_host = listen_host
        self._listen_port = listen_port
        self._mdns = mdns
        self._up_limit, self._down_limit = up_limit, down_limit
        self._on_ban = on_ban
        self._conduct = Conduct(trio.current_time, self._ban, self._address_of)
        self._reached_by = ReachedBy()
        self._bounds = Bounds(self._conduct)
        self._door = Door(self._conduct, places, on_strangers)
        self._connected: dict[PeerId, float] = {}
        """Since when, for who is no stranger."""
        self._early_addresses: list[str] = []
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope(shield=True)
        self._host: Any = None
        self._gossip: Gossip | None = None
        self._requests: Requests | None = None
        self._bulk: Bulk | None = None
        self._dialer: Dialer | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`, and not before: the library closes its sockets only while its tasks still run.

        Raises `PortBusy` or `NetworkError` when it cannot listen.
        """
        with self._scope:
            await self._live(task_status)

    async def close(self) -> None:
        """Close all connections, as far as that goes within `CLOSE_S`, and end."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            async with trio.open_nursery() as nursery:
                for connections in list(self._host.get_network().connections.values()) if self._host else []:
                    for connection in list(connections):
                        nursery.start_soon(_close, connection)
        self._scope.cancel()

    async def _live(self, task_status: Any) -> None:
        self._listen_port = claim_port(self._listen_host, self._listen_port)
        from multiaddr import Multiaddr

        from protocol.network.libp2p.bulk import Bulk
        from protocol.network.libp2p.dialer import Dialer
        from protocol.network.libp2p.gossip import Gossip
        from protocol.network.libp2p.rates import RateLimit
        from protocol.network.libp2p.requests import Requests

        self._host = new_host(self._identity, self._conduct, self._bounds)
        self._reached_by.watch(self._host)
        self._requests = Requests(self._host, self._run, self._handlers, self._conduct, self._on_foreign)
        self._gossip = Gossip(self._host, self._run, self._handlers, self._conduct)
        self._bulk = Bulk(self._host, self._run, self._handlers, self._conduct, self._listen_host,
                          RateLimit(self._up_limit, lambda: self._control_traffic().up_bytes),
                          RateLimit(self._down_limit, lambda: self._control_traffic().down_bytes))
        self._dialer = Dialer(self._host, self.peer_id, self._leave_alone, self._conduct.is_banned, self.welcome)
        self._host.get_network().register_notifee(_watcher(self))
        self._door.attach(self._host.get_network())
        async with AsyncExitStack() as stack:
            where = Multiaddr(f"/ip4/{self._listen_host}/tcp/{self._listen_port}")
            await stack.enter_async_context(self._host.run([where]))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._door.run)
                await nursery.start(self._bulk.run)
                await self._gossip.start(stack, nursery)
                self._dialer.remember(self._early_addresses)
                nursery.start_soon(self._dialer.run)
                if self._mdns:
                    from protocol.network.libp2p.discovery import discover

                    nursery.start_soon(discover, self._run, self.peer_id, self.addresses(), self.remember)
                task_status.started()

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    def addresses(self) -> Sequence[str]:
        hosts = interface_addresses() if self._listen_host == "0.0.0.0" else [self._listen_host]
        return [f"/ip4/{host}/tcp/{self._listen_port}/p2p/{self.peer_id}" for host in hosts]

    def reached_here(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Our addresses by which others have reached us; `counts`: whose word about them counts."""
        return [f"{address}/p2p/{self.peer_id}" for address in self._reached_by.addresses(counts)]

    def reached_there(self) -> list[str]:
        """Addresses of others by which we have reached them."""
        return self._dialer.reached() if self._dialer is not None else []

    def attempts(self) -> list[Attempt]:
        """What came of the addresses that were dialled."""
        return self._dialer.attempts() if self._dialer is not None else []

    async def answers(self, address: str) -> bool:
        """Whether the peer of this address answers there now; we may be connected to it otherwise."""
        return self._dialer is not None and await self._dialer.answers(address)

    def connected(self) -> Sequence[PeerId]:
        return list(self._connected)

    def welcome(self, peer: PeerId) -> None:
        from libp2p.peer.id import ID

        if not self._conduct.is_banned(peer):
            self._door.welcome(peer)
            self._connections_changed(peer, ID.from_string(peer))

    def traffic(self) -> Traffic:
        parts = [part for part in (self._requests, self._gossip, self._bulk) if part is not None]
        return Traffic(sum(part.up_bytes for part in parts), sum(part.down_bytes for part in parts))

    def _control_traffic(self) -> Traffic:
        parts = [part for part in (self._requests, self._gossip) if part is not None]
        return Traffic(sum(part.up_bytes for part in parts), sum(part.down_bytes for part in parts))

    def bandwidth(self) -> Bandwidth:
        return self._bulk.bandwidth() if self._bulk is not None else Bandwidth(0.0, 0.0)

    def remember(self, addresses: Sequence[str]) -> None:
        if self._dialer is None:
            self._early_addresses.extend(addresses)
        else:
            self._dialer.remember(addresses)

    def known_addresses(self) -> Sequence[str]:
        return list(self._early_addresses) if self._dialer is None else self._dialer.known()

    def forget(self, peer: PeerId) -> None:
        if self._dialer is not None and self._nursery is not None:
            self._dialer.forget(peer)
            self._door.unwelcome(peer)
            self._nursery.start_soon(self._disconnect, peer)

    async def publish(self, data: bytes) -> None:
        if self._gossip is None:
            raise NetworkError("the network has not started")
        await self._gossip.publish(data)

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        if self._requests is None or peer not in self._connected:
            raise Unreachable(f"{peer} is not connected")
        return await self._requests.ask(peer, kind, data, timeout_s)

    async def push(self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float) -> None:
        if self._bulk is None or peer not in self._connected:
            raise Unreachable(f"{peer} is not connected")
        await self._bulk.push(peer, header, data, timeout_s)

    def _leave_alone(self, peer: PeerId) -> bool:
        """Whether the dialer has nothing to do about a peer."""
        return peer in self._connected or self._conduct.is_banned(peer) or len(self._connected) >= ENOUGH_PEERS

    def _on_foreign(self, peer: PeerId) -> None:
        if self._dialer is not None:
            self._dialer.on_foreign(peer)

    def _address_of(self, peer: PeerId) -> str | None:
        """The address that a peer is connected from, as the door counts them."""
        from libp2p.peer.id import ID

        for connection in self._host.get_network().connections.get(ID.from_string(peer), []):
            address = connection.muxed_conn.get_remote_address()
            if address is not None:
                return neighbourhood(address)
        return None

    def _ban(self, peer: PeerId, why: str) -> None:
        """By `Conduct`: out with it, now and for a while."""
        log.warning("banned %s: %s", peer, why)
        self._on_ban(peer, why)
        self._door.unwelcome(peer)
        if self._bulk is not None and self._nursery is not None:
            self._bulk.disconnected(peer)
            self._bulk.cut_off(peer)
            self._nursery.start_soon(self._disconnect, peer)

    async def _disconnect(self, peer: PeerId) -> None:
        from libp2p.peer.id import ID

        try:
            await self._host.disconnect(ID.from_string(peer))
        except Exception as error:  # noqa: BLE001 - the connection may be closing already
            log.debug("disconnecting %s: %r", peer, error)

    def _connections_changed(self, peer: PeerId, identity: Any) -> None:
        """Called after each connection opened or closed, and after a welcome; there can be several to one peer."""
        from libp2p.rcmgr import Direction

        connections = self._host.get_network().connections.get(identity, [])
        alive = [connection for connection in connections if not connection.is_closed]
        ours = any(connection.direction is Direction.OUTBOUND for connection in alive)
        is_connected = bool(alive) and (ours or peer in self._connected or self._door.is_welcome(peer))
        if self._nursery is None or self._gossip is None:
            return
        if not alive:
            self._bounds.disconnected(peer)
            forget(self._host, identity)
            self._nursery.start_soon(self._gossip.lost, identity)
        if alive and self._conduct.is_banned(peer):
            self._nursery.start_soon(self._disconnect, peer)
        elif is_connected and peer not in self._connected:
            self._connected[peer] = trio.current_time()
            ask_who(self._host, identity)
            self._nursery.start_soon(self._gossip.met, identity)
            self._handlers.on_peer_connected(peer)
        elif not is_connected and peer in self._connected:
            since = self._connected.pop(peer)
            assert self._bulk is not None and self._dialer is not None
            self._bulk.disconnected(peer)
            self._dialer.lost(peer, trio.current_time() - since)
            self._handlers.on_peer_disconnected(peer)


def _watcher(network: Libp2pNetwork) -> Any:
    """A libp2p notifee; made here because its base class is heavy to import."""
    from libp2p.abc import INotifee

    class Watcher(INotifee):
        async def connected(self, swarm: Any, conn: Any) -> None:
            network._reached_by.on_connection(conn)
            self._look(conn)

        async def disconnected(self, swarm: Any, conn: Any) -> None:
            self._look(conn)

        def _look(self, conn: Any) -> None:
            identity = conn.muxed_conn.peer_id
            network._connections_changed(PeerId(identity.to_base58()), identity)

        async def opened_stream(self, swarm: Any, stream: Any) -> None:
            return

        async def closed_stream(self, swarm: Any, stream: Any) -> None:
            return

        async def listen(self, swarm: Any, multiaddr: Any) -> None:
            return

        async def listen_close(self, swarm: Any, multiaddr: Any) -> None:
            return

    return Watcher()


@asynccontextmanager
async def open_network(
    identity: Identity,
    run: Hash,
    handlers: Handlers,
    *,
    listen_host: str = "0.0.0.0",
    listen_port: int = 0,
    mdns: bool = True,
    up_limit: float | None = None,
    down_limit: float | None = None,
    on_ban: Callable[[PeerId, str], None] = lambda peer, why: None,
    on_strangers: Callable[[StrangersClosed], None] = lambda event: None,
    places: Places = Places(),  # noqa: B008 - frozen
) -> AsyncIterator[Libp2pNetwork]:
    """A running network for the length of the block."""
    network = Libp2pNetwork(
        identity, run, handlers, listen_host=listen_host, listen_port=listen_port, mdns=mdns, up_limit=up_limit,
        down_limit=down_limit, on_ban=on_ban, on_strangers=on_strangers, places=places,
    )
    claim_port(listen_host, listen_port)  # here, so that `PortBusy` comes out bare and not in a group
    async with trio.open_nursery() as nursery:
        try:
            with trio.CancelScope(shield=True):  # cancelled here, it would run on shielded, and nobody could close it
                await nursery.start(network.run)
            yield network
        finally:
            await network.close()


async def _close(connection: Any) -> None:
    try:
        await connection.close()
    except Exception as error:  # noqa: BLE001 - the connection may be closing already
        log.debug("closing a connection: %r", error)
