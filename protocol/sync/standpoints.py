"""Where the electors stand, as their last heartbeats say: the evidence by which provisional records are judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.state.history import History
from protocol.sync.branches import Standpoint, count, follows, returns
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

LATEST = 64
"""Provisional records that are looked at again, the newest ones: older ones have been followed by others long since."""


class Standpoints:
    """Asks `membership` for the others; we stand on our own tip."""

    def __init__(self, me: PeerId, history: History, membership: Membership, activity: Activity, listen_s: float) -> None:
        self._me, self._history, self._membership, self._activity = me, history, membership, activity
        self._listen_s = listen_s
        self._leaving: dict[bytes, float] = {}
        """Tips before provisional records of ours, and since when most of their electors stand there."""

    def _heard(self, electors: Collection[PeerId]) -> dict[PeerId, Standpoint]:
        heard = {self._me: Standpoint(self._history.tip, self._activity.was_away)}
        for peer in electors:
            known = self._membership.get(peer)
            if peer != self._me and known is not None and self._membership.is_live(peer):
                heard[peer] = Standpoint(known.heartbeat.tip, known.heartbeat.was_away)
        return heard

    def follow(self, electors: Sequence[PeerId], branch: Sequence[bytes], fork: Hash, rounds: int) -> bool:
        """Whether we take over a verified provisional record that stands on `fork`, after `rounds` rounds.

        branch: the tips after it, from that of the record itself on.
        """
        ours = self._history.tips(rounds, self._history.length + 1 - rounds)
        after = ours[1:] if ours and ours[0] == fork else []
        counted = count(electors, self._heard(electors), frozenset(branch), frozenset([fork, *after]))
        return follows(electors, counted, was_away=self._activity.was_away)

    def back_to(self, settled: int = 0) -> int | None:
        """The round whose provisional record, and all after it, we give up; None when those we have hold.

        To be asked often.  A record is given up when its electors have stood before it for `listen_s`: when it was just
        made, most of them have yet to say that they are on it.  settled: rounds whose records are not given up.
        """
        history, now = self._history, trio.current_time()
        leaving: dict[bytes, float] = {}
        looked_at = [round for round in history.provisional[-LATEST:] if round >= settled]
        for round in looked_at:
            electors, fork = history.roster_at(round).electorate.electors, history.tip_at(round)
            branch = frozenset(history.tips(round + 1, history.length - round))
            if returns(electors, count(electors, self._heard(electors), branch, frozenset([fork]))):
                leaving[fork] = self._leaving.get(fork, now)
        self._leaving = leaving
        given_up = [round for round in looked_at if self._has_lost(history.tip_at(round), now)]
        return given_up[0] if given_up else None

    def _has_lost(self, fork: bytes, now: float) -> bool:
        return fork in self._leaving and now - self._leaving[fork] >= self._listen_s
