"""One peer of `benchmarks.caps`, which averages, serves and fetches blobs, answers and counts; it obeys JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import trio

from benchmarks import broadcast_member, exchange_member
from benchmarks.json_lines import hear, say
from peer.measurements.exchange import RUN
from protocol.blobs.blob import read_chunk_header
from protocol.blobs.swarm import Swarm
from protocol.events.events import Dropped, Event
from protocol.transport.interface import Acceptance, Landing, Session
from protocol.transport.network import Libp2pNetwork, NetworkSettings
from protocol.wire.hashes import tree_root
from protocol.wire.identity import PeerId
from tests.protocol.answering import ABOUT_BLOBS

BLOB_CHUNK = 1 << 20
SAMPLE_S = 0.25
QUESTION_S = 0.1


class Peer:
    """Implements `protocol.transport.interface.Handlers` for exchanges, blobs, and echoed questions."""

    def __init__(self, parameters: int, chunk: int, blob_bytes: int) -> None:
        self.exchange = exchange_member.Peer(parameters, chunk, "mean")
        self.blobs = broadcast_member.Peer(blob_bytes, BLOB_CHUNK)
        self.identity = self.blobs.identity = self.exchange.identity

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "echo":
            return data
        return await (self.blobs if kind in ABOUT_BLOBS else self.exchange).on_request(peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        of = self.blobs if read_chunk_header(header) else self.exchange
        return await of.open_push(peer, header, size)

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        of = self.blobs if read_chunk_header(header) else self.exchange
        await of.finish_push(peer, header, landing)

    def has_member(self, peer: PeerId) -> bool:
        return True

    def has_allowance(self, peer: PeerId) -> bool:
        return True

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None: ...


def moved() -> tuple[int, int]:
    """Return the bytes that this network namespace has sent and received."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith("net0:"))
    fields = line.partition(":")[2].split()
    return int(fields[8]), int(fields[0])


async def sample(into: list[tuple[float, int, int]]) -> None:
    while True:
        into.append((trio.current_time(), *moved()))
        await trio.sleep(SAMPLE_S)


async def ask(network: Libp2pNetwork, peer: PeerId, seconds: list[float], scope: trio.CancelScope) -> None:
    """Measure again and again the time of a short question."""
    with scope:
        while True:
            begun = trio.current_time()
            await network.request(peer, "echo", b"?" * 200, timeout_s=30)
            seconds.append(trio.current_time() - begun)
            await trio.sleep(QUESTION_S)


class Member:
    """The peer, its network, and its measurements."""

    def __init__(self, peer: Peer, network: Libp2pNetwork, nursery: trio.Nursery) -> None:
        self.peer, self.network, self.nursery = peer, network, nursery
        self.me = str(peer.identity.peer_id)
        self.members: list[dict[str, Any]] = []
        self.samples: list[tuple[float, int, int]] = []
        self.questions: list[float] = []
        self.asking = trio.CancelScope()
        self.round = 0

    async def meet(self) -> None:
        self.members = (await hear())["peers"]
        self.network.remember([member["address"] for member in self.members])
        while len(self.network.connected()) < len(self.members) - 1:
            await trio.sleep(0.05)
        for other in self.network.connected():
            self.network.welcome(other)

    def begin(self, words: dict[str, Any]) -> None:
        """Count, fetch and ask for as long as there are blobs to fetch and peers to ask."""
        self.nursery.start_soon(sample, self.samples)
        fetched = words["fetch"].get(self.me)
        if fetched is not None:
            source = self.members[fetched]
            wanted = {"name": source["blob"], "origin": source["peer"]}
            self.nursery.start_soon(self.peer.blobs.fetch, self.network, wanted)
        if self.me in words["ask"]:
            self.nursery.start_soon(ask, self.network, PeerId(self.members[0]["peer"]), self.questions, self.asking)

    async def average(self, count: int) -> None:
        """Average with the first `count` peers; do nothing if we are not among them."""
        averaging = self.members[:count]
        if any(member["peer"] == self.me for member in averaging):
            plan = self.peer.exchange.plan(exchange_member.introductions(averaging), self.round, False)
            await self.peer.exchange.average(self.network, plan, self.nursery)
        self.round += 1


def tell(event: Event) -> None:
    """Print an error for the person who watches."""
    if isinstance(event, Dropped):
        print(event, file=sys.stderr)


async def main() -> None:
    parameters, chunk, blob, host, up, down = sys.argv[1:]
    peer = Peer(int(parameters), int(chunk), int(blob))
    settings = NetworkSettings(listen_host=host, up_limit=float(up) or None, down_limit=float(down) or None)
    async with trio.open_nursery() as nursery:
        network = Libp2pNetwork(peer.identity, RUN, peer, settings)
        await nursery.start(network.run)
        session = Session(peer.identity, RUN, network, tell)
        peer.blobs.swarm = Swarm(session, peer, peer.blobs.find, trio.to_thread.run_sync)
        nursery.start_soon(peer.blobs.swarm.run)
        member = Member(peer, network, nursery)
        name, root = peer.blobs.make(), tree_root(peer.exchange.leaves)
        say(peer=member.me, address=network.addresses()[0], root=root.hex(), blob=name.hex())
        await member.meet()
        say()
        while (words := await hear())["do"] != "end":
            match words["do"]:
                case "begin":
                    member.begin(words)
                    say()
                case "exchange":
                    await member.average(words["members"])
                    say()
                case "report":
                    member.asking.cancel()
                    say(samples=member.samples, questions=member.questions)
        await network.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
