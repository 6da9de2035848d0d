"""The sockets to each peer, and each peer's share of our line, from measured rates.  No input or output.

Policy
* On a short path, one socket fills the line.  On a long path, a socket that lost a packet needs many round trips to regain
  its speed, so `FAR_SOCKETS` sockets share the loss.
* If a peer takes less than `SLOW` of its share for `SLOW_TIMES` seconds in a row, its share becomes `MARGIN` times the most
  that it took, and the other peers share the rest, until the peer takes its whole share again.  Its sockets may still send
  `LEAST_BYTES_PER_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from protocol.transport.bulk_link import LONG_WAY_S, SocketState

# ------------------------------------------------------------------------------------------------------------------------
# Measurements of the rate of bulk data, and the rate that is shared out.
#
# `Gauge` measures the capacity of the links: the rate in the best second, by the kernel's counts of acknowledged and
# received bytes, so that a full buffer does not look like bandwidth.  The best rate decays slowly, because at the end of an
# exchange we may send to one slow member alone for minutes.
#
# `Gauge.offer_bytes_per_s` is the rate shared out to the sockets that use our line.  Without such shares, one TCP connection
# may get a third of another's rate over a full line for a whole exchange, which then ends with a single flow on otherwise
# idle lines.  New sockets carry less than the line can, so while most sockets have long paths, a second without pacing
# measures the line only if packets met a queue.  A socket that waits for the other end, such as a relay or a peer that
# limits its rate, does not measure the line either: if we took a relay's rate for the rate of our line, we would limit all
# other peers to it for minutes.


WINDOW_S = 1.0
WINDOWS = 64
SMALLEST_SAMPLE_BYTES = 64 << 10
"""Smallest number of bytes in a window that counts; lines down to half a Mbit/s carry as much in a second."""
PACED_BELOW = 125e6
"""Bytes a second from which we leave the sharing of a line to TCP, because the processor is the limit."""
GROWTH, FREE_GROWTH = 1.04, 1.5
"""Factors by which the offer exceeds the measured rate, so that the measurement can grow.  The second factor applies if
the path is long and no packet met a queue: then the line is not full."""
KEPT = 0.998
"""Factor of decay of the best rate after each window in which data moved: a half is left after six minutes of windows."""
FORGET_S = 600.0
"""Age at which measurements of the line are dropped (s)."""
SENDS = 0.5
"""Part of a window in which a socket must be sending to measure the line; otherwise the socket waited for the other end."""
USED = 0.9
"""Part of the offer that must be carried in a window that measures our line; otherwise other lines were the limit."""
NEW = SocketState(0.0, 0, 0)


@dataclass(frozen=True)
class Rates:
    """Rates in both directions (bytes a second)."""

    up: float
    down: float


class Moved:
    """The rates of sockets between two readings.  A socket without an earlier reading does not count."""

    def __init__(self) -> None:
        self._before: dict[Hashable, SocketState] = {}
        self._at = 0.0

    def since(self, states: Mapping[Hashable, SocketState], now: float) -> Rates | None:
        """Return the total rates of all sockets since the last call; None if no socket was present at the last call."""
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
        """Return True if a socket sent for `SENDS` of the time since the last reading, not held back by the other end."""
        before = self._before.get(link, NEW)
        busy_s, held_back_s = state.busy_s - before.busy_s, state.held_back_s - before.held_back_s
        return busy_s - held_back_s >= SENDS * (now - self._at)


class Gauge:
    """The measured rates of all bulk sockets together, up and down (bytes a second); 0 while unknown."""

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
        """Read the states of all sockets; called about every `WINDOW_S`.  A window with little data is ignored.

        offered: bytes a second that the sockets were allowed throughout; 0 if they did not always have data to send.
        sending: the states of the sockets that share the line.
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
        else:  # a queue may be on another peer's line
            was_full = moved.up >= min(USED * offered, self.line_bytes_per_s)
        if moved.up * seconds >= SMALLEST_SAMPLE_BYTES and offered and was_full:
            self._full.append((now, moved.up))
        while self._full and now - self._full[0][0] > FORGET_S:
            self._full.popleft()

    @property
    def up_bytes_per_s(self) -> float:
        """The rate of the best window, decreasing with its age."""
        return self._best.up

    @property
    def down_bytes_per_s(self) -> float:
        """The rate of the best window, as for `up_bytes_per_s`."""
        return self._best.down

    @property
    def line_bytes_per_s(self) -> float:
        """The best rate of our line in windows in which the line was fully used; 0 while unknown."""
        return max((rate for _, rate in self._full), default=0.0)

    @property
    def offer_bytes_per_s(self) -> float:
        """The rate to share out to the sockets on our line; infinite if unknown or left to TCP."""
        return self.line_bytes_per_s * self._growth if 0 < self.line_bytes_per_s < PACED_BELOW else inf


def _better(best: float, rate: float, seconds: float) -> float:
    """Return the new best rate after a window of `seconds` at `rate`.  A window with little data is ignored."""
    return max(rate, KEPT * best) if rate * seconds >= SMALLEST_SAMPLE_BYTES else best


# ------------------------------------------------------------------------------------------------------------------------


FAR_SOCKETS = 4
"""Sockets to a peer whose round trip is long."""
SLOW, SLOW_TIMES, MARGIN = 0.4, 5, 1.25
LEAST_BYTES_PER_S = float(256 << 10)
"""Lowest pace of a peer's sockets.  Linux paces whole bursts; at a much lower pace a socket may stall for minutes."""


def fair_shares(line: float, takes: Sequence[float]) -> list[float]:
    """Share out `line` by max-min fairness: a peer gets less than another only if it can take no more.

    takes: the most that each peer takes.  Any surplus is shared out equally, so that we notice a peer that can take more.
    """
    if line == inf:
        return [inf] * len(takes)
    shares, left = [0.0] * len(takes), line
    order = sorted(range(len(takes)), key=lambda index: takes[index])
    for place, index in enumerate(order):
        shares[index] = min(takes[index], left / (len(order) - place))
        left -= shares[index]
    return [share + left / len(takes) for share in shares]


class Flows:
    """The sockets to one peer.

    number: most sockets allowed.  takes: most bytes a second that the peer takes; infinite if it takes its whole share.
    """

    def __init__(self) -> None:
        self.number = 1
        self.takes = inf
        self._moved = Moved()
        self._lately: deque[float] = deque(maxlen=SLOW_TIMES)
        """Rates of the last seconds, all of which took little of the peer's share."""

    def reached(self, rtt_s: float) -> None:
        """Note that the first socket was opened, with this round-trip time."""
        if rtt_s >= LONG_WAY_S:
            self.number = FAR_SOCKETS

    def read(self, states: Mapping[Hashable, SocketState], share: float, busy: bool, now: float) -> None:
        """Read the states of all sockets; called about once a second.

        share: total bytes a second that the sockets were allowed.  busy: True if all sockets always had data to send.
        """
        moved = self._moved.since(states, now)
        if not busy:
            self._lately.clear()
        elif moved is not None:
            self._see_what_it_takes(moved.up, share)

    def pace(self, share: float) -> float:
        """Return the total bytes a second that the peer's sockets are allowed, given the peer's share of our line."""
        return share if self.takes == inf else max(share, LEAST_BYTES_PER_S)

    def _see_what_it_takes(self, rate: float, share: float) -> None:
        if rate >= (USED if self.takes < inf else SLOW) * share:
            self.takes = inf
            self._lately.clear()
            return
        self._lately.append(rate)
        if len(self._lately) == SLOW_TIMES:
            self.takes = max(MARGIN * max(self._lately), 1.0)
