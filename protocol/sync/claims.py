"""Who claims to have more than we have, and whom we look at next.

A heartbeat can claim any tip.  A peer that claims to be ahead and cannot show it with certified records and their state, or
shows a branch that loses, is not believed for a while, longer each time.  That goes for the peer, not for the tip: anybody
can claim the tip of an honest peer and show something else, and another peer may have a better certificate for the record.
Electors and members of our chain come first; strangers in the order in which they were first heard to claim, so that fresh
keys stand behind older ones.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import trio

from protocol.chain.base import RoundSettings
from protocol.chain.replica import Replica
from protocol.membership.liveness import Liveness, Membership
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# How far our chain is settled: records that we followed as they were made, long ago and many rounds back.
#
# A settled record yields to a full sibling only, or to a person; never to who is heard now.  Kept in memory: a peer that was
# away begins anew.


class Settled:
    """`now` is trio time.

    What we ratified is settled for good: we can say nothing else on that tip, and going back to it would help nobody.
    """

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._followed: deque[tuple[int, float]] = deque()
        """Rounds after records that we followed, with the times; those that are not settled yet."""
        self._rounds = self._bound = 0

    def follow(self, rounds: int, now: float) -> None:
        """We were there when the record after which there are `rounds` rounds was made."""
        self._followed.append((rounds, now))
        while self._followed:
            then, at = self._followed[0]
            if rounds - then < self._settings.settle_rounds or now - at < self._settings.settle_s:
                break
            self._rounds = then
            self._followed.popleft()

    def lose(self, rounds: int) -> None:
        """Our chain changed after `rounds` rounds: we did not follow what comes after as it was made."""
        self._rounds, self._bound = min(self._rounds, rounds), min(self._bound, rounds)
        self._followed = deque((then, at) for then, at in self._followed if then <= rounds)

    def begin_anew(self) -> None:
        """We were away: what we followed before was not all there was to follow."""
        self._followed.clear()

    def bind(self, rounds: int) -> None:
        """We have ratified the record after which there are `rounds` rounds."""
        self._bound = max(self._bound, rounds)

    @property
    def rounds(self) -> int:
        """Records below this one are settled, if they were followed."""
        return max(self._rounds, self._bound)


# ------------------------------------------------------------------------------------------------------------------------


MAX_REMEMBERED = 1024
"""Peers remembered as not believed, or as claimants."""
DISBELIEF_S = 5.0
MAX_DISBELIEF_S = 600.0
WAIT_S = 2.0
"""Until a provisional record that we did not take over is looked at again: who is heard changes."""
HOPE_S = 30.0
"""A newcomer waits so long for a chain that is claimed, and for no single claimant longer than it has failed by then."""
FALSE_STATE_S = 60.0
"""After a stranger's branch whose state was false, strangers are not followed for so long; twice as long the next time."""
MAX_SOURCES = 16
K = TypeVar("K")
V = TypeVar("V")


class Claims:
    """Compares live peers' tips, as their heartbeats say, with our chain."""

    def __init__(self, replica: Replica, membership: Membership) -> None:
        self._replica, self._membership = replica, membership
        self._disbelieved: dict[PeerId, tuple[float, float]] = {}
        self._first: dict[PeerId, int] = {}
        """The places of strangers in the order in which they were first heard to claim."""
        self._heard = 0
        self._strangers_until, self._strangers_pause = 0.0, FALSE_STATE_S

    def is_known(self, peer: PeerId) -> bool:
        """Whether it is an elector of our tip, or a member of our chain."""
        history = self._replica.history
        return history.has_member(peer) or peer in history.roster.electorate.electors

    def rounds_of(self, peer: PeerId) -> int:
        """How many rounds a peer's last heartbeat claims."""
        neighbour = self._membership.get(peer)
        return neighbour.heartbeat.round if neighbour else 0

    def ahead(self, *, known: bool) -> list[PeerId]:
        """Live, believed peers whose tip is not in our chain, in the order to look at them.

        known: of those that are electors or members; else of the others.
        """
        now = trio.current_time()
        if not known and now < self._strangers_until:
            return []
        claimants = sorted(peer for peer in self._leading(now) if self.is_known(peer) is known)
        if known:
            return sorted(claimants, key=self.rounds_of, reverse=True)
        for peer in claimants:
            if peer not in self._first:
                self._heard += 1
                _remember(self._first, peer, self._heard)
        return sorted(claimants, key=lambda peer: self._first.get(peer, self._heard))

    def _leading(self, now: float) -> list[PeerId]:
        """Live, believed peers whose tip is not in our chain.  Asked four times a second, when hardly any is."""
        history = self._replica.history
        length, tip, alive = history.length, history.tip, Liveness.ALIVE
        leading: list[PeerId] = []
        for peer, neighbour in self._membership:
            beat = neighbour.heartbeat
            if (beat.round == length and beat.tip == tip) or neighbour.liveness is not alive:
                continue
            if (beat.round == 0 and length > 0) or now < self._disbelieved.get(peer, (0.0, 0.0))[0]:
                continue
            if beat.round > length or history.tip_at(beat.round) != beat.tip:
                leading.append(peer)
        return leading

    def hopes(self) -> bool:
        """Whether somebody who is not believed just now may still show the way to a peer that has no record at all."""
        if trio.current_time() - self._membership.started > HOPE_S:
            return False
        for peer in self._membership.live_peers():
            neighbour = self._membership.get(peer)
            patience = self._disbelieved.get(peer, (0.0, 0.0))[1]
            if neighbour and neighbour.heartbeat.round > 0 and patience < HOPE_S:
                return True
        return False

    def sources(self, leader: PeerId | None = None) -> list[PeerId]:
        """Peers to fetch records' results and checkpoints from: the leader, then members; strangers where there are none."""
        live = self._membership.live_peers()
        first = [peer for peer in live if peer == leader]
        members = [peer for peer in live if peer != leader and self.is_known(peer)]
        others = [] if members else [peer for peer in live if peer != leader]
        return [*first, *members, *others][:MAX_SOURCES]

    # -- what came of it ----------------------------------------------------------------------------------------------

    def believe(self, peer: PeerId) -> None:
        """It showed what it claimed."""
        self._disbelieved.pop(peer, None)

    def postpone(self, peer: PeerId) -> None:
        """It showed records that we do not take over as long as the electors stand where they do, or more than we could look
        at now."""
        _, patience = self._disbelieved.pop(peer, (0.0, DISBELIEF_S / 2))
        _remember(self._disbelieved, peer, (trio.current_time() + WAIT_S, patience))

    def disbelieve(self, peer: PeerId) -> None:
        """What it claims is not looked at again for a while, twice as long as the last time."""
        _, patience = self._disbelieved.pop(peer, (0.0, DISBELIEF_S / 2))
        patience = min(patience * 2, MAX_DISBELIEF_S)
        _remember(self._disbelieved, peer, (trio.current_time() + patience, patience))

    def false_state(self, leader: PeerId) -> None:
        """The state of the branch that it showed was not what its records say."""
        self.disbelieve(leader)
        if not self.is_known(leader):
            self._strangers_until = trio.current_time() + self._strangers_pause
            self._strangers_pause = min(self._strangers_pause * 2, MAX_DISBELIEF_S)


def _remember(table: dict[K, V], key: K, value: V) -> None:
    if key not in table and len(table) >= MAX_REMEMBERED:
        table.pop(next(iter(table)))
    table[key] = value
