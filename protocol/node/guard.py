"""The one place that catches errors while a remote statement is handled.

Each handler runs within `Guard.watch`.  A statement is accepted, or dropped with an event, or is proof of a lie.  A handler
that raises instead shows a mistake of ours, which a peer may have found.  The error costs this peer an event and the sender
its connection, but never a nursery: every `Exception` ends here.  A failure of our own computer (a file, memory) is not
held against the sender.

`RateLimitedEmitter` keeps a flood of drops from becoming a flood of events.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from protocol.events.events import Dropped, Event, HandlerFailed
from protocol.transport.interface import Refused, Session
from protocol.wire.identity import PeerId

REASON_CHARS = 160
OWN_TROUBLE = (OSError, MemoryError)
"""Errors of this computer, not of the sender."""
TELL_EVERY_S = 10.0
"""Seconds in which drops of one kind from one peer are told once, with their number."""
MAX_TOLD = 64
"""Drops told in `TELL_EVERY_S`, of all peers together."""
MAX_COUNTED = 1024
"""Pairs of peer and kind that are counted; the longest silent one is forgotten."""

log = logging.getLogger(__name__)


class Guard:
    """Catches errors for one node.  failures: number of statements that made a handler raise."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.failures = 0

    def watch(self, sender: PeerId, what: str, *, passing: tuple[type[Exception], ...] = ()) -> HandlerScope:
        """Return a context in which to handle a statement of `sender`; what: its kind.

        An error ends it early.  Cancellation, refusals and `passing` go through.
        """
        return HandlerScope(self, sender, what, (Refused, *passing))

    def failed(self, sender: PeerId, what: str, error: Exception) -> None:
        """Count a failure, tell of it, and drop the connection of its sender."""
        self.failures += 1
        log.warning("a %s of %s made its handler fail", what, sender, exc_info=error)
        self._session.emit(HandlerFailed(sender, what, _sentence(error), 1))
        if sender != self._session.me and not isinstance(error, OWN_TROUBLE):
            self._session.network.forget(sender)


@dataclass(frozen=True)
class HandlerScope:
    """One statement being handled."""

    guard: Guard
    sender: PeerId
    what: str
    passing: tuple[type[Exception], ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, BaseExceptionGroup):
            found = _first(error, self._is_caught)
            if found is None:
                return False
            self.guard.failed(self.sender, self.what, found)
            through = error.split(lambda each: self._is_caught(each))[1]
            if through is not None:
                raise through
            return True
        if error is None or not self._is_caught(error):
            return False
        assert isinstance(error, Exception)
        self.guard.failed(self.sender, self.what, error)
        return True

    def _is_caught(self, error: BaseException) -> bool:
        return isinstance(error, Exception) and not isinstance(error, (*self.passing, ExceptionGroup))


def _first(group: BaseExceptionGroup[BaseException], wanted: Callable[[BaseException], bool]) -> Exception | None:
    for error in group.exceptions:
        found = _first(error, wanted) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, Exception) and wanted(found):
            return found
    return None


def _sentence(error: Exception) -> str:
    """Describe the error and the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}"[:REASON_CHARS] + where


class RateLimitedEmitter:
    """Hands events on, but drops and failures of one kind from one peer only once in `TELL_EVERY_S`, with their number."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._counted: OrderedDict[tuple[type, str, str], tuple[float, int]] = OrderedDict()
        self._window, self._told = -TELL_EVERY_S, 0

    def __call__(self, event: Event) -> None:
        """Hand an event on, or count it."""
        if not isinstance(event, Dropped | HandlerFailed):
            self._emit(event)
            return
        now, key = trio.current_time(), (type(event), event.peer, event.what)
        if now - self._window >= TELL_EVERY_S:
            self._window, self._told = now, 0
        last, hidden = self._counted.pop(key, (-TELL_EVERY_S, 0))
        if now - last < TELL_EVERY_S or self._told >= MAX_TOLD:
            self._counted[key] = last, hidden + event.times
        else:
            self._counted[key] = now, 0
            self._told += 1
            self._emit(replace(event, times=hidden + event.times))
        if len(self._counted) > MAX_COUNTED:
            self._counted.popitem(last=False)
