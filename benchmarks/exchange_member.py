"""One peer of `benchmarks.exchange`: obeys JSON lines on standard input."""

from __future__ import annotations

import mmap
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import trio

from benchmarks.json_lines import hear, say
from kernels.aggregate import Rule
from kernels.codec import encode
from kernels.layout import chunk_layout, payload_bytes
from protocol.events import Event, MemberLost
from protocol.exchange.assignment import assign_owners, contribution_leaves
from protocol.exchange.messages import ExchangeAsk, push_plan
from protocol.exchange.runner import ExchangeRunner
from protocol.network.interface import Acceptance, Landing, Refused
from protocol.network.libp2p import Libp2pNetwork, NetworkSettings
from protocol.network.session import Session
from protocol.wire.body import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import Member, Plan

RUN = Hash(b"\x05" * 32)
BARE = b"bare"


class Peer:
    """Implements `protocol.network.interface.Handlers` for the running exchange, and for pushes of nothing but bytes."""

    def __init__(self, parameters: int, chunk: int, rule: Rule) -> None:
        self.rule = rule
        self.identity = Identity.generate()
        self.layout = chunk_layout(parameters, chunk)
        self.size = payload_bytes(self.layout)
        self.contribution = memoryview(mmap.mmap(-1, self.size))
        self.result = memoryview(mmap.mmap(-1, self.size))
        values = np.random.default_rng(self.identity.public_key[0]).standard_normal(chunk, dtype=np.float32)
        for span in self.layout:
            encode(values[: span.count], self.contribution[span.encoded])
        self.leaves = contribution_leaves(self.contribution, self.layout)
        self.exchange: ExchangeRunner | None = None
        self.scratch = memoryview(bytearray(max(span.size for span in self.layout)))
        self.begun = trio.Event()
        self.scope = trio.CancelScope()
        self.lost: list[float] = []

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """A successor asks for a chunk of the exchange; nothing else is answered."""
        ask = decode_body(ExchangeAsk, data, max_bytes=len(data))
        if self.exchange is None or ask.plan != self.exchange.machine.name:
            raise Refused("not our exchange")
        self.exchange.asked(peer, ask)
        return b""

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        if header == BARE:
            return Landing(memoryview(bytearray(size)))
        while self.exchange is None or self.exchange.machine.name != push_plan(header):
            await self.begun.wait()
        return await self.exchange.open_push(peer, header, size)

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        if header != BARE and self.exchange is not None:
            await self.exchange.finish_push(peer, header, landing)

    def has_member(self, peer: PeerId) -> bool:
        return False

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None:
        if self.exchange is not None:
            self.exchange.peer_dead(peer)

    def plan(self, members: Sequence[dict[str, Any]], round: int, measured: bool) -> Plan:
        ordered = sorted(members, key=lambda member: str(member["peer"]))
        peers = [PeerId(member["peer"]) for member in ordered]
        return Plan(
            round=round,
            fragment=0,
            base=ZERO_HASH,
            state_digest=ZERO_HASH,
            owners=assign_owners(
                ZERO_HASH, peers, len(self.layout), [m["bytes_per_s"] for m in ordered] if measured else ()
            ),
            members=[
                Member(
                    peer=m["peer"],
                    incarnation=1,
                    serial=1,
                    tokens=1000,
                    steps=1,
                    loss=0.0,
                    norm=0.0,
                    root=bytes.fromhex(m["root"]),
                    signature=bytes(64),
                )
                for m in ordered
            ],
        )

    async def average(self, network: Libp2pNetwork, plan: Plan, nursery: trio.Nursery) -> None:
        """One exchange; returns when our result is complete.  It goes on sending others what they miss until the next."""
        if self.exchange is not None:
            self.scope.cancel()
        self.lost = []
        self.scope = trio.CancelScope()
        self.exchange = ExchangeRunner(
            session=Session(self.identity, RUN, network, self._note),
            plan=plan,
            layout=self.layout,
            contribution=self.contribution,
            leaves=self.leaves,
            result=self.result,
            offload=trio.to_thread.run_sync,
            stall_s=10.0,
            rule=self.rule,
        )
        self.begun.set()
        self.begun = trio.Event()
        nursery.start_soon(self._run, self.exchange, self.scope)
        await self.exchange.done.wait()

    def without(self) -> dict[str, int]:
        """How many chunks of the result lack the part of each member."""
        if self.exchange is None:
            return {}
        members = self.exchange.machine.members
        masks = [members_in(entry.mask, len(members)) for entry in self.exchange.entries()]
        return {peer: sum(index not in mask for mask in masks) for index, peer in enumerate(members)}

    def _note(self, event: Event) -> None:
        if isinstance(event, MemberLost):
            self.lost.append(trio.current_time())

    async def _run(self, exchange: ExchangeRunner, scope: trio.CancelScope) -> None:
        with scope:
            await exchange.run()

    async def push_bare(self, network: Libp2pNetwork, peers: list[PeerId]) -> None:
        """As many bytes as an exchange sends: a part and a result of the payload's N-th to everybody."""
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(self._push_to, network, peer, 2 * self.size // (len(peers) + 1))

    async def _push_to(self, network: Libp2pNetwork, peer: PeerId, size: int) -> None:
        while size > 0:
            piece = min(size, len(self.scratch))
            await network.push(peer, BARE, self.scratch[:piece], timeout_s=60.0)
            size -= piece


async def main() -> None:
    peer = Peer(int(sys.argv[1]), int(sys.argv[2]), cast(Rule, sys.argv[3]))
    host, congestion = sys.argv[4], sys.argv[5]
    async with trio.open_nursery() as nursery:
        network = Libp2pNetwork(
            peer.identity, RUN, peer, NetworkSettings(listen_host=host, mdns=False, congestion=congestion)
        )
        await nursery.start(network.run)
        say(peer=peer.identity.peer_id, address=network.addresses()[0], root=tree_root(peer.leaves).hex())
        members = (await hear())["peers"]
        others = [PeerId(member["peer"]) for member in members if member["peer"] != peer.identity.peer_id]
        network.remember([member["address"] for member in members])
        while len(network.connected()) < len(others):
            await trio.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say(connected=len(others))
        round = 0
        while (words := await hear())["do"] != "end":
            order = words["do"]
            begun, traffic, used = trio.current_time(), network.traffic(), time.process_time()
            if order == "exchange":
                await peer.average(network, peer.plan(words.get("peers", members), round, "peers" in words), nursery)
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
                chunks=len(peer.layout),
                extra_bytes=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - peer.size,
            )
        await network.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
