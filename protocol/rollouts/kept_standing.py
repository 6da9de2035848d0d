"""How rollout peers and validators stand with this peer, on disk: a liar stays set aside when we start again.

What makes us believe a peer less is written at once; what makes us believe it more may wait, and be lost: then it is
checked more often than it would have to be.
"""

from __future__ import annotations

from math import inf
from typing import Annotated

from pydantic import Field

from protocol.events import Notice
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.rollouts.standing import MAX_KNOWN, Standing
from protocol.state.disk import StoreFailed
from protocol.state.store import Store
from protocol.wire.body import Body, Count, PeerField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId

WRITE_S = 10.0
"""Between writes of nothing but checks that came out right."""
MAX_REASON = 200


class KnownPeer(Body):
    """clean: checks in a row that came out right.  aside: why nothing of it is used; empty where it is."""

    peer: PeerField
    clean: Count
    aside: Annotated[str, Field(max_length=MAX_REASON)]


class KnownPeers(Body):
    """Who was seen last comes last."""

    peers: Annotated[list[KnownPeer], Field(max_length=MAX_KNOWN)]


class KeptStanding:
    """Writes `standing` to the store of a run."""

    def __init__(self, session: Session, standing: Standing, store: Store, offload: Offload) -> None:
        self._session, self._standing, self._store, self._offload = session, standing, store, offload
        self._raised = self._lowered = 0
        """Of what is on disk."""
        self._at, self._failed = -inf, False

    async def recall(self) -> None:
        """Take over what an earlier life knew."""
        raw = await self._offload(self._store.standing)
        if raw is None:
            return
        try:
            known = decode_body(KnownPeers, raw)
        except Malformed as error:
            self._session.emit(Notice("warning", f"nothing is known of rollout peers and validators: {error}"))
            return
        for each in known.peers:
            self._standing.recall(PeerId(each.peer), each.clean, each.aside)
        if aside := sum(bool(each.aside) for each in known.peers):
            self._session.emit(Notice("info", f"set aside since an earlier start, for lies about rollouts: {aside} peers"))

    async def keep(self, now: float) -> None:
        """Write what is new, if it is time to; again later, where the disk does not take it."""
        standing = self._standing
        raised, lowered = standing.raised, standing.lowered
        may_wait = now < self._at + WRITE_S and (self._failed or lowered == self._lowered)
        if may_wait or (raised, lowered) == (self._raised, self._lowered):
            return
        peers = [KnownPeer(peer=peer, clean=clean, aside=why[:MAX_REASON]) for peer, clean, why in standing.histories()]
        self._at = now
        try:
            await self._offload(self._store.keep_standing, KnownPeers(peers=peers).encode())
        except StoreFailed as error:
            self._failed = True
            self._session.emit(Notice("warning", f"who lied about rollouts is not kept: {error}"))
            return
        self._raised, self._lowered, self._failed = raised, lowered, False
