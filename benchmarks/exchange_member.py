"""One peer of `benchmarks.exchange`, which obeys JSON lines on standard input."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import trio

from benchmarks.json_lines import hear, say
from kernels.aggregate import Rule
from peer.measurements.exchange import RUN, ExchangePeer, Introduction
from protocol.events.events import Event, MemberLost
from protocol.transport.interface import Landing, Network
from protocol.transport.network import Libp2pNetwork, NetworkSettings
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, members_in

BARE = b"bare"


class Peer(ExchangePeer):
    """A peer that also takes bare pushes of bytes, and remembers the times at which it lost members."""

    def __init__(self, parameters: int, chunk: int, rule: Rule) -> None:
        super().__init__(parameters, chunk, rule)
        self.scratch = memoryview(bytearray(max(span.size for span in self.layouts.contribution)))
        self.lost: list[float] = []

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        return Landing(memoryview(bytearray(size))) if header == BARE else await super().open_push(peer, header, size)

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        if header != BARE:
            await super().finish_push(peer, header, landing)

    async def average(self, network: Network, plan: Plan, nursery: trio.Nursery) -> None:
        self.lost = []
        await super().average(network, plan, nursery)

    def note(self, event: Event) -> None:
        if isinstance(event, MemberLost):
            self.lost.append(trio.current_time())

    def without(self) -> dict[str, int]:
        """Return for each member the number of chunks of the result that lack its part."""
        if self.exchange is None:
            return {}
        members = self.exchange.machine.members
        masks = [members_in(entry.mask, len(members)) for entry in self.exchange.entries()]
        return {peer: sum(index not in mask for mask in masks) for index, peer in enumerate(members)}

    async def push_bare(self, network: Libp2pNetwork, peers: list[PeerId]) -> None:
        """Push as many bytes as an exchange sends: to each peer a part and a result, each an N-th of the payload."""
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(self._push_to, network, peer, self.layouts.exchanged_bytes // (len(peers) + 1))

    async def _push_to(self, network: Libp2pNetwork, peer: PeerId, size: int) -> None:
        while size > 0:
            piece = min(size, len(self.scratch))
            await network.push(peer, BARE, self.scratch[:piece], timeout_s=60.0)
            size -= piece


def introductions(members: Sequence[dict[str, Any]]) -> list[Introduction]:
    """Return the introductions that were given in JSON."""
    return [
        Introduction(PeerId(member["peer"]), Hash(bytes.fromhex(member["root"])), member.get("bytes_per_s", 0.0))
        for member in members
    ]


async def main() -> None:
    peer = Peer(int(sys.argv[1]), int(sys.argv[2]), cast(Rule, sys.argv[3]))
    host, congestion = sys.argv[4], sys.argv[5]
    async with trio.open_nursery() as nursery:
        network = Libp2pNetwork(peer.identity, RUN, peer, NetworkSettings(listen_host=host, congestion=congestion))
        await nursery.start(network.run)
        say(peer=peer.identity.peer_id, address=network.addresses()[0], root=tree_root(peer.leaves).hex())
        members = (await hear())["peers"]
        others = [PeerId(member["peer"]) for member in members if member["peer"] != peer.identity.peer_id]
        network.remember([member["address"] for member in members])
        while len(network.connected()) < len(others):
            await trio.sleep(0.05)
        for other in others:
            network.welcome(other)  # nobody greets here, and strangers are not kept for long
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say(connected=len(others))
        round = 0
        while (words := await hear())["do"] != "end":
            order = words["do"]
            begun, traffic, used = trio.current_time(), network.traffic(), time.process_time()
            if order == "exchange":
                await peer.average(
                    network, peer.plan(introductions(words.get("peers", members)), round, "peers" in words), nursery
                )
                round += 1
            else:
                await peer.push_bare(network, others)
            seconds = trio.current_time() - begun
            say(
                seconds=seconds,
                cpu_seconds=time.process_time() - used,
                up_bytes=network.traffic().up_bytes - traffic.up_bytes,
                digest=chunk_hash(peer.result).hex(),
                bytes_per_s=network.bandwidth().least,
                lost_s=[at - begun for at in peer.lost],
                without=peer.without(),
                chunks=len(peer.leaves),
                extra_bytes=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - len(peer.result),
            )
        await network.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
