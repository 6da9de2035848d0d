"""Our clock, compared with others' clocks: each peer that we greet says what its own shows.

Only the expiry of invitations goes by a wall clock.  The comparison makes a sentence and changes nothing else.  It is the
median of several peers, so that no single one can make it wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from statistics import median

from protocol.wire.identity import PeerId

MAX_PEERS = 32
"""The peers greeted last, which are compared."""
LEAST_PEERS = 3
TOLERANCE_S = 60.0


class ClockOffsets:
    """The clocks of the peers that we greeted last, each as seconds ahead of `boot`.

    wall: our clock, in unix seconds.  boot: seconds on a clock that nobody sets, so that `skew` ends when ours is set right.
    """

    def __init__(self, wall: Callable[[], float], boot: Callable[[], float]) -> None:
        self._wall, self.boot = wall, boot
        self._offsets: OrderedDict[PeerId, float] = OrderedDict()
        self._warned = False

    def note(self, peer: PeerId, clock: float, asked: float) -> None:
        """Take the `clock` in the answer of `peer`, which has just come.  asked: when we asked, by `boot`."""
        self._offsets[peer] = clock - (asked + self.boot()) / 2
        self._offsets.move_to_end(peer)
        if len(self._offsets) > MAX_PEERS:
            self._offsets.popitem(last=False)

    @property
    def compared(self) -> int:
        """Peers that our clock is compared with; 0 while they are too few."""
        return len(self._offsets) if len(self._offsets) >= LEAST_PEERS else 0

    @property
    def skew(self) -> str:
        """ "2 h 3 min behind the clocks of 5 peers"; empty within the tolerance, and while too few are known."""
        if not self.compared:
            return ""
        offset_s = median(self._offsets.values()) - (self._wall() - self.boot())
        if abs(offset_s) <= TOLERANCE_S:
            return ""
        return f"{_span(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'} the clocks of {self.compared} peers"

    def take_warning(self) -> str:
        """The sentence for the log, once; empty otherwise."""
        skew = self.skew
        if not skew or self._warned:
            return ""
        self._warned = True
        return f"this computer's clock is {skew}; set it (invitations end by it)"


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"
