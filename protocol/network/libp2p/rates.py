"""Measurements of the rate of bulk data, and what follows from them.

`Gauge` measures what the links can carry: the best second in which data moved, counted by the kernel where it tells
(acknowledged and received bytes, so that a full buffer is not taken for bandwidth).  It is forgotten slowly: at the end of
an exchange one slow member may be fed alone for minutes.

`Gauge.offer_bytes_per_s` is what there is to share out to the sockets that use our line.  Were it not shared out, one TCP
connection might get a third of what another gets over a full line, for the length of an exchange, which would then end with
one flow alone on lines that idle.  Sockets that have just begun carry less than the line can: where most go a long way, a
second without a pace measures the line only if packets met a queue.  Nor does a socket that waits for the other end, as for
a relay, or a peer that limits what comes: were a relay's rate taken for our line's, all others were held to it for minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import inf

from protocol.network.libp2p.link import SocketState

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
