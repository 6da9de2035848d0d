"""Where the electors stand, as their last heartbeats say: the evidence by which provisional records are judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.state.chain import Rank, rank
from protocol.state.history import History
from protocol.sync.branches import Candidate, Side, Standpoint, count, follows, returns
from protocol.wire.identity import PeerId

LATEST = 64
"""Provisional records that are looked at again, the newest ones: older ones have been followed by others long since."""
MAX_SIDES = 1024
"""Electors of which it is remembered where their chains leave ours."""


class Standpoints:
    """Asks `membership` for the others; we stand on our own tip."""

    def __init__(self, me: PeerId, history: History, membership: Membership, activity: Activity, listen_s: float) -> None:
        self._me, self._history, self._membership, self._activity = me, history, membership, activity
        self._listen_s = listen_s
        self._sides: dict[PeerId, Side] = {}
        """Where a peer's chain left ours when it showed it last: believed of that peer only."""
        self._ranks: dict[int, Rank] = {}
        """Of our provisional records beside which others were seen, by round."""
        self._leaving: dict[bytes, float] = {}
        """Tips before provisional records of ours, and since when most of their electors stand there."""

    def showed(self, peer: PeerId, side: Side) -> None:
        """The chain that `peer` showed, of verified records, leaves ours like this.  From any thread."""
        kept = list(self._sides.items())[-MAX_SIDES + 1 :]
        self._sides = dict(kept) | {peer: side}  # a new one, because another thread may be going through the old one

    def is_parting(self, tip: bytes) -> bool:
        """Whether some chain was seen to leave ours, or one that we looked at, at this tip."""
        return any(side.fork == tip for side in self._sides.values())

    def _heard(self, electors: Collection[PeerId]) -> dict[PeerId, Standpoint]:
        heard = {self._me: Standpoint(self._history.tip, self._activity.was_away)}
        for peer in electors:
            known = self._membership.get(peer)
            if peer != self._me and known is not None and self._membership.is_live(peer):
                beat = known.heartbeat
                is_ours = self._history.tips(beat.round, 1) == [beat.tip]
                heard[peer] = Standpoint(beat.tip, beat.was_away, None if is_ours else self._sides.get(peer))
        return heard

    def follow(self, electors: Sequence[PeerId], branch: Candidate) -> bool:
        """Whether we take over a verified provisional record and what stands on it.  electors: of the fork."""
        return follows(electors, count(electors, self._heard(electors), branch), was_away=self._activity.was_away)

    def back_to(self, settled: int = 0) -> int | None:
        """The round whose provisional record, and all after it, we give up; None when those we have hold.

        To be asked often.  A record is given up when its electors have stood before it for `listen_s`: when it was just
        made, most of them have yet to say that they are on it.  settled: rounds whose records are not given up.
        """
        history, now = self._history, trio.current_time()
        leaving: dict[bytes, float] = {}
        looked_at = [round for round in history.provisional[-LATEST:] if round >= settled]
        self._ranks = {round: self._rank(round) for round in looked_at if self.is_parting(history.tip_at(round))}
        for round in looked_at:
            electors, fork = history.roster_at(round).electorate.electors, history.tip_at(round)
            tips = frozenset(history.tips(round + 1, history.length - round))
            branch = Candidate(fork, tips, self._ranks.get(round))
            if returns(electors, count(electors, self._heard(electors), branch)):
                leaving[fork] = self._leaving.get(fork, now)
        self._leaving = leaving
        given_up = [round for round in looked_at if self._has_lost(history.tip_at(round), now)]
        return given_up[0] if given_up else None

    def _rank(self, round: int) -> Rank:
        known, history = self._ranks.get(round), self._history
        if known is not None and known.record == history.tip_at(round + 1):
            return known
        return rank(history.roster_at(round).electorate.electors, history.commit_at(round))

    def _has_lost(self, fork: bytes, now: float) -> bool:
        return fork in self._leaving and now - self._leaving[fork] >= self._listen_s
