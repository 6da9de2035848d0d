"""Whom this peer believes how much: how often verdicts and rollouts of a peer are checked, and whom nobody uses any more.

Pure.  Keys are free, so what a stranger says proves nothing: at first all of it is checked.  Each check that comes out
right makes the next one rarer, down to `RARELY`; one anomaly, and all is checked again.  Who is proven to be wrong by our
own check is set aside: validators for a verdict that is not so, rollout peers for a rollout that no honest one makes.

What others found out counts as well, where so many electors have reproduced it that one of them is honest.

Histories outlive us (`protocol.rollouts.standing`); what others said of a peer is heard again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Annotated

from pydantic import Field

from protocol.chain.disk import StoreFailed
from protocol.chain.electorate import tolerated
from protocol.chain.store import Store
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.transport.interface import Session
from protocol.wire.body import Body, Count, PeerField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId

RARELY = 0.1
FADES = 0.9
"""The chance of a check after one more that came out right: 22 of them to `RARELY`."""
FEWEST_ACCUSERS = 2
MOST_ACCUSERS = 64
MAX_KNOWN = 2048
"""Peers remembered, at most half of them set aside: keys that lie are free, and a clean history is not."""


@dataclass
class _Known:
    clean: int = 0
    aside: str = ""
    accusers: set[PeerId] = field(default_factory=set)
    """Peers that rejected a batch of this peer which an elector rejected as well."""
    electors: set[PeerId] = field(default_factory=set)
    """Electors that rejected one which somebody else rejected as well."""


class Standing:
    """Of all rollout peers and validators, in the eyes of one peer."""

    def __init__(self) -> None:
        self._known: OrderedDict[PeerId, _Known] = OrderedDict()
        self.raised = 0
        """How often a peer was found to be right."""
        self.lowered = 0
        """How often one was found to be wrong."""

    def histories(self) -> list[tuple[PeerId, int, str]]:
        """Checks in a row that came out right, and why it is set aside, of each peer that has either."""
        found = [(peer, known.clean, known.aside) for peer, known in self._known.items()]
        return [each for each in found if each[1] or each[2]]

    def recall(self, peer: PeerId, clean: int, aside: str) -> None:
        """What an earlier life knew of a peer."""
        known = self._of(peer)
        known.clean, known.aside = clean, aside

    def chance(self, peer: PeerId) -> float:
        """The chance with which what this peer says or makes is checked."""
        known = self._known.get(peer)
        return max(RARELY, FADES**known.clean) if known is not None else 1.0

    def clean(self, peer: PeerId) -> int:
        """Checks in a row that came out right."""
        known = self._known.get(peer)
        return known.clean if known is not None else 0

    def aside(self, peer: PeerId) -> str:
        """Why nothing of this peer is used; empty where it is."""
        known = self._known.get(peer)
        return known.aside if known is not None else ""

    def right(self, peer: PeerId) -> None:
        """A check of ours came out right."""
        self._of(peer).clean += 1
        self.raised += 1

    def anomaly(self, peer: PeerId) -> None:
        """Something was wrong that proves nothing: all is checked again."""
        self._of(peer).clean = 0
        self.lowered += 1

    def set_aside(self, peer: PeerId, reason: str) -> bool:
        """Our own check proves it: use nothing of this peer any more.  Whether that is new."""
        known = self._of(peer)
        known.clean = 0
        if known.aside:
            return False
        known.aside = reason
        self.lowered += 1
        return True

    def reproduced(self, author: PeerId, rejecting: Collection[PeerId], electors: frozenset[PeerId]) -> bool:
        """These, several, rejected a batch of `author`; whether it is to be set aside.  electors: of the tip.

        Two accusers, and more of these electors than can all be liars, are needed.
        """
        judges = electors.intersection(rejecting)
        if not judges:
            return False
        known = self._of(author)
        accusers = [peer for peer in rejecting if judges != {peer}]  # an elector does not reproduce its own
        known.accusers.update(accusers[: MOST_ACCUSERS - len(known.accusers)])  # two are enough, and keys are free
        known.electors = known.electors & electors | judges
        enough = max(FEWEST_ACCUSERS, tolerated(len(electors)) + 1)
        return len(known.accusers) >= FEWEST_ACCUSERS and len(known.electors) >= enough

    def _of(self, peer: PeerId) -> _Known:
        known = self._known.setdefault(peer, _Known())
        self._known.move_to_end(peer)
        if len(self._known) > MAX_KNOWN:
            del self._known[self._least(peer)]
        return known

    def _least(self, newest: PeerId) -> PeerId:
        """Who is forgotten for the newest: of those set aside, where they are more than half, the first one; else
        of the others the one with the shortest clean history."""
        aside = [peer for peer, known in self._known.items() if known.aside]
        if len(aside) > MAX_KNOWN // 2:
            return aside[0]
        others = [peer for peer, known in self._known.items() if not known.aside and peer != newest]
        return min(others, key=lambda peer: self._known[peer].clean)


# ------------------------------------------------------------------------------------------------------------------------
# How rollout peers and validators stand with this peer, on disk: a liar stays set aside when we start again.
#
# What makes us believe a peer less is written at once; what makes us believe it more may wait, and be lost: then it is
# checked more often than it would have to be.


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
