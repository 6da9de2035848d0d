"""How many sockets a peer gets, and how much of our line: by what they are seen to carry.  A pure machine for each peer.

Policy
* Near by, one socket fills a line.  Further away one that lost a packet needs many round trips to be as fast as before, so
  several share the loss: at first by the round-trip time, then by trying.
* Twice as many are tried after a second in which all of them always had something to send, carried less than `USED` of the
  peer's share of our line, and met no queue: where a line is full, packets wait, and their round trips take longer than the
  shortest one did.  More sockets would only push others aside there.
* What does not carry `GAIN` times as much in the `TRIAL_S` after all of them were open is taken back, and not tried again
  for `REST_S`; nor is what could not be opened.
* A peer that takes less than `SLOW` of its share for `SLOW_TIMES` seconds in a row is left `MARGIN` more than it took at
  best; the others share the rest, until it takes all that it is left.  Its sockets are allowed `LEAST_BYTES_PER_S` all the
  same, of which it takes what it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from protocol.network.libp2p.link import LONG_WAY_S, SocketState
from protocol.network.libp2p.rates import USED, Moved

MAX_FLOWS = 8
"""As many as pushes to one peer are under way in an exchange."""
FLOW_PER_RTT_S = 0.040
MOST_GUESSED = 4
OPENING_S, TRIAL_S = 10.0, 3.0
REST_S = 60.0
GAIN = 1.15
SLOW, SLOW_TIMES, MARGIN = 0.4, 5, 1.25
LEAST_BYTES_PER_S = float(256 << 10)
"""Linux paces what it hands to a line at once as a whole: with much less, a socket would stand still for minutes."""


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
    """Twice as many sockets as the `number` before, which carried `before` bytes a second.

    until: when it is decided; before all are open, when they have to be.
    """

    number: int
    before: float
    until: float
    is_open: bool = False
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

    def refused(self, number: int, now: float) -> None:
        """One more than `number` sockets could not be opened, for a reason on either side."""
        self.number, self._trial, self._rest_until = max(1, min(number, self.number)), None, now + REST_S

    def read(self, states: Mapping[Hashable, SocketState], share: float, busy: bool, now: float) -> None:
        """Take the states of all sockets, about every second.

        share: bytes a second that they were allowed together.  busy: all of them had something to send all the time.
        """
        moved = self._moved.since(states, now)
        if not busy:
            self._lately.clear()
            self._end_trial()
        if not busy or moved is None:
            return
        rate = moved.up
        enough = rate >= USED * share
        self._see_what_it_takes(rate, share, enough)
        if self._trial is not None:
            self._go_on(self._trial, len(states), rate, now)
        elif self._may_try(states.values(), enough, now):
            self._trial = _Trial(self.number, rate, now + OPENING_S)
            self.number = min(2 * self.number, MAX_FLOWS)

    def pace(self, share: float) -> float:
        """Bytes a second that its sockets are allowed together when this is its share of our line."""
        return share if self.takes == inf else max(share, LEAST_BYTES_PER_S)

    def _see_what_it_takes(self, rate: float, share: float, enough: bool) -> None:
        if enough or (self.takes == inf and rate >= SLOW * share):
            self.takes = inf
            self._lately.clear()
            return
        self._lately.append(rate)
        if len(self._lately) == SLOW_TIMES:
            self.takes = max(MARGIN * max(self._lately), 1.0)

    def _may_try(self, states: Collection[SocketState], enough: bool, now: float) -> bool:
        if enough or not states or self.number >= MAX_FLOWS or now < self._rest_until:
            return False
        return all(state.is_far and not state.queued for state in states)

    def _go_on(self, trial: _Trial, sockets: int, rate: float, now: float) -> None:
        if trial.is_open:
            trial = replace(trial, best=max(trial.best, rate))
        elif sockets >= self.number:
            trial = replace(trial, is_open=True, until=now + TRIAL_S)
        self._trial = trial
        if now >= trial.until:
            self._trial = None
            if trial.best < GAIN * trial.before:
                self.number, self._rest_until = trial.number, now + REST_S

    def _end_trial(self) -> None:
        """There was too little to send to see what more sockets do."""
        if self._trial is not None:
            self.number, self._trial = self._trial.number, None
