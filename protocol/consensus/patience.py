"""Which peers have stalled rounds lately: they are not waited for, and their turn to propose is passed over."""

from __future__ import annotations

from protocol.wire.identity import PeerId

MAX_STALLED = 1024
MAX_ROUNDS = 64


class Patience:
    """What one peer remembers from round to round.  Each stall costs twice as many rounds as the last; a round that a peer
    completes forgives one."""

    def __init__(self) -> None:
        self._stalled: dict[PeerId, tuple[int, int]] = {}
        """Peer: the first round in which it counts again, and for how many rounds it did not."""

    def lost_with(self, peer: PeerId, round: int) -> None:
        """This peer stalled this round."""
        until, rounds = self._stalled.pop(peer, (0, 0))
        if until > round:
            self._stalled[peer] = until, rounds  # this round was judged
            return
        rounds = min(max(1, 2 * rounds), MAX_ROUNDS)
        if len(self._stalled) >= MAX_STALLED:
            self._stalled.pop(next(iter(self._stalled)))
        self._stalled[peer] = round + 1 + rounds, rounds

    def delivered(self, peer: PeerId) -> None:
        """This peer did its part of a round."""
        until, rounds = self._stalled.get(peer, (0, 0))
        if rounds > 1:
            self._stalled[peer] = until, rounds // 2
        else:
            self._stalled.pop(peer, None)

    def has_for(self, peer: PeerId, round: int) -> bool:
        """Whether this peer is waited for in this round."""
        return self._stalled.get(peer, (0, 0))[0] <= round
