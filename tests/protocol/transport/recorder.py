"""Handlers that record, and networks on loopback, for the tests of the libp2p network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from protocol.transport.dialer import Attempt
from protocol.transport.inbound_policy import InboundLimits
from protocol.transport.interface import Acceptance, Landing, Network, NetworkError, Refused
from protocol.transport.network import Libp2pNetwork, NetworkSettings, Stack, open_network
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId

RUN: Hash = hash_bytes("manifest", b"a run of the tests")
LOOPBACK = NetworkSettings(listen_host="127.0.0.1")
PATIENCE_S = 300.0


class Recorder:
    """Keeps what arrives; `until` waits for a condition on it."""

    def __init__(self) -> None:
        self.gossip: list[bytes] = []
        self.members: set[PeerId] = set()
        self.connected: list[PeerId] = []
        self.disconnected: list[PeerId] = []
        self.buffers: dict[bytes, bytearray] = {}
        self.finished: list[tuple[bytes, bool]] = []
        self.acceptance: Callable[[bytes], Acceptance] = lambda data: Acceptance.ACCEPT
        self.answer: Callable[[str, bytes], Awaitable[bytes]] = _echo
        self.end: Network | None = None
        self.nursery: trio.Nursery | None = None
        self.greeted = trio.Event()
        """Somebody has answered our greeting."""
        self._changed = trio.Event()

    def changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self.next_change()

    async def next_change(self) -> None:
        await self._changed.wait()

    def has_member(self, peer: PeerId) -> bool:
        return peer in self.members

    def has_allowance(self, peer: PeerId) -> bool:
        return self.has_member(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        self.gossip.append(data)
        self.changed()
        return self.acceptance(data)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "hello" and self.end is not None:
            self.end.welcome(peer)
            return b""
        return await self.answer(kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        if header.startswith(b"no"):
            return None
        self.buffers[header] = bytearray(size)
        self.changed()
        return Landing(memoryview(self.buffers[header]))

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        self.finished.append((header, landing is not None))
        self.changed()

    def on_peer_connected(self, peer: PeerId) -> None:
        self.connected.append(peer)
        self.changed()
        if self.nursery is not None:
            self.nursery.start_soon(self.greet, peer)

    async def greet(self, peer: PeerId) -> None:
        """As a node does whenever it is connected."""
        try:
            assert self.end is not None
            await self.end.request(peer, "hello", b"", timeout_s=PATIENCE_S)
            self.greeted.set()
        except NetworkError:
            return  # gone again

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self.disconnected.append(peer)
        self.changed()


async def until(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    """Wait until this holds, of which no recorder is told."""
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)


async def _echo(kind: str, data: bytes) -> bytes:
    if kind == "no":
        raise Refused("not today")
    if kind == "wrong":
        raise RuntimeError("a mistake in the handler")
    if kind == "never":
        await trio.sleep_forever()
    return data


@asynccontextmanager
async def network(
    handlers: Recorder,
    identity: Identity | None = None,
    limits: InboundLimits = InboundLimits(),  # noqa: B008 - frozen
    host: str = LOOPBACK.listen_host,
    up_limit: float | None = None,
    down_limit: float | None = None,
    port: int = LOOPBACK.listen_port,
) -> AsyncIterator[Libp2pNetwork]:
    """A network on loopback, or at `host`, that greets every peer and admits every peer that greets."""
    me = identity or Identity.generate()
    how = replace(LOOPBACK, inbound=limits, listen_host=host, listen_port=port, up_limit=up_limit, down_limit=down_limit)
    async with trio.open_nursery() as nursery:
        async with open_network(me, RUN, handlers, how) as end:
            handlers.end, handlers.nursery = end, nursery
            yield end
        handlers.nursery = None
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pair(a: Recorder, b: Recorder) -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork]]:
    """Two networks on loopback that have greeted each other."""
    async with network(a) as one, network(b) as two:
        one.remember(two.addresses())
        await b.until(lambda: b.connected)
        await a.until(lambda: a.connected)
        yield one, two


def stack(end: Libp2pNetwork) -> Stack:
    """The parts of a started network."""
    assert end._stack is not None
    return end._stack


async def dialled(end: Libp2pNetwork, address: str) -> Attempt:
    """The result of the first attempt at an address."""
    end.remember([address])
    with trio.fail_after(PATIENCE_S):
        while not (found := [attempt for attempt in end.attempts() if attempt.address == address]):
            await trio.sleep(0.01)
    return found[0]
