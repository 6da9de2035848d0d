"""Share of the last hour in which something was busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOUR_S = 3600.0
MOST_SHIFTS = 4096
"""Most shifts that are remembered; with more in an hour, the oldest are forgotten, and the share is too low."""


class BusyHour:
    """Record of the shifts of the last hour.  began: when it first could have been busy; all times are of one clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._shifts: deque[tuple[float, float]] = deque(maxlen=MOST_SHIFTS)
        self._since: float | None = None
        self._is_shift = False

    @contextmanager
    def shift(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count the time in the context as busy."""
        self._since, self._is_shift = clock(), True
        try:
            yield
        finally:
            self.pause(clock())
            self._is_shift = False

    def pause(self, now: float) -> None:
        """Count no more of a shift until `resume`."""
        if self._since is not None:
            self._shifts.append((self._since, now))
            self._since = None

    def resume(self, now: float) -> None:
        """Count the rest of a shift that was paused."""
        if self._is_shift and self._since is None:
            self._since = now

    def leave_out(self, seconds: float, now: float) -> None:
        """Count so many seconds of the running shift as not busy."""
        if self._since is not None:
            self._since = min(now, self._since + seconds)

    def share(self, now: float) -> float:
        """Return the share, 0 to 1, of the last hour, or of the time since it began."""
        start = max(self._began, now - HOUR_S)
        while self._shifts and self._shifts[0][1] <= start:
            self._shifts.popleft()
        running = [(self._since, now)] if self._since is not None else []
        busy = sum(end - max(begin, start) for begin, end in [*self._shifts, *running])
        return busy / max(now - start, 1e-9) if now > start else 0.0
