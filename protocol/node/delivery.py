"""Delivering our statements to single peers, and to ourselves."""

from __future__ import annotations

import trio

from protocol.consensus.effects import Forward, Send
from protocol.events import Notice
from protocol.membership.liveness import Membership
from protocol.network.interface import NetworkError, Unreachable
from protocol.network.session import Session
from protocol.node.inbox import Inbox
from protocol.node.outlasting import Outlasting
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

TIMEOUT_S = 10.0
RETRY_S = 0.5


class Delivery:
    """For one round.  inbox: takes what we say to ourselves.

    outlasting: a commit is delivered there, for it ends the round here before it has arrived with others.
    """

    def __init__(self, session: Session, membership: Membership, inbox: Inbox, outlasting: Outlasting) -> None:
        self._session, self._membership, self._inbox, self._outlasting = session, membership, inbox, outlasting

    def send(self, effect: Send, nursery: trio.Nursery) -> None:
        """Sign a statement and begin to deliver it.  nursery: the round's."""
        envelope = self._session.seal(effect.body)
        for peer in effect.to:
            if peer == self._session.me:
                self._inbox.receive(peer, effect.body, envelope)
            else:
                within = self._outlasting.nursery if isinstance(effect.body, Commit) else nursery
                within.start_soon(self._deliver, peer, envelope.kind, envelope.raw)

    def forward(self, effect: Forward, nursery: trio.Nursery) -> None:
        """Begin to deliver another peer's statement.  nursery: the round's."""
        nursery.start_soon(self._deliver, effect.to, effect.what, effect.raw)

    async def _deliver(self, peer: PeerId, what: str, raw: bytes) -> None:
        """Best effort: whatever matters is sent again by the machine."""
        with self._outlasting.delivery():
            for attempt in range(2):
                try:
                    await self._session.network.request(peer, "round", raw, timeout_s=TIMEOUT_S)
                    return
                except Unreachable:
                    await trio.sleep(RETRY_S * (attempt + 1))
                except NetworkError as error:
                    name = self._membership.name(peer)
                    self._session.emit(Notice("debug", f"{name} refused our {what}: {error}"))
                    return
