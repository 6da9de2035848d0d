"""One peer of `benchmarks.broadcast`: obeys JSON lines on standard input."""

from __future__ import annotations

import mmap
import os
import sys
import time
from dataclasses import dataclass

import trio

from benchmarks.json_lines import hear, say
from protocol.content.blob import Blob
from protocol.content.messages import QUESTIONS, LeavesRequest, read_chunk_header
from protocol.content.replica_shelf import WholeBlob
from protocol.content.shelf import Held
from protocol.content.swarm import Swarm
from protocol.network.interface import Acceptance, Landing, Refused
from protocol.network.libp2p import Libp2pNetwork, NetworkSettings
from protocol.network.session import Session
from protocol.wire.body import decode_body
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.questions import LeavesReply

RUN = Hash(b"\x06" * 32)


@dataclass
class Blobs:
    """A `protocol.content.shelf.Shelf` in memory."""

    held: dict[Hash, WholeBlob]

    def find(self, name: Hash) -> Held | None:
        return self.held.get(name)


class Peer:
    """Implements `protocol.network.interface.Handlers`: answers about blobs, and takes chunks that were asked for."""

    def __init__(self) -> None:
        self.identity = Identity.generate()
        self.shelf = Blobs({})
        self.swarm: Swarm | None = None

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if self.swarm is None or kind not in QUESTIONS:
            raise Refused("no such question")
        return await self.swarm.answer(peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        chunk = read_chunk_header(header)
        return self.swarm.open_push(peer, chunk, size) if self.swarm is not None and chunk is not None else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        chunk = read_chunk_header(header)
        if self.swarm is not None and chunk is not None and landing is not None:
            self.swarm.finish_push(peer, chunk, landing)

    def has_member(self, peer: PeerId) -> bool:
        return True

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None:
        if self.swarm is not None:
            self.swarm.gone(peer)

    def make(self, size: int, chunk: int) -> Hash:
        """A new blob of random bytes that nobody else has."""
        data = memoryview(mmap.mmap(-1, size))
        spans = [slice(at, min(at + chunk, size)) for at in range(0, size, chunk)]
        for span in spans:
            data[span] = os.urandom(span.stop - span.start)
        leaves = [chunk_hash(data[span]) for span in spans]
        name = tree_root(leaves)
        self.shelf.held = {name: WholeBlob(data, spans, leaves, is_urgent=False)}
        assert self.swarm is not None
        self.swarm.originate(name, len(spans))
        return name

    async def fetch(self, network: Libp2pNetwork, name: Hash, size: int, chunk: int, origin: PeerId) -> float:
        """Fetch a blob; returns the seconds from here until all of it is in its place."""
        assert self.swarm is not None
        into, begun = memoryview(mmap.mmap(-1, size)), time.perf_counter()
        raw = await network.request(origin, "leaves", LeavesRequest(blob=name).encode(), timeout_s=60)
        leaves = [Hash(leaf) for leaf in decode_body(LeavesReply, raw).leaves]
        assert tree_root(leaves) == name
        blob = Blob.even(name, leaves, size, chunk)
        assert await self.swarm.fetch(blob, into, [origin])
        seconds = time.perf_counter() - begun
        self.shelf.held = {name: WholeBlob(into, [blob.span(index) for index in range(len(blob))], leaves, is_urgent=False)}
        return seconds


async def main() -> None:
    host, size, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    peer = Peer()
    async with trio.open_nursery() as nursery:
        network = Libp2pNetwork(peer.identity, RUN, peer, NetworkSettings(listen_host=host, mdns=False))
        await nursery.start(network.run)
        session = Session(peer.identity, RUN, network, lambda event: print(event, file=sys.stderr))
        peer.swarm = Swarm(session, peer, peer.shelf, trio.to_thread.run_sync)
        nursery.start_soon(peer.swarm.run)
        say(peer=peer.identity.peer_id, address=network.addresses()[0])
        members = (await hear())["peers"]
        others = [PeerId(member["peer"]) for member in members if member["peer"] != peer.identity.peer_id]
        network.remember([member["address"] for member in members])
        while len(network.connected()) < len(others):
            await trio.sleep(0.05)
        for other in others:
            network.welcome(other)
        say(connected=len(others))
        while (words := await hear())["do"] != "end":
            before, used = network.traffic(), time.process_time()
            if words["do"] == "make":
                say(name=peer.make(size, chunk).hex())
            elif words["do"] == "count":
                say(up_bytes=network.traffic().up_bytes)
            else:
                name = Hash(bytes.fromhex(words["name"]))
                seconds = await peer.fetch(network, name, size, chunk, PeerId(words["origin"]))
                now = network.traffic()
                say(
                    seconds=seconds,
                    up_bytes=now.up_bytes - before.up_bytes,
                    down_bytes=now.down_bytes - before.down_bytes,
                    cpu_seconds=time.process_time() - used,
                )
        await network.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
