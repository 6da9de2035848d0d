"""The view that `protocol.consensus.policy` decides by, made from what membership has heard."""

from __future__ import annotations

import trio

from protocol.consensus.terms import PeerView, View
from protocol.membership.liveness import Liveness, Membership
from protocol.state.base import Base
from protocol.wire.identity import PeerId
from protocol.wire.presence import Heartbeat, Phase, Role

AT_WORK = frozenset({Phase.COMPUTING, Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases of a trainer that is waited for: on our tip, or an elector about to be."""
ARRIVING = AT_WORK | {Phase.SYNCING}
NEAR_ROUNDS = 2
"""A peer that is no further behind is about to be on our tip."""


def look_around(me: PeerId, membership: Membership, bytes_per_s: float, base: Base, computing: bool) -> View:
    """All peers that we know and all electors, as they look now to the round on `base`; ourselves too.

    bytes_per_s: what our own line carries.  computing: whether we train.
    """
    now = trio.current_time()
    membership.notice(now)
    view: dict[PeerId, PeerView] = {}
    for peer, known in membership:
        beat, live = known.heartbeat, known.liveness is Liveness.ALIVE
        trains = live and beat.role is Role.TRAINER
        view[peer] = PeerView(
            live=live,
            on_tip=trains and _on_tip(beat, base, peer in base.electors),
            left=known.liveness is Liveness.LEFT,
            silent_s=now - known.heard,
            bytes_per_s=min(beat.up_bytes_per_s, beat.down_bytes_per_s),
            near=trains and _near(beat, base),
        )
    for peer in base.electors:
        if peer not in view:
            view[peer] = PeerView(False, False, membership.has_left(peer), membership.silent_s(peer, now))
    view[me] = PeerView(True, computing, False, 0.0, bytes_per_s)
    return view


def _on_tip(beat: Heartbeat, base: Base, elector: bool) -> bool:
    """At work on our tip, or an elector whose last heartbeat is from before the commit that made it."""
    return beat.phase in AT_WORK and (beat.tip == base.tip or (elector and beat.round < base.round))


def _near(beat: Heartbeat, base: Base) -> bool:
    """About to be at work on our tip; a peer with as many rounds and another tip is on a fork."""
    return beat.phase in ARRIVING and (beat.tip == base.tip or 0 < base.round - beat.round <= NEAR_ROUNDS)
