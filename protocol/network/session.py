"""A peer's part in one run: who it is, which run, how it speaks, and where its events go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.events import Event
from protocol.network.interface import Network
from protocol.wire.body import Body
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack


@dataclass(frozen=True)
class Session:
    """One life of a peer in a run.  emit: takes every event that a person or a program may want to see."""

    identity: Identity
    run: Hash
    network: Network
    emit: Callable[[Event], None]

    @property
    def me(self) -> PeerId:
        """Our peer ID."""
        return self.identity.peer_id

    def seal(self, body: Body) -> Envelope:
        """`body` as a statement of ours, signed for this run."""
        return pack(self.identity, self.run, body)

    async def publish(self, body: Body) -> None:
        """Sign `body` and gossip it."""
        await self.network.publish(self.seal(body).raw)
