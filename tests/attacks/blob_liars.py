"""Peers of a simulated swarm that lie about blobs: they claim to have all of each, and send other bytes, or nothing."""

from __future__ import annotations

import contextlib

import trio

from protocol.blobs.blob import Blob, BlobReply, BlobRequest, ChunkHeader, ChunksReply, ChunksRequest, to_bitmap
from protocol.transport.interface import Acceptance, Handlers, Landing, NetworkError
from protocol.wire.envelope import decode_body
from protocol.wire.identity import PeerId
from tests.simulation.seat import Seat
from tests.simulation.world import World


class Claimer:
    """Between the wire and a node: says that it has every chunk of a blob, and never sends one."""

    def __init__(self, world: World, seat: Seat, blob: Blob) -> None:
        assert seat.node is not None
        self._world, self._seat, self._node, self._blob = world, seat, seat.node, blob
        self._handlers: Handlers = seat.node.router
        self.asked = 0
        """Chunks that others wanted of it."""

    def has_member(self, peer: PeerId) -> bool:
        return self._handlers.has_member(peer)

    def has_allowance(self, peer: PeerId) -> bool:
        return self._handlers.has_allowance(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return self._handlers.on_gossip(forwarder, data)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "blob" and decode_body(BlobRequest, data).blob == self._blob.name:
            bitmap = to_bitmap(self._blob.all, len(self._blob))
            return BlobReply(chunks=bitmap, more=True, apart=False, neighbours=[]).encode()
        if kind == "want" and (wanted := decode_body(ChunksRequest, data)).blob == self._blob.name:
            self.asked += len(wanted.chunks)
            for chunk in wanted.chunks:
                self.promise(peer, chunk)
            return ChunksReply(chunks=[], busy=[]).encode()
        return await self._handlers.on_request(peer, kind, data)

    def promise(self, peer: PeerId, chunk: int) -> None:
        """What comes of a promise: nothing."""

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        return await self._handlers.open_push(peer, header, size)

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        await self._handlers.finish_push(peer, header, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        self._handlers.on_peer_connected(peer)

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self._handlers.on_peer_disconnected(peer)


class Corrupter(Claimer):
    """Sends zeros for every chunk."""

    def promise(self, peer: PeerId, chunk: int) -> None:
        header = ChunkHeader(blob=self._blob.name, chunk=chunk).encode()
        self._world.spawn(self._push, peer, header, bytes(self._blob.sizes[chunk]))

    async def _push(self, peer: PeerId, header: bytes, data: bytes) -> None:
        end = self._world.wire.end(self._seat.peer)
        await trio.lowlevel.checkpoint()
        if end is not None:
            with contextlib.suppress(NetworkError):
                await self._node._session.network.push(peer, header, memoryview(data), timeout_s=30.0)


def turn(world: World, seat: Seat, kind: type[Claimer], blob: Blob) -> Claimer:
    """From now on this peer lies about `blob`, until it is restarted."""
    end = world.wire.end(seat.peer)
    assert end is not None
    end.handlers = liar = kind(world, seat, blob)
    return liar
