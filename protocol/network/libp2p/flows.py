"""How many sockets a peer gets, and how much of our line: by what they are seen to carry.  A pure machine for each peer.

Policy
* Near by, one socket fills a line.  Further away one that lost a packet needs many round trips to be as fast as before, so
  several share the loss: at first by the round-trip time, then by trying.
* Twice as many are tried after a second in which all of them always had something to send, carried less than `USED` of the
  peer's share of our line, and met no queue: where a line is full, packets wait, and their round trips take longer than the
  shortest one did.  More sockets would only push others aside there.
* What does not carry `GAIN` times as much within `TRIAL_S` is taken back, and not tried again for `REST_S`.
* A peer that takes less than `SLOW` of its share for `SLOW_TIMES` seconds in a row is left `MARGIN` more than it took at
  best; the others share the rest, until it takes all that it is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from protocol.network.libp2p.link import LONG_WAY_S, SocketState
from protocol.network.libp2p.rates import USED, Moved

MAX_FLOWS = 8
"""As many as pushes to one peer are under way in an exchange."""
FLOW_PER_RTT_S = 0.040
MOST_GUESSED = 4
TRIAL_S = 3.0
REST_S = 60.0
GAIN = 1.15
SLOW, SLOW_TIMES, MARGIN = 0.4, 5, 1.25


def first_guess(rtt_s: float) -> int:
    """1 near by, 2 from 10 ms of round-trip time, one more for each 40 ms, 4 at most."""
    return 1 if rtt_s < LONG_WAY_S else min(MOST_GUESSED, 2 + int(rtt_s / FLOW_PER_RTT_S))


def fair_shares(line: float, takes: Sequence[float]) -> list[float]:
    """`line` shared out so that nobody has less than another who does not take more (max-min fairness).

    takes: what each takes at most.  What nobody takes is shared out equally, so that whoever can take more is seen to.
    """
    if line == inf:
        return [inf] * len(takes)
    shares, left = [0.0] * len(takes), line
    order = sorted(range(len(takes)), key=lambda index: takes[index])
    for place, index in enumerate(order):
        shares[index] = min(takes[index], left / (len(order) - place))
        left -= shares[index]
    return [share + left / len(takes) for share in shares]


@dataclass(frozen=True)
class _Trial:
    """Twice as many sockets as before, which carried `before` bytes a second, until it is decided."""

    number: int
    before: float
    until: float
    best: float = 0.0


class Flows:
    """The sockets to one peer.  number: how many there may be.  takes: bytes a second that it takes at most (inf: all)."""

    def __init__(self) -> None:
        self.number = 1
        self.takes = inf
        self._moved = Moved()
        self._lately: deque[float] = deque(maxlen=SLOW_TIMES)
        """Rates of the last seconds in which it took little of its share."""
        self._trial: _Trial | None = None
        self._rest_until = 0.0

    def reached(self, rtt_s: float) -> None:
        """A socket was opened, with this round-trip time."""
        self.number = max(self.number, first_guess(rtt_s))

    def refused(self, number: int) -> None:
        """The peer gives us no more than `number` sockets."""
        self.number, self._trial, self._rest_until = max(1, number), None, inf

    def read(self, states: Mapping[Hashable, SocketState], share: float, busy: bool, now: float) -> None:
        """Take the states of all sockets, about every second.

        share: bytes a second that they were allowed together.  busy: all of them had something to send all the time.
        """
        moved = self._moved.since(states, now)
        if not busy:
            self._end_trial()
        if not busy or moved is None:
            return
        rate = moved.up
        enough = rate >= USED * share
        self._see_what_it_takes(rate, share, enough)
        if self._trial is not None:
            trial = self._trial
            self._trial = _Trial(trial.number, trial.before, trial.until, max(trial.best, rate))
            if now >= trial.until:
                self._decide(self._trial, now)
        elif self._may_try(states.values(), enough, now):
            self._trial = _Trial(self.number, rate, now + TRIAL_S)
            self.number = min(2 * self.number, MAX_FLOWS)

    def _see_what_it_takes(self, rate: float, share: float, enough: bool) -> None:
        if enough or (self.takes == inf and rate >= SLOW * share):
            self.takes = inf
            self._lately.clear()
            return
        self._lately.append(rate)
        if len(self._lately) == SLOW_TIMES:
            self.takes = MARGIN * max(self._lately)

    def _may_try(self, states: Collection[SocketState], enough: bool, now: float) -> bool:
        if enough or not states or self.number >= MAX_FLOWS or now < self._rest_until:
            return False
        return all(state.is_far and not state.queued for state in states)

    def _decide(self, trial: _Trial, now: float) -> None:
        self._trial = None
        if trial.best < GAIN * trial.before:
            self.number, self._rest_until = trial.number, now + REST_S

    def _end_trial(self) -> None:
        """There was too little to send to see what more sockets do."""
        if self._trial is not None:
            self.number, self._trial = self._trial.number, None
