"""Which peers have stalled rounds lately: they are not waited for, and their turn to propose is passed over."""

from __future__ import annotations

from protocol.wire.identity import PeerId

MAX_STALLED = 1024
FIRST_ROUNDS, MAX_ROUNDS = 4, 64
"""Rounds that the first stall costs, and the most that one costs."""


class Stalls:
    """The first stall of a peer costs it `FIRST_ROUNDS`, each further one twice as many as the last; each time that it does
    its part forgives one."""

    def __init__(self) -> None:
        self._stalled: dict[PeerId, tuple[int, int]] = {}
        """Peer: the first round in which it counts again, and for how many rounds it did not."""

    def lost_with(self, peer: PeerId, round: int) -> None:
        """This peer stalled this round."""
        until, rounds = self._stalled.pop(peer, (0, 0))
        if until > round:
            self._stalled[peer] = until, rounds  # this round was judged
            return
        rounds = min(max(FIRST_ROUNDS, 2 * rounds), MAX_ROUNDS)
        if len(self._stalled) >= MAX_STALLED:
            self._stalled.pop(next(iter(self._stalled)))
        self._stalled[peer] = round + 1 + rounds, rounds

    def delivered(self, peer: PeerId, round: int) -> None:
        """This peer did its part of this round.  It is forgiven only in a round in which it counts: nobody stalls the next
        round because it was quick while nobody waited for it."""
        until, rounds = self._stalled.get(peer, (0, 0))
        if until > round:
            return
        if rounds > FIRST_ROUNDS:
            self._stalled[peer] = until, rounds // 2
        else:
            self._stalled.pop(peer, None)

    def has_for(self, peer: PeerId, round: int) -> bool:
        """Whether this peer is waited for in this round."""
        return self._stalled.get(peer, (0, 0))[0] <= round


class Patience:
    """What one peer remembers from round to round.  trainers: that kept a round from being closed; proposers: under whom
    nothing moved; members: that owed something in an exchange.  Who is late as one of them may be in time as another."""

    def __init__(self) -> None:
        self.trainers, self.proposers, self.members = Stalls(), Stalls(), Stalls()
