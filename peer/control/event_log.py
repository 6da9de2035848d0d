"""Log of all events of a peer: stamps them, remembers the last ones, writes JSON lines, and serves listeners.

Slow readers never delay the daemon.  `emit` only appends to bounded queues; a listener that falls behind is dropped, and if
the disk falls behind or is full, lines of the log are lost and counted.  The class of an event defines its meaning.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from peer.control.client import Stamped
from peer.files import RotatingFile
from protocol.events.events import PROGRESS, Event, subject

LOG_NAMES = ("events.jsonl", "events.1.jsonl", "events.2.jsonl", "events.3.jsonl")
MAX_FILE_BYTES = 8 << 20
"""Limit on the bytes of each file: all files together have at most 32 MiB."""
MAX_PENDING = 20_000
"""Most lines that wait for the disk."""
REMEMBERED = 500
MAX_SUBSCRIBERS = 32
SUBSCRIBER_EVENTS = 2000
"""Most events that wait for a listener; with more, it is dropped."""


def to_line(stamped: Stamped) -> str:
    """Return one JSON object without a line break; numbers without a JSON form become null."""
    fields = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in stamped.to_fields().items()
    }
    return json.dumps(fields, separators=(",", ":"), default=str)


class TooManyListeners(Exception):
    """Error: the event stream serves its maximum of listeners."""


class Subscription:
    """One listener.  Iterate asynchronously; the iteration ends if it falls behind (`dropped`) or the log closes."""

    def __init__(self, capacity: float) -> None:
        self._send, self._receive = trio.open_memory_channel[Stamped](capacity)
        self._thread = threading.get_ident()
        self.dropped = False

    def offer(self, stamped: Stamped) -> bool:
        """Queue an event; return False if the listener is too far behind or closed, and is therefore dropped."""
        assert threading.get_ident() == self._thread, "a listener that is woken from another thread never wakes again"
        try:
            self._send.send_nowait(stamped)
        except trio.WouldBlock:
            self.dropped = True
            self._send.close()
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # its log has closed
            return False
        return True

    def close(self) -> None:
        """End the iteration after the waiting events."""
        self._send.close()

    def waiting(self) -> Iterator[Stamped]:
        """Yield the events that wait, without waiting for others."""
        with suppress(trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            while True:
                yield self._receive.receive_nowait()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Stamped:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None


def log_file(folder: Path, max_bytes: int = MAX_FILE_BYTES) -> RotatingFile:
    """Return the file for the events of the run in `folder`, with one JSON object per line."""
    return RotatingFile(folder, LOG_NAMES, max_bytes)


class EventLog:
    """Event log of a peer; `emit` adds every event.

    file: the file to write, or None.  first: makes the event with which the log of every process begins.  wall, mono: the
    two clocks of the stamps.
    """

    def __init__(
        self,
        file: RotatingFile | None = None,
        *,
        first: Callable[[], Event] | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._first, self._wall, self._mono = file, first, wall, mono
        self._recent: deque[Stamped] = deque(maxlen=REMEMBERED)
        self._progress: dict[tuple[str, str], Stamped] = {}
        self._subscribers: list[Subscription] = []
        self._pending: deque[str] = deque()
        self._wake = trio.Event()
        self._home: tuple[int, trio.lowlevel.TrioToken] | None = None
        """Thread and run of trio in which `run` writes and listeners wait; events of other threads are handed to it."""
        self._closed = False
        self.lines_lost = 0
        self.listeners_dropped = 0

    def begin(self) -> None:
        """Emit the first event unless it was emitted already; `emit` calls this before any other event."""
        if self._first is not None:
            first, self._first = self._first(), None
            self.emit(first)

    def emit(self, event: Event) -> None:
        """Stamp an event and hand it out; never blocks, never raises.  From another thread, the event waits for trio's."""
        if self._home is not None and threading.get_ident() != self._home[0]:
            with suppress(trio.RunFinishedError):
                self._home[1].run_sync_soon(self.emit, event)
            return
        self.begin()
        stamped = self.stamp(event)
        if isinstance(event, PROGRESS):
            self._progress[subject(event)] = stamped
        else:
            self._progress.pop(subject(event), None)
            self._recent.append(stamped)
            if self._file is not None:
                if len(self._pending) >= MAX_PENDING:
                    self._pending.popleft()
                    self.lines_lost += 1
                self._pending.append(to_line(stamped))
                self._wake.set()
        for subscriber in list(self._subscribers):
            if not subscriber.offer(stamped):
                self._subscribers.remove(subscriber)
                self.listeners_dropped += 1

    def stamp(self, event: Event) -> Stamped:
        """Return the event stamped with the present time, for callers that add an event of their own."""
        return Stamped(self._wall(), self._mono(), event)

    def recent(self) -> list[Stamped]:
        """Return the last events in order, with the newest of each kind of progress."""
        return sorted([*self._recent, *self._progress.values()], key=lambda stamped: stamped.mono)

    @contextmanager
    def subscribe(self, capacity: float = SUBSCRIBER_EVENTS) -> Iterator[Subscription]:
        """Listen from now on; raises TooManyListeners."""
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise TooManyListeners(f"{MAX_SUBSCRIBERS} listeners are connected already")
        subscription = Subscription(capacity)
        if self._closed:
            subscription.close()
        self._subscribers.append(subscription)
        try:
            yield subscription
        finally:
            subscription.close()
            if subscription in self._subscribers:
                self._subscribers.remove(subscription)

    @property
    def listeners(self) -> int:
        """Number of subscriptions."""
        return len(self._subscribers)

    async def run(self) -> None:
        """Write emitted events to disk until cancelled; `flush` writes the events that are then still pending."""
        self._home = threading.get_ident(), trio.lowlevel.current_trio_token()
        while True:
            while not self._pending:
                self._wake = trio.Event()
                await self._wake.wait()
            with trio.CancelScope(shield=True):  # lines taken from the queue must be written even on cancellation
                await trio.to_thread.run_sync(self._write, self._take())

    def flush(self) -> None:
        """Write the pending lines, blocking, at the very end; then close all subscriptions."""
        self._write(self._take())
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.close()

    def _take(self) -> list[str]:
        lines = list(self._pending)
        self._pending.clear()
        return lines

    def _write(self, lines: list[str]) -> None:
        if self._file is None or not lines:
            return
        try:
            self._file.append("".join(line + "\n" for line in lines).encode(errors="replace"))
        except OSError:
            self.lines_lost += len(lines)  # a full disk is reported by the store; it must not stop the peer here
