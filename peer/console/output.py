"""Standard output of a running peer: what may be written to it waits, gets lost or ends, and holds nothing up.

* A reader that is slow: lines wait in a bounded queue; when it is full the oldest go, counted.
* A reader that went away (a closed pipe, a terminal that hung up): `gone` is set, at once where it is a pipe, else with
  the next line.  What follows from it is the daemon's decision; lines to nobody are dropped silently.
* A disk without room behind a redirection: lines are lost and counted until there is room again.

Writes go to the descriptor from a thread of their own: a thread that waits in one keeps nobody from ending the process,
and holds no lock of `sys.stdout`.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections import deque
from collections.abc import Callable

import trio

MAX_LINES = 2000
MAX_WAITING_CHARS = 4 << 20
NOBODY = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)


class Lines:
    """Lines that wait to be written.  The oldest make room when there are too many."""

    def __init__(self, max_lines: int = MAX_LINES, max_chars: int = MAX_WAITING_CHARS) -> None:
        self._max_lines, self._max_chars = max_lines, max_chars
        self._waiting: deque[str] = deque()
        self._chars = 0
        self._lost = 0
        self._changed = trio.Event()
        self._closed = False

    def put(self, line: str) -> None:
        """Let a line wait, the oldest go when there are too many."""
        self._waiting.append(line)
        self._chars += len(line)
        while len(self._waiting) > self._max_lines or self._chars > self._max_chars:
            self._chars -= len(self._waiting.popleft())
            self._lost += 1
        self._changed.set()

    def lose(self, lines: int) -> None:
        """So many that were taken could not be written."""
        self._lost += lines

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._changed.set()

    async def take(self) -> tuple[int, str] | None:
        """How many lines are missing before the next one, and the next one; None at the end."""
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
    """`descriptor`, written to as text.  on_trouble: told once, in a sentence, when lines begin to be lost.

    gone: set when nobody reads any more.  broken: the last text did not get there.
    """

    def __init__(
        self, descriptor: int, encoding: str = "utf-8", on_trouble: Callable[[str], None] = lambda text: None
    ) -> None:
        self._descriptor, self._encoding, self._on_trouble = descriptor, encoding, on_trouble
        self._is_terminal = os.isatty(descriptor)  # asked now: one that has hung up says no
        self._torn = False
        self.gone = trio.Event()
        self.broken = False

    async def write(self, text: str) -> bool:
        """Wait until it is written; False when it is lost."""
        if self.gone.is_set():
            self.broken = True
            return False
        data = ("\n" if self._torn else "").encode() + text.encode(self._encoding, "replace")
        error = await trio.to_thread.run_sync(self._write_now, data, abandon_on_cancel=True)  # type: ignore[call-arg]
        if error is not None and self._is_hang_up(error):
            self.gone.set()
        elif error is not None and not self.broken:
            self._on_trouble(f"standard output: {error.strerror or error}; its lines are lost until that is mended")
        self.broken = error is not None
        return not self.broken

    async def until_gone(self) -> None:
        """Until nobody reads any more."""
        if stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_pipe)
                await self.gone.wait()
                nursery.cancel_scope.cancel()
        await self.gone.wait()

    async def _watch_pipe(self) -> None:
        """The writing end of a pipe becomes "readable" when its last reader closes it."""
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
                except BlockingIOError:  # whoever started us shares a pipe that does not block
                    poll = select.poll()
                    poll.register(self._descriptor, select.POLLOUT)
                    poll.poll()
        except OSError as error:
            self._torn = self._torn or len(rest) < len(data)
            return error
        self._torn = False
        return None

    def _is_hang_up(self, error: OSError) -> bool:
        return error.errno in NOBODY or (error.errno == errno.EIO and self._is_terminal)
