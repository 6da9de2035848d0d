"""Crowds of keys: any number of identities behind one connection."""

from __future__ import annotations

from random import Random

import trio

from protocol.node.node import Node
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity
from protocol.wire.messages import pack
from protocol.wire.presence import Phase
from tests.simulation.chaos import Memory
from tests.simulation.forgeries import keys, ready
from tests.simulation.liars import Ghost
from tests.simulation.world import World


class Strangers:
    """Says the same with each of its keys.  They are known to the judge as liars."""

    def __init__(self, world: World, count: int, mark: str = "crowd", speaker: Ghost | None = None) -> None:
        self.keys: list[Identity] = keys(count, mark)
        self._world, self._seq = world, 0
        self.speaker = speaker or Ghost(world, b"\x6e")
        for key in self.keys:
            world.judge.liars[key.peer_id] = None

    def connect(self) -> None:
        """Each key has shown a connection of its own to every peer, so that it counts as alive while its heartbeats come.

        It takes no question and no push there.
        """
        for seat in self._world.up():
            end = self._world.wire.end(seat.peer)
            if end is not None:
                for key in self.keys:
                    end.handlers.on_peer_connected(key.peer_id)

    async def say(self, body: Body) -> None:
        """Gossip this as each of them."""
        for key in self.keys:
            await self.speaker.network.publish(pack(key, self._world.signed.run, body).raw)

    async def beat(self, round: int, tip: bytes, phase: Phase = Phase.COMPUTING) -> None:
        """Each of them is here, and stands on this tip."""
        self._seq += 1
        await self.say(self.speaker.beat(self._seq, round, tip).model_copy(update={"phase": phase}))

    async def be_ready(self, node: Node, digest: bytes | None = None) -> None:
        """A READY of each for the round after the newest record of `node`.  digest: of another state than its."""
        base = node._history.base
        stands_on = node._replica.state.digest() if digest is None else digest
        await self.say(ready(base, stands_on, serial=base.round))


async def harass(world: World, crowd: Strangers, memory: Memory, random: Random) -> None:
    """The crowd comes and says something else every few seconds, until the liars fall silent."""
    moods = ("waits", "is ready", "stands elsewhere", "is ahead")
    while not memory.silent:
        await trio.sleep(2.0)
        nodes = [seat.node for seat in world.up() if seat.node is not None]
        if not nodes:
            continue
        node, mood = max(nodes, key=lambda node: node.rounds), random.choice(moods)
        crowd.connect()
        if mood == "is ahead":
            await crowd.beat(node.rounds + random.randint(1, 10**6), random.randbytes(32))
        else:
            await crowd.beat(node.rounds, node.tip)
        if mood in ("is ready", "stands elsewhere"):
            await crowd.be_ready(node, random.randbytes(32) if mood == "stands elsewhere" else None)
    for key in crowd.keys:
        for seat in world.up():
            end = world.wire.end(seat.peer)
            if end is not None:
                end.handlers.on_peer_disconnected(key.peer_id)
