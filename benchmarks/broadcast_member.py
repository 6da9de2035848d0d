"""One peer of `benchmarks.broadcast`, which obeys JSON lines on standard input."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import trio

from benchmarks.json_lines import hear, say
from protocol.blobs.blob import Blob, ChunkSet, EvenSpans, LeavesRequest, Spans, read_chunk_header, set_of
from protocol.blobs.store import BlobStore, Held
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.disk import Disk
from protocol.events.events import Dropped, Event
from protocol.transport.interface import Acceptance, Landing, Refused, Session
from protocol.transport.network import Libp2pNetwork, NetworkSettings
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.questions import LeavesReply
from tests.protocol.answering import ask

RUN = Hash(b"\x06" * 32)


def in_memory(data: memoryview, spans: Spans, hashes: Sequence[Hash]) -> Held:
    """Keep a whole blob in memory."""
    return Held(len(spans), (1 << len(spans)) - 1, lambda chunk: bytes(data[spans[chunk]]), lambda: hashes)


class Peer:
    """Implements `protocol.transport.interface.Handlers`: answers about blobs, and takes chunks that were asked for."""

    def __init__(self, size: int, chunk: int, seed: str = "") -> None:
        self.size, self.chunk = size, chunk
        self.identity = Identity.from_seed(chunk_hash(seed.encode())) if seed else Identity.generate()
        self.chunk_bytes = 0
        self.set_aside: set[str] = set()
        self.shelf: dict[Hash, Held] = {}
        self.swarm: Swarm | None = None

    def find(self, name: Hash) -> Held | None:
        """Return the blob of this name, if it is here."""
        return self.shelf.get(name)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if self.swarm is None:
            raise Refused("no such question")
        return await ask(self.swarm, peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        chunk = read_chunk_header(header)
        return await self.swarm.open_push(peer, chunk, size) if self.swarm is not None and chunk is not None else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        chunk = read_chunk_header(header)
        if self.swarm is not None and chunk is not None and landing is not None:
            self.chunk_bytes += len(landing.buffer)
            await self.swarm.finish_push(peer, chunk, landing)

    def has_member(self, peer: PeerId) -> bool:
        return True

    def has_allowance(self, peer: PeerId) -> bool:
        return True

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None:
        if self.swarm is not None:
            self.swarm.gone(peer)

    def make(self) -> Hash:
        """Make a new blob of random bytes that nobody else has."""
        size, chunk = self.size, self.chunk
        data = memoryview(mmap.mmap(-1, size))
        spans = [slice(at, min(at + chunk, size)) for at in range(0, size, chunk)]
        for span in spans:
            data[span] = os.urandom(span.stop - span.start)
        leaves = [chunk_hash(data[span]) for span in spans]
        name = tree_root(leaves)
        self.shelf = {name: in_memory(data, spans, leaves)}
        assert self.swarm is not None
        self.swarm.originate(name, len(spans))
        return name

    async def fetch(self, network: Libp2pNetwork, words: dict[str, Any]) -> dict[str, Any]:
        """Fetch a blob; answer when all of it is in its place.

        folder: the folder that keeps the blob in files; chunks that an earlier life left there are used.  die_at: the share
        of the blob at which this process is killed.
        """
        assert self.swarm is not None
        name, size, origin = Hash(bytes.fromhex(words["name"])), self.size, PeerId(words["origin"])
        begun, before, used = time.perf_counter(), network.traffic(), time.process_time()
        raw = await network.request(origin, "leaves", LeavesRequest(blob=name).encode(), timeout_s=60)
        leaves = [Hash(leaf) for leaf in decode_body(LeavesReply, raw).leaves]
        assert tree_root(leaves) == name
        blob = Blob.cut(name, leaves, EvenSpans(size, self.chunk))
        into, here = _resume(words["folder"], blob) if "folder" in words else (memoryview(mmap.mmap(-1, size)), 0)

        purpose, done = Purpose("checkpoint", 1), here.bit_count()

        def on_chunk() -> None:
            nonlocal done
            done += 1
            if done >= words.get("die_at", inf) * len(leaves):
                say(here=done)
                os.kill(os.getpid(), signal.SIGKILL)

        sources = [origin]
        while not await self.swarm.fetch(blob, into, sources, purpose, here=here, on_chunk=on_chunk):
            sources = [*network.connected()]
        self.shelf = {name: in_memory(into, EvenSpans(size, self.chunk), leaves)}
        now = network.traffic()
        return {
            "seconds": time.perf_counter() - begun,
            "up_bytes": now.up_bytes - before.up_bytes,
            "down_bytes": now.down_bytes - before.down_bytes,
            "chunk_bytes": self.chunk_bytes,
            "cpu_seconds": time.process_time() - used,
            "resumed": here.bit_count(),
            "set_aside": len(self.set_aside),
        }

    async def obey(self, network: Libp2pNetwork, words: dict[str, Any], nursery: trio.Nursery) -> dict[str, Any]:
        """Obey a command, and return the answer to it."""
        if words["do"] == "make":
            name = self.make()
            if "dies" in words:
                nursery.start_soon(self.die_after_one_copy, name)
            return {"name": name.hex()}
        if words["do"] == "count":
            return {"up_bytes": network.traffic().up_bytes}
        return await self.fetch(network, words)

    async def die_after_one_copy(self, name: Hash) -> None:
        """Kill this process when each chunk has left it once."""
        assert self.swarm is not None
        while self.swarm.only_here(name):
            await trio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, event: Event) -> None:
        if isinstance(event, Dropped) and event.what == "chunk":
            self.set_aside.add(event.peer)


def _resume(folder: str, blob: Blob) -> tuple[memoryview, ChunkSet]:
    """Return a file for the blob, and the chunks of it that are there."""
    files = BlobStore(Disk(), Path(folder))
    files.load()
    part = files.begin(blob.name, sum(blob.sizes))
    return part.view, blob.all & ~set_of(part.missing(blob.leaves, EvenSpans(sum(blob.sizes), blob.sizes[0])))


async def main(peer: Peer) -> None:
    async with trio.open_nursery() as nursery:
        network = Libp2pNetwork(peer.identity, RUN, peer, NetworkSettings(listen_host=sys.argv[1]))
        await nursery.start(network.run)
        peer.swarm = Swarm(Session(peer.identity, RUN, network, peer.note), peer, peer.find, trio.to_thread.run_sync)
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
            say(**await peer.obey(network, words, nursery))
        await network.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Peer(int(sys.argv[2]), int(sys.argv[3]), "".join(sys.argv[4:])))
