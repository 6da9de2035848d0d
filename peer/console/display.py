"""Output of a running peer on standard output: log lines or JSON lines.

This is one of several listeners of the event log.  The severity of an event decides if it is shown; `Output` decides what
happens to lines when the reader is too slow.
"""

from __future__ import annotations

import errno
import math
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import trio

from peer.control.client import Stamped
from peer.control.event_log import EventLog, to_line
from protocol.events.events import PROGRESS, Left, LinesLost, PeerJoined, PhaseChanged, subject
from protocol.events.status import PeerStatus
from protocol.formatting import naming

# ------------------------------------------------------------------------------------------------------------------------
# Rate limit on progress events: at most one in an interval, and never a stale one.
#
# Pure: the caller gives the time.


class Thinner:
    """Rate limiter: at most one progress event in `every_s`.

    The newest event held back may be released when `due`, unless its phase or subject has ended.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = -math.inf
        self._held: Stamped | None = None

    def take(self, stamped: Stamped, now: float) -> Stamped | None:
        """Return the event if it may be shown now; None if it has to wait."""
        held = self._held
        if held is not None and (isinstance(stamped.event, PhaseChanged) or subject(stamped.event) == subject(held.event)):
            self._held = None
        if not isinstance(stamped.event, PROGRESS):
            return stamped
        self._held = stamped
        return self.release(now) if now >= self._next else None

    @property
    def due(self) -> float:
        """Time at which to call `release`; infinity while nothing waits."""
        return math.inf if self._held is None else self._next

    def release(self, now: float) -> Stamped | None:
        """Return the event held back, and start the next interval."""
        held, self._held = self._held, None
        self._next = now + self._every_s
        return held


# ------------------------------------------------------------------------------------------------------------------------
# Standard output of a running peer, which never blocks the peer:
#
# * A slow reader: lines wait in a bounded queue; when the queue is full, the oldest are dropped and counted.
# * A reader that went away (a closed pipe, a terminal that hung up): `gone` is set, at once for a pipe, otherwise with the
#   next line.  The daemon decides what to do then; lines without a reader are dropped silently.
# * A full disk behind a redirection: lines are lost and counted until there is room again.
#
# A separate thread writes to the descriptor.  While it waits in a write, it neither keeps the process from ending nor holds
# a lock of `sys.stdout`.


MAX_LINES = 2000
MAX_WAITING_CHARS = 4 << 20
NOBODY = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)


class Lines:
    """Queue of lines to write.  The oldest lines are dropped when there are too many."""

    def __init__(self, max_lines: int = MAX_LINES, max_chars: int = MAX_WAITING_CHARS) -> None:
        self._max_lines, self._max_chars = max_lines, max_chars
        self._waiting: deque[str] = deque()
        self._chars = 0
        self._lost = 0
        self._changed = trio.Event()
        self._closed = False

    def put(self, line: str) -> None:
        """Queue a line; drop the oldest ones when there are too many."""
        self._waiting.append(line)
        self._chars += len(line)
        while len(self._waiting) > self._max_lines or self._chars > self._max_chars:
            self._chars -= len(self._waiting.popleft())
            self._lost += 1
        self._changed.set()

    def lose(self, lines: int) -> None:
        """Count `lines` that were taken from the queue but could not be written."""
        self._lost += lines

    def close(self) -> None:
        """End the queue: no more lines will come."""
        self._closed = True
        self._changed.set()

    async def take(self) -> tuple[int, str] | None:
        """Return the number of lines lost before the next one, and the next line itself; None at the end."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed = trio.Event()
            await self._changed.wait()
        line = self._waiting.popleft()
        self._chars -= len(line)
        lost, self._lost = self._lost, 0
        return lost, line


class Output:
    """Text output to `descriptor`.  on_trouble: called once, with a sentence, when lines begin to be lost.

    gone: set when the output has no reader any more.  broken: true if the last text was lost.
    """

    def __init__(
        self, descriptor: int, encoding: str = "utf-8", on_trouble: Callable[[str], None] = lambda text: None
    ) -> None:
        self._descriptor, self._encoding, self._on_trouble = descriptor, encoding, on_trouble
        self._is_terminal = os.isatty(descriptor)  # asked now, because a terminal that has hung up is no longer recognised
        self._torn = False
        self.gone = trio.Event()
        self.broken = False

    async def write(self, text: str) -> bool:
        """Wait until the text is written; False if it is lost."""
        if self.gone.is_set():
            self.broken = True
            return False
        data = ("\n" if self._torn else "").encode() + text.encode(self._encoding, "replace")
        error = await trio.to_thread.run_sync(self._write_now, data, abandon_on_cancel=True)  # type: ignore[call-arg]
        hung_up = error is not None and (error.errno in NOBODY or (error.errno == errno.EIO and self._is_terminal))
        if hung_up:
            self.gone.set()
        elif error is not None and not self.broken:
            self._on_trouble(f"standard output: {error.strerror or error}; its lines are lost until this is fixed")
        self.broken = error is not None
        return not self.broken

    async def until_gone(self) -> None:
        """Wait until standard output has no reader."""
        if stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_pipe)
                await self.gone.wait()
                nursery.cancel_scope.cancel()
        await self.gone.wait()

    async def _watch_pipe(self) -> None:
        """Set `gone` when the last reader closes the pipe: the writing end then becomes "readable"."""
        await trio.lowlevel.wait_readable(self._descriptor)
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            self.gone.set()

    def _write_now(self, data: bytes) -> OSError | None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # the program that started us shares a non-blocking pipe
                    poll = select.poll()
                    poll.register(self._descriptor, select.POLLOUT)
                    poll.poll()
        except OSError as error:
            self._torn = self._torn or len(rest) < len(data)
            return error
        self._torn = False
        return None


# ------------------------------------------------------------------------------------------------------------------------


ALL = math.inf
"""No limit on the events that wait for us: we take them at once, and the queue of lines has its own bound."""
JSON_PROGRESS_S = 1.0
HUMAN_PROGRESS_S = 30.0
"""Seconds between two lines of progress, so that a person's log stays readable."""
LOST = "they could not be written as fast as they came; events.jsonl in the run's folder has them"

Status = Callable[[], PeerStatus]


class Style(Enum):
    """Form of a running peer's output.  SILENT: no output, because the terminal interface draws."""

    SILENT = "silent"
    HUMAN = "human"
    JSON = "json"


async def show(log: EventLog, style: Style, status: Status, output: Output) -> None:
    """Show events until cancelled or until the log closes."""
    if style is Style.SILENT:
        return
    is_json, lines = style is Style.JSON, Lines()
    line = to_line if is_json else _human_line(status())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_out, log, lines, output, line)
        await _collect(log, lines, line, Thinner(JSON_PROGRESS_S if is_json else HUMAN_PROGRESS_S))
        lines.close()


def _human_line(status: PeerStatus) -> Callable[[Stamped], str]:
    names: dict[str, str] = {status.peer: status.name}

    def line(stamped: Stamped) -> str:
        event = stamped.event
        if isinstance(event, PeerJoined):
            names[event.peer] = event.name
        kind = event.severity
        if isinstance(event, Left):  # the command itself prints the problem on standard error when it ends
            kind, event = "info", replace(event, problem="")
        shown = kind != "debug" or isinstance(event, PROGRESS)
        text = event.sentence(naming(names)) if shown else ""
        clock = time.strftime("%H:%M:%S", time.localtime(stamped.at))
        return f"{clock} {'' if kind in ('info', 'debug') else kind + ': '}{text}" if text else ""

    return line


async def _collect(log: EventLog, lines: Lines, line: Callable[[Stamped], str], thinner: Thinner) -> None:
    """Put a line into `lines` for every event, until the log closes."""

    def put(stamped: Stamped | None) -> None:
        text = line(stamped) if stamped is not None else ""
        if text:
            lines.put(text + "\n")

    for stamped in log.recent():  # events from before there was a listener
        put(thinner.take(stamped, trio.current_time()))
    with log.subscribe(ALL) as events:
        while True:
            with trio.move_on_at(thinner.due) as wait:
                try:
                    stamped = await anext(events)
                except StopAsyncIteration:
                    return
            if wait.cancelled_caught:
                put(thinner.release(trio.current_time()))
            else:
                put(thinner.take(stamped, trio.current_time()))


async def _write_out(log: EventLog, lines: Lines, output: Output, line: Callable[[Stamped], str]) -> None:
    """Write the waiting lines; before a line, report the number of lines lost before it."""
    while (taken := await lines.take()) is not None:
        lost, text = taken
        if lost:
            text = line(log.stamp(LinesLost(lost, LOST))) + "\n" + text
        if not await output.write(text):
            lines.lose(lost + 1)
