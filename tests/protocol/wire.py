"""Handlers that record, and networks on loopback, for the tests of the libp2p network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from protocol.hashes import Hash, hash_bytes
from protocol.identity import Identity, PeerId
from protocol.libp2p_network import Libp2pNetwork, open_network
from protocol.network import Landing, Refused, Verdict

RUN: Hash = hash_bytes("manifest", b"a run of the tests")
PATIENCE_S = 300.0


class Recorder:
    """Keeps what arrives; `until` waits for a condition on it."""

    def __init__(self) -> None:
        self.gossip: list[bytes] = []
        self.connected: list[PeerId] = []
        self.disconnected: list[PeerId] = []
        self.buffers: dict[bytes, bytearray] = {}
        self.finished: list[tuple[bytes, bool]] = []
        self.verdict: Callable[[bytes], Verdict] = lambda data: Verdict.ACCEPT
        self.answer: Callable[[str, bytes], Awaitable[bytes]] = _echo
        self._changed = trio.Event()

    def changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        self.gossip.append(data)
        self.changed()
        return self.verdict(data)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
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

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self.disconnected.append(peer)
        self.changed()


async def _echo(kind: str, data: bytes) -> bytes:
    if kind == "no":
        raise Refused("not today")
    if kind == "wrong":
        raise RuntimeError("a mistake in the handler")
    if kind == "never":
        await trio.sleep_forever()
    return data


def network(handlers: Recorder, identity: Identity | None = None) -> AbstractAsyncContextManager[Libp2pNetwork]:
    return open_network(
        identity or Identity.generate(), RUN, handlers, listen_host="127.0.0.1", mdns=False
    )
