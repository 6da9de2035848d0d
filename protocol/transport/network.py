"""`Libp2pNetwork`: `protocol.transport.interface.Network` on real sockets.  It starts a `stack` and calls its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from protocol.events.events import Event
from protocol.short_id import short_id
from protocol.transport.attempts import Attempt
from protocol.transport.host import claim_port, stop_listening
from protocol.transport.interface import Bandwidth, Handlers, NetworkError, Traffic, Unreachable, nothing
from protocol.transport.library import TaskStatus
from protocol.transport.nat.reachability import Reachability
from protocol.transport.own_addresses import OwnAddresses
from protocol.transport.settings import NetworkSettings
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

if TYPE_CHECKING:
    from protocol.transport.stack import Stack

CLOSE_S = 2.0


class Libp2pNetwork:
    """One peer's end of the network.  Start it with `await nursery.start(network.run)`, end it with `close`.

    own: its addresses.  emit: takes `PeerBanned`, `StrangersClosed`, `Dropped`, `LinkChanged` and `ReachabilityChanged`.

    See also `open_network`.
    """

    def __init__(
        self,
        identity: Identity,
        run: Hash,
        handlers: Handlers,
        settings: NetworkSettings,
        *,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._identity, self._run, self._handlers = identity, run, handlers
        self._settings, self._emit = settings, emit
        self._early_addresses: list[str] = []
        self._scope = trio.CancelScope(shield=True)
        self._stack: Stack | None = None
        self.own = OwnAddresses(
            identity.peer_id,
            settings.listen_host,
            settings.listen_port,
            settings.announce,
            reached=lambda: self.reachability().reached,
            circuits=lambda: self._stack.traversal.circuits.addresses(self.peer_id) if self._stack is not None else (),
            on_mapped=lambda: self._stack.inquiry.look_again() if self._stack is not None else None,
        )

    async def run(self, *, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `close`, even if cancelled: the library closes its sockets only while its tasks still run.

        Raises `PortBusy` or `NetworkError` if it cannot listen.
        """
        with self._scope:
            host = self._settings.listen_host
            self.own.port = claim_port(host, self.own.port)
            from protocol.transport.stack import Stack

            self._stack = Stack(
                self._identity, self._run, self._handlers, self._settings, self._emit, self.own.ports, self.own.ends
            )
            self._stack.dialer.remember(self._early_addresses)
            discover = self._settings.discover
            if discover is not None:
                discover = partial(discover, self._run, self.peer_id, self.own.nearby)
            await self._stack.run(host, self.own.port, discover, task_status=task_status)

    async def close(self) -> None:
        """Stop listening, close all connections, and end, within `CLOSE_S`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            if self._stack is not None:
                await stop_listening(self._stack.host)
                await self._stack.connections.close_all()
        self._scope.cancel()

    @property
    def peer_id(self) -> PeerId:
        """Our peer ID."""
        return self._identity.peer_id

    def addresses(self) -> Sequence[str]:
        """Return the multiaddrs that others can dial, each ending in /p2p/<peer ID>."""
        return self.own.all()

    def reached_here(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Return our addresses at which others reach us, first those that our owner names.

        counts: returns True if a peer's claim about them counts.
        """
        observed = self._stack.observed.addresses(counts) if self._stack is not None else []
        here = dict.fromkeys([*self._settings.announce, *self.reachability().reached, *observed])
        return [f"{address}/p2p/{self.peer_id}" for address in here]

    def reachability(self) -> Reachability:
        """Return the verdicts on our addresses, as far as other peers were asked to dial them."""
        return self._stack.inquiry.now if self._stack is not None else Reachability({})

    async def ask_reachability(self) -> None:
        """Ask some peers now to dial us.  Takes seconds."""
        if self._stack is not None:
            await self._stack.inquiry.inquire()

    def reached_there(self) -> list[str]:
        """Return the addresses of others at which we have reached them."""
        return self._stack.dialer.reached() if self._stack is not None else []

    def attempts(self) -> list[Attempt]:
        """Return the last attempt to dial each address."""
        return self._stack.dialer.attempts() if self._stack is not None else []

    async def answers(self, address: str) -> bool:
        """Dial this address and return True if its peer answers there now, even if it is connected otherwise."""
        return self._stack is not None and await self._stack.dialer.answers(address)

    def connected(self) -> Sequence[PeerId]:
        """Return the peers that we reached or that have greeted us."""
        return self._stack.connections.peers() if self._stack is not None else []

    def link(self, peer: PeerId) -> str:
        """Return the kind of a peer's connection: direct, reversed, punched or relayed; empty if it is not connected."""
        return self._stack.link(peer) if self._stack is not None else ""

    def welcome(self, peer: PeerId) -> None:
        """Treat `peer` as no stranger on all its connections, as it has greeted us and takes part."""
        if self._stack is not None:
            self._stack.welcome(peer)

    def traffic(self) -> Traffic:
        """Return the payload moved since the start over all channels."""
        return self._stack.traffic() if self._stack is not None else Traffic(0, 0)

    def line_bytes(self) -> int:
        """Return the bytes that our line carried since the start, both directions together, with headers of full packets."""
        return self._stack.line_bytes() if self._stack is not None else 0

    def limit(self, up: float | None, down: float | None) -> None:
        """Limit each direction from now on (bytes a second, None for no limit)."""
        self._settings = replace(self._settings, up_limit=up, down_limit=down)
        if self._stack is not None:
            self._stack.limit(up, down)

    def bandwidth(self) -> Bandwidth:
        """Return the measured or allowed rates of our links."""
        return self._stack.bandwidth() if self._stack is not None else Bandwidth(0.0, 0.0)

    def is_moving(self) -> bool:
        """Return True if our own address is gone and we are connecting anew."""
        return self._stack is not None and self._stack.dead_ends.is_moving

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Dial these addresses while their peer is not connected, with backoff.  claimed: other peers name them."""
        if self._stack is not None:
            self._stack.dialer.remember(addresses, claimed=claimed)
        elif not claimed:
            self._early_addresses.extend(addresses)

    def known_addresses(self) -> Sequence[str]:
        """Return the addresses that are worth keeping on disk, the best first."""
        return list(self._early_addresses) if self._stack is None else self._stack.dialer.known()

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer and do not dial it again."""
        if self._stack is not None:
            self._stack.forget(peer)

    async def publish(self, data: bytes) -> None:
        """Gossip an envelope.  Raises `NetworkError` before the start, or if it is larger than MAX_GOSSIP_BYTES."""
        if self._stack is None:
            raise NetworkError("the network has not started")
        await self._stack.gossip.publish(data)

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask a connected peer and return its answer.  Raises `Unreachable` or `Refused`."""
        if self._stack is None:
            raise Unreachable(f"{short_id(peer)} is not connected")
        return await self._stack.request(peer, kind, data, timeout_s)

    async def push(
        self,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        *,
        timeout_s: float,
        spare: bool = False,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Send `data` into the buffer that `peer` names for `header`.  Raises `Unreachable` or `Refused`."""
        if self._stack is None:
            raise Unreachable(f"{short_id(peer)} is not connected")
        await self._stack.push(peer, header, data, timeout_s, spare=spare, on_sent=on_sent)


@asynccontextmanager
async def open_network(
    identity: Identity,
    run: Hash,
    handlers: Handlers,
    settings: NetworkSettings,
    *,
    emit: Callable[[Event], None] = lambda event: None,
) -> AsyncIterator[Libp2pNetwork]:
    """Run a `Libp2pNetwork` during the block.  Raises `PortBusy` or `NetworkError` if it cannot listen."""
    network = Libp2pNetwork(identity, run, handlers, settings, emit=emit)
    claim_port(settings.listen_host, settings.listen_port)  # here, so that `PortBusy` comes out bare and not in a group
    async with trio.open_nursery() as nursery:
        try:
            with trio.CancelScope(shield=True):  # if cancelled here, it would run on, shielded, and nothing could close it
                await nursery.start(network.run)
            yield network
        finally:
            await network.close()
