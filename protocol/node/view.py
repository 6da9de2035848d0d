"""The view that `protocol.consensus.policy` decides by, made from what membership has heard."""

from __future__ import annotations

import trio

from protocol.consensus.terms import PeerView, View
from protocol.membership.liveness import Liveness, Membership, Neighbour
from protocol.state.base import Base
from protocol.wire.identity import PeerId
from protocol.wire.presence import Heartbeat, Phase, Role

AT_WORK = frozenset({Phase.COMPUTING, Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases of a trainer that is waited for: on our tip, or an elector about to be."""
ARRIVING = AT_WORK | {Phase.SYNCING}
NEAR_ROUNDS = 2
"""A peer that is no further behind is about to be on our tip."""


class Surroundings:
    """How the other peers look to the round on `base`.

    A live peer looks the same until its next heartbeat: what is made of it is kept, for a view is made with each statement.
    """

    def __init__(self, me: PeerId, membership: Membership, base: Base) -> None:
        self._me, self._membership, self._base = me, membership, base
        self._live: dict[PeerId, tuple[Heartbeat, PeerView]] = {}

    def look_around(self, bytes_per_s: float, computing: bool) -> View:
        """All peers that we know and all electors, as they look now; ourselves too.

        bytes_per_s: what our own line carries.  computing: whether we train.
        """
        now, membership, alive = trio.current_time(), self._membership, Liveness.ALIVE
        membership.notice(now)
        view: dict[PeerId, PeerView] = {}
        live: dict[PeerId, tuple[Heartbeat, PeerView]] = {}
        for peer, known in membership:
            if known.liveness is not alive:
                view[peer] = _not_live(known, now)
                continue
            seen = self._live.get(peer)
            if seen is None or seen[0] is not known.heartbeat:
                seen = known.heartbeat, self._of_live(peer, known.heartbeat)
            live[peer], view[peer] = seen, seen[1]
        self._live = live
        for peer in self._base.electors:
            if peer not in view:
                view[peer] = PeerView(False, False, membership.has_left(peer), membership.silent_s(peer, now))
        view[self._me] = PeerView(True, computing, False, 0.0, bytes_per_s)
        return view

    def steps_ahead(self) -> int:
        """How many steps more than half of the other electors have done on our tip, by their last heartbeats."""
        now = trio.current_time()
        self._membership.notice(now)
        beats = {peer: known.heartbeat for peer, known in self._membership if known.liveness is Liveness.ALIVE}
        electors = [peer for peer in self._base.electors if peer != self._me]
        steps = sorted(self._steps(beats[peer]) if peer in beats else 0 for peer in electors)
        return steps[(len(steps) - 1) // 2] if steps else 0

    def _steps(self, beat: Heartbeat) -> int:
        return beat.steps if beat.phase in AT_WORK and beat.tip == self._base.tip else 0

    def _of_live(self, peer: PeerId, beat: Heartbeat) -> PeerView:
        base, trains = self._base, beat.role is Role.TRAINER
        return PeerView(
            live=True,
            on_tip=trains and _on_tip(beat, base, peer in base.electors),
            left=False,
            silent_s=0.0,
            bytes_per_s=_bytes_per_s(beat),
            near=trains and _near(beat, base),
        )


def _not_live(known: Neighbour, now: float) -> PeerView:
    left = known.liveness is Liveness.LEFT
    return PeerView(False, False, left, now - known.heard, _bytes_per_s(known.heartbeat))


def _bytes_per_s(beat: Heartbeat) -> float:
    return min(beat.up_bytes_per_s, beat.down_bytes_per_s)


def _on_tip(beat: Heartbeat, base: Base, elector: bool) -> bool:
    """At work on our tip, or an elector whose last heartbeat is from before the commit that made it."""
    return beat.phase in AT_WORK and (beat.tip == base.tip or (elector and beat.round < base.round))


def _near(beat: Heartbeat, base: Base) -> bool:
    """About to be at work on our tip; a peer with as many rounds and another tip is on a fork."""
    return beat.phase in ARRIVING and (beat.tip == base.tip or 0 < base.round - beat.round <= NEAR_ROUNDS)
