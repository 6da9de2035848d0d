"""One real peer besieged by real strangers: what it costs the peer in memory and in delay of its event loop."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.attacks.cost import Cost
from tests.attacks.watched_peer import read_delays
from tests.e2e.attacks import Cast, until_broken
from tests.e2e.swarm import TINY_RUN, Peer, Swarm
from tests.protocol.transport.recorder import stack

RUN = TINY_RUN.replace("inner_steps = 150", "inner_steps = 10000").replace("min_members = 2", "min_members = 1")
"""A peer alone in it computes in its first round for as long as it is left alone."""
CALM_S = 3.0
"""Before the attack, in which the peer's memory settles, and after it."""
SAMPLE_S = 0.05
FORWARDED_AT_ONCE, FORWARD_EVERY_S = 25, 0.16
"""Just below what a neighbour may forward."""
_serial = itertools.count(1)


@dataclass(frozen=True)
class Siege:
    """The strangers, all connected to the peer and greeted by it.  target: the peer."""

    casts: list[Cast]
    target: Peer
    run: Hash

    async def all(self, conduct: Callable[[Cast], Awaitable[None]], seconds: float) -> None:
        """Let all strangers do the same, each until it can no longer or the time is over."""
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for cast in self.casts:
                    nursery.start_soon(until_broken, partial(conduct, cast))


Conduct = Callable[[Siege], Awaitable[str]]
"""Returns what was done, as a phrase."""


def besieged(conduct: Conduct, strangers: int) -> Cost:
    """A peer that nobody else trains with, under this attack."""
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder), RUN) as swarm:
        swarm.create_run()
        target = swarm.peer("target")
        target.program = ("tests.attacks.watched_peer",)
        target.start()
        swarm.until("the peer trains", lambda: target.heard(ev.ComputeProgress))
        cost = trio.run(_besiege, swarm, target, conduct, strangers)
        assert target.up, "the peer died"
        failures = target.heard(ev.HandlerFailed)
        assert not failures, failures[0]
        return cost


async def _besiege(swarm: Swarm, target: Peer, conduct: Conduct, strangers: int) -> Cost:
    run = open_manifest(swarm.manifest.read_bytes()).run
    status: dict[str, Any] = await trio.to_thread.run_sync(target.status)
    psutil.Process(status["trainer_pid"]).nice(19)  # it leaves the processors to the attack and to the peer's event loop
    casts = [Cast(run, PeerId(status["peer"])) for _ in range(strangers)]
    cost, process = Cost(), psutil.Process(target.pid)
    async with trio.open_nursery() as nursery:
        for cast in casts:
            await nursery.start(cast.play, status["addresses"])
        await trio.sleep(CALM_S)
        before, since = process.memory_info().rss, time.monotonic()
        nursery.start_soon(_sample, process, before, cost)
        cost.details = await conduct(Siege(casts, target, run))
        await trio.sleep(CALM_S)
        read_delays(target.folder, since, cost)
        nursery.cancel_scope.cancel()
    return cost


async def _sample(process: psutil.Process, before: int, cost: Cost) -> None:
    while True:
        cost.grown = max(cost.grown, process.memory_info().rss - before)
        await trio.sleep(SAMPLE_S)


async def forward(cast: Cast, said: Iterable[tuple[Identity, bytes]]) -> None:
    """Gossip that comes from free keys: each message is its key's own, also to libp2p, and `cast` forwards it."""
    rest = iter(said)
    while batch := list(itertools.islice(rest, FORWARDED_AT_ONCE)):
        await _forward_at_once(cast, batch)
        await trio.sleep(FORWARD_EVERY_S)


async def _forward_at_once(cast: Cast, said: Iterable[tuple[Identity, bytes]]) -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID
    from libp2p.pubsub.pb import rpc_pb2
    from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX  # type: ignore[attr-defined]

    assert cast.network is not None
    gossip = stack(cast.network).gossip
    pubsub: Any = gossip._pubsub
    rpc = rpc_pb2.RPC()
    for identity, data in said:
        key = create_new_key_pair(identity.seed)
        message = rpc_pb2.Message(
            data=data,
            topicIDs=[gossip._topic],
            from_id=ID.from_pubkey(key.public_key).to_bytes(),
            seqno=next(_serial).to_bytes(8, "big"),
        )
        message.signature = key.private_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
        message.key = key.public_key.serialize()
        rpc.publish.append(message)
        cast.sent += 1
    await pubsub.write_msg(pubsub.peers[ID.from_string(cast.target)], rpc)
