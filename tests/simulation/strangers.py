"""Crowds of keys: any number of identities behind one connection."""

from __future__ import annotations

from protocol.node.node import Node
from protocol.wire.identity import Identity
from protocol.wire.messages import Body, Phase, pack
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
