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

from protocol.transport.link import LONG_WAY_S, SocketState

# ------------------------------------------------------------------------------------------------------------------------
# Measurements of the rate of bulk data, and what follows from them.
#
# `Gauge` measures what the links can carry: the best second in which data moved, counted by the kernel where it tells
# (acknowledged and received bytes, so that a full buffer is not taken for bandwidth).  It is forgotten slowly: at the end of
# an exchange one slow member may be fed alone for minutes.
#
# `Gauge.offer_bytes_per_s` is what there is to share out to the sockets that use our line.  Were it not shared out, one TCP
# connection might get a third of what another gets over a full line, for the length of an exchange, which would then end
# with one flow alone on lines that idle.  Sockets that have just begun carry less than the line can: where most go a long
# way, a second without a pace measures the line only if packets met a queue.  Nor does a socket that waits for the other
# end, as for a relay, or a peer that limits what comes: were a relay's rate taken for our line's, all others were held to it
# for minutes.


WINDOW_S = 1.0
WINDOWS = 64
SMALLEST_SAMPLE_BYTES = 256 << 10
PACED_BELOW = 125e6
"""Bytes a second from which a line is left to TCP: there the processor is the limit."""
GROWTH, FREE_GROWTH = 1.04, 1.5
"""The line is offered this much more than it was seen to carry, so that the measurement can grow; the second where the way
is long and no packet met a queue, so that the line is not full."""
KEPT = 0.998
"""Of the best rate, after each window in which data moved: half of it after six minutes of these."""
FORGET_S = 600.0
"""Measurements of the line that are older are dropped."""
SENDS = 0.5
"""A socket measures the line if it was sending for so much of a window; else it waited for the other end."""
USED = 0.9
"""A window measures the line if it carried so much of what it was offered; otherwise other lines were the limit."""
NEW = SocketState(0.0, 0, 0)


@dataclass(frozen=True)
class Rates:
    """Bytes a second."""

    up: float
    down: float


class Moved:
    """What sockets carry between two looks at them; one that was not there the last time does not count."""

    def __init__(self) -> None:
        self._before: dict[Hashable, SocketState] = {}
        self._at = 0.0

    def since(self, states: Mapping[Hashable, SocketState], now: float) -> Rates | None:
        """What all of them together carried since the last call; None if none of them was there."""
        seconds, known = now - self._at, [(self._before.get(link), state) for link, state in states.items()]
        both = [(before, after) for before, after in known if before is not None]
        self._before, self._at = dict(states), now
        if not both or seconds <= 0:
            return None
        return Rates(
            sum(after.acked_bytes - before.acked_bytes for before, after in both) / seconds,
            sum(after.received_bytes - before.received_bytes for before, after in both) / seconds,
        )

    def always_sends(self, link: Hashable, state: SocketState, now: float) -> bool:
        """Whether this socket had something on its way since the last call of `since`, and the other end would take it."""
        before = self._before.get(link, NEW)
        busy_s, held_back_s = state.busy_s - before.busy_s, state.held_back_s - before.held_back_s
        return busy_s - held_back_s >= SENDS * (now - self._at)


class Gauge:
    """Measures the bytes a second that the bulk sockets together carry, up and down; 0 while nothing is known."""

    def __init__(self) -> None:
        self._best = Rates(0.0, 0.0)
        self._full: deque[tuple[float, float]] = deque(maxlen=WINDOWS)
        self._moved = Moved()
        self._at = 0.0
        self._growth = GROWTH

    def read(
        self,
        states: Mapping[Hashable, SocketState],
        now: float,
        offered: float,
        sending: Mapping[Hashable, SocketState] = {},
    ) -> None:
        """Take the states of all sockets, about every `WINDOW_S`.  A window in which little moved is ignored.

        offered: bytes a second that the sockets were allowed all the time; 0 when there was not always something to send.
        sending: the states of those that share the line.
        """
        measuring = [state for link, state in sending.items() if self._moved.always_sends(link, state, now)]
        seconds, self._at = now - self._at, now
        moved = self._moved.since(states, now) or Rates(0.0, 0.0)
        self._best = Rates(_better(self._best.up, moved.up, seconds), _better(self._best.down, moved.down, seconds))
        is_far = 2 * sum(state.is_far for state in measuring) > len(measuring)
        is_queued = any(state.queued for state in measuring)
        self._growth = FREE_GROWTH if is_far and not is_queued else GROWTH
        if offered == inf:
            was_full = is_queued or (bool(measuring) and not is_far)
        else:  # a queue may be on somebody else's line
            was_full = moved.up >= min(USED * offered, self.line_bytes_per_s)
        if moved.up * seconds >= SMALLEST_SAMPLE_BYTES and offered and was_full:
            self._full.append((now, moved.up))
        while self._full and now - self._full[0][0] > FORGET_S:
            self._full.popleft()

    @property
    def up_bytes_per_s(self) -> float:
        """The best of the windows, and less the longer ago it was."""
        return self._best.up

    @property
    def down_bytes_per_s(self) -> float:
        """As `up_bytes_per_s`."""
        return self._best.down

    @property
    def line_bytes_per_s(self) -> float:
        """The rate of our line in windows in which it was always in use; 0 while that is not known."""
        return max((rate for _, rate in self._full), default=0.0)

    @property
    def offer_bytes_per_s(self) -> float:
        """What there is to share out to the sockets on our line; infinite where it is not known, or left to TCP."""
        return self.line_bytes_per_s * self._growth if 0 < self.line_bytes_per_s < PACED_BELOW else inf


def _better(best: float, rate: float, seconds: float) -> float:
    """What is taken for the best rate after a window of so many seconds; one in which little moved says nothing."""
    return max(rate, KEPT * best) if rate * seconds >= SMALLEST_SAMPLE_BYTES else best


# ------------------------------------------------------------------------------------------------------------------------


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
