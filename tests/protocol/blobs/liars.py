"""Peers of the swarm table that lie, each in its own way."""

from __future__ import annotations

from contextlib import suppress

import trio

from protocol.blobs.blob import (
    MAX_WANTED,
    BlobReply,
    ChunkHeader,
    ChunkNews,
    ChunksReply,
    ChunksRequest,
    to_bitmap,
)
from protocol.transport.interface import Landing, NetworkError
from protocol.wire.envelope import Body, decode_body
from protocol.wire.identity import PeerId
from tests.protocol.blobs.swarm_table import Peer


class Claimer(Peer):
    """Says that it has all, to everybody, and refuses what it is asked for."""

    asked = 0
    """Chunks that others wanted of it."""

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        count = len(self.table.blob)
        if kind == "blob":
            return BlobReply(chunks=to_bitmap(self.table.blob.all, count), more=True, apart=False, neighbours=[]).encode()
        if kind == "want":
            chunks = decode_body(ChunksRequest, data).chunks
            self.asked += len(chunks)
            return self.wanted(peer, chunks).encode()
        return b""

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        return ChunksReply(chunks=chunks, busy=[])


class Repeater(Claimer):
    """And says again and again that it has them."""

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        self.nursery.start_soon(self._again, peer, chunks)
        return ChunksReply(chunks=chunks, busy=[])

    async def _again(self, peer: PeerId, chunks: list[int]) -> None:
        await trio.sleep(0.1)
        await self.say(peer, "news", ChunkNews(blob=self.table.blob.name, chunks=chunks))

    async def say(self, peer: PeerId, kind: str, body: Body) -> None:
        with suppress(NetworkError):
            await self.network.request(peer, kind, body.encode(), timeout_s=5.0)


class Staller(Claimer):
    """Promises what it is asked for, and never sends it."""

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        return ChunksReply(chunks=[], busy=[])


class Beginner(Staller):
    """Begins to send what it is asked for, again and again, and breaks off each time."""

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        for chunk in chunks:
            self.nursery.start_soon(self._begin, peer, chunk)
        return super().wanted(peer, chunks)

    async def _begin(self, peer: PeerId, chunk: int) -> None:
        header = ChunkHeader(blob=self.table.blob.name, chunk=chunk).encode()
        while True:
            with suppress(NetworkError):
                await self.network.push(peer, header, memoryview(bytes(self.table.blob.sizes[chunk])), timeout_s=0.2)
            await trio.sleep(5.0)


class LastWithholder(Peer):
    """Serves everything but the last chunk, which it promises and never sends."""

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "want":
            chunks = decode_body(ChunksRequest, data).chunks
            if len(self.table.blob) - 1 in chunks:
                return ChunksReply(chunks=[], busy=[]).encode()
        return await super().on_request(peer, kind, data)


class AlwaysBusy(Claimer):
    """Has everything, and never any time."""

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        return ChunksReply(chunks=[], busy=chunks)


class Corrupter(Claimer):
    """Sends other bytes, as many as it is asked for.  sent: how many times."""

    sent = 0

    def wanted(self, peer: PeerId, chunks: list[int]) -> ChunksReply:
        for chunk in chunks:
            self.nursery.start_soon(self._push, peer, chunk)
        return ChunksReply(chunks=[], busy=[])

    async def _push(self, peer: PeerId, chunk: int) -> None:
        header = ChunkHeader(blob=self.table.blob.name, chunk=chunk).encode()
        try:
            await self.network.push(peer, header, memoryview(bytes(self.table.blob.sizes[chunk])), timeout_s=60.0)
            self.sent += 1
        except NetworkError:
            pass


class Swallower(Claimer):
    """Asks for everything, takes nothing: its pushes never end."""

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        await trio.sleep(600)
        return None

    async def beg(self, peers: list[Peer]) -> None:
        """Ask everybody for chunks all the time."""
        name, count = self.table.blob.name, len(self.table.blob)
        while True:
            for peer in peers:
                question = ChunksRequest(blob=name, chunks=self.table.random.sample(range(count), min(count, MAX_WANTED)))
                self.nursery.start_soon(Repeater.say, self, peer.id, "want", question)
            await trio.sleep(0.5)
