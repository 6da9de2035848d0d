"""A peer of `benchmarks.broadcast_faults` that lies: it claims to have the whole blob, and gives none of it.

claims    refuses each request stalls    promises the chunks, and sends nothing corrupts  sends other bytes
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import trio

from benchmarks.broadcast_member import Peer, main
from protocol.blobs.blob import BlobReply, BlobRequest, ChunkHeader, ChunksReply, ChunksRequest, to_bitmap
from protocol.transport.interface import NetworkError
from protocol.transport.network import Libp2pNetwork
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

AGAIN_S = 1.0


class Liar(Peer):
    """A lying peer.  asked: the number of chunks that others wanted of it."""

    def __init__(self, size: int, chunk: int, kind: str) -> None:
        super().__init__(size, chunk)
        self.kind, self.asked = kind, 0
        self.count = -(-self.size // self.chunk)
        self.network: Libp2pNetwork | None = None
        self.nursery: trio.Nursery | None = None

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "blob":
            all_ = to_bitmap((1 << self.count) - 1, self.count)
            return BlobReply(chunks=all_, more=True, apart=False, neighbours=[]).encode()
        if kind != "want":
            return b""
        wanted = decode_body(ChunksRequest, data)
        self.asked += len(wanted.chunks)
        if self.kind == "corrupts" and self.nursery is not None:
            for chunk in wanted.chunks:
                self.nursery.start_soon(self._push_other_bytes, peer, Hash(wanted.blob), chunk)
        return ChunksReply(chunks=wanted.chunks if self.kind == "claims" else [], busy=[]).encode()

    async def _push_other_bytes(self, peer: PeerId, name: Hash, chunk: int) -> None:
        assert self.network is not None
        size = min(self.chunk, self.size - chunk * self.chunk)
        with suppress(NetworkError):
            header = ChunkHeader(blob=name, chunk=chunk).encode()
            await self.network.push(peer, header, memoryview(bytes(size)), timeout_s=60.0)

    async def lie(self, network: Libp2pNetwork, name: Hash) -> None:
        """Ask all peers for the blob all the time, so that all of them ask us, and the origin shows us chunks."""
        async with trio.open_nursery() as self.nursery:
            self.network = network
            while True:
                for peer in network.connected():
                    self.nursery.start_soon(self._ask, peer, BlobRequest(blob=name, chunks=bytes(-(-self.count // 8))))
                await trio.sleep(AGAIN_S)

    async def _ask(self, peer: PeerId, question: BlobRequest) -> None:
        assert self.network is not None
        with suppress(NetworkError):
            await self.network.request(peer, "blob", question.encode(), timeout_s=10.0)

    async def obey(self, network: Libp2pNetwork, words: dict[str, Any], nursery: trio.Nursery) -> dict[str, Any]:
        if words["do"] == "fetch":
            nursery.start_soon(self.lie, network, Hash(bytes.fromhex(words["name"])))
        return {"asked": self.asked}


if __name__ == "__main__":
    trio.run(main, Liar(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
