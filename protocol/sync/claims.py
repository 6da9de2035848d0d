"""Claims of peers to be ahead of us, and the order in which we look at them.

A heartbeat can claim any tip.  A claimant has to show certified records and their state.  If it cannot, or if its branch
loses, it is disbelieved for a while, longer each time.  The peer is disbelieved, not the tip: anybody can claim the tip of
an honest peer and show something else, and another peer may have a better certificate for the record.  Electors and members
of our chain come first.  Strangers follow in the order of their first claims, so that fresh keys stand behind older ones.
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
# Settled records of our chain: we followed them as they were made, long ago and many rounds back.
#
# A settled record yields only to a full sibling, or to a person's choice, whatever electors are heard now.  Kept in memory:
# a peer that was away begins anew.


class Settled:
    """The settled part of our chain.  `now` is trio time.

    A record that we ratified is settled for good: we can say nothing else on its tip, and going back to that tip would help
    nobody.
    """

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._followed: deque[tuple[int, float]] = deque()
        """Rounds after records that we followed and that are not settled yet, each with its time."""
        self._rounds = self._bound = 0

    def follow(self, rounds: int, now: float) -> None:
        """Note that we saw a record being made: the one after which there are `rounds` rounds."""
        self._followed.append((rounds, now))
        while self._followed:
            then, at = self._followed[0]
            if rounds - then < self._settings.settle_rounds or now - at < self._settings.settle_s:
                break
            self._rounds = then
            self._followed.popleft()

    def lose(self, rounds: int) -> None:
        """Note that our chain changed after `rounds` rounds: we did not see the later records being made."""
        self._rounds, self._bound = min(self._rounds, rounds), min(self._bound, rounds)
        self._followed = deque((then, at) for then, at in self._followed if then <= rounds)

    def begin_anew(self) -> None:
        """Forget the records followed so far: we were away, so they were not all."""
        self._followed.clear()

    def bind(self, rounds: int) -> None:
        """Note that we have ratified the record after which there are `rounds` rounds."""
        self._bound = max(self._bound, rounds)

    @property
    def rounds(self) -> int:
        """Number of settled rounds: records below it are settled, if they were followed."""
        return max(self._rounds, self._bound)


# ------------------------------------------------------------------------------------------------------------------------


MAX_REMEMBERED = 1024
"""Most peers remembered as disbelieved, and most as claimants."""
DISBELIEF_S = 5.0
MAX_DISBELIEF_S = 600.0
WAIT_S = 2.0
"""Seconds until we look again at a provisional record that we did not take over: other electors may be heard by then."""
HOPE_S = 30.0
"""Seconds that a newcomer waits for a claimed chain.  A claimant disbelieved for as long is not waited for."""
FALSE_STATE_S = 60.0
"""Seconds without following strangers after a stranger's branch had a false state; doubled each time."""
MAX_SOURCES = 16
K = TypeVar("K")
V = TypeVar("V")


class Claims:
    """Comparison of live peers' tips, as their heartbeats say, with our chain."""

    def __init__(self, replica: Replica, membership: Membership) -> None:
        self._replica, self._membership = replica, membership
        self._disbelieved: dict[PeerId, tuple[float, float]] = {}
        self._first: dict[PeerId, int] = {}
        """Places of strangers in the order of their first claims."""
        self._heard = 0
        self._strangers_until, self._strangers_pause = 0.0, FALSE_STATE_S

    def is_known(self, peer: PeerId) -> bool:
        """Return True if the peer is an elector of our tip, or a member of our chain."""
        history = self._replica.history
        return history.has_member(peer) or peer in history.roster.electorate.electors

    def rounds_of(self, peer: PeerId) -> int:
        """Return the number of rounds that a peer's last heartbeat claims."""
        neighbour = self._membership.get(peer)
        return neighbour.heartbeat.round if neighbour else 0

    def ahead(self, *, known: bool) -> list[PeerId]:
        """Return live, believed peers whose tip is not in our chain, in the order to look at them.

        known: return electors and members if True, strangers if False.
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
        """Return live, believed peers whose tip is not in our chain.  Called four times a second, mostly without any."""
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
        """Return True if a peer that is disbelieved just now may still help a newcomer without any record."""
        if trio.current_time() - self._membership.started > HOPE_S:
            return False
        for peer in self._membership.live_peers():
            neighbour = self._membership.get(peer)
            patience = self._disbelieved.get(peer, (0.0, 0.0))[1]
            if neighbour and neighbour.heartbeat.round > 0 and patience < HOPE_S:
                return True
        return False

    def sources(self, leader: PeerId | None = None) -> list[PeerId]:
        """Return the peers to fetch results and checkpoints from: the leader, then members (strangers if there are none)."""
        live = self._membership.live_peers()
        first = [peer for peer in live if peer == leader]
        members = [peer for peer in live if peer != leader and self.is_known(peer)]
        others = [] if members else [peer for peer in live if peer != leader]
        return [*first, *members, *others][:MAX_SOURCES]

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def believe(self, peer: PeerId) -> None:
        """Believe a peer again: it showed the chain it had claimed."""
        self._disbelieved.pop(peer, None)

    def postpone(self, peer: PeerId) -> None:
        """Look at a peer again after `WAIT_S`, without disbelieving it longer.

        It showed records that we do not take over while the electors stand where they do, or more than we can look at now.
        """
        _, patience = self._disbelieved.pop(peer, (0.0, DISBELIEF_S / 2))
        _remember(self._disbelieved, peer, (trio.current_time() + WAIT_S, patience))

    def disbelieve(self, peer: PeerId) -> None:
        """Ignore a peer's claims for a while, twice as long as the last time."""
        _, patience = self._disbelieved.pop(peer, (0.0, DISBELIEF_S / 2))
        patience = min(patience * 2, MAX_DISBELIEF_S)
        _remember(self._disbelieved, peer, (trio.current_time() + patience, patience))

    def false_state(self, leader: PeerId) -> None:
        """Disbelieve a peer whose branch had a false state; if it is a stranger, follow no strangers for a while."""
        self.disbelieve(leader)
        if not self.is_known(leader):
            self._strangers_until = trio.current_time() + self._strangers_pause
            self._strangers_pause = min(self._strangers_pause * 2, MAX_DISBELIEF_S)


def _remember(table: dict[K, V], key: K, value: V) -> None:
    if key not in table and len(table) >= MAX_REMEMBERED:
        table.pop(next(iter(table)))
    table[key] = value
