"""Handlers of remote messages: how a component declares them, and the guard under which they run.

A component declares beside a method which messages the method takes:

    @hears(Heartbeat)
    def hear_heartbeat(self, said: Statement[Heartbeat]) -> Acceptance: ...

    @answers("part", PartRequest)
    async def answer_part(self, peer: PeerId, question: PartRequest) -> bytes: ...

The router of the node (`protocol.node.router`) collects the declarations of its components.  It checks the size, form,
signature and admission of each message once, and calls the method within `Guard.watch`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, TypeVarTuple

import trio

from protocol.events.events import HandlerFailed
from protocol.transport.interface import Refused, Session
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, Body, Envelope
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Declarations.


B = TypeVar("B", bound=Body)
Method = TypeVar("Method", bound=Callable[..., Any])
_DECLARED = "_declared"
"""Attribute of a method that holds its declarations."""


@dataclass(frozen=True)
class Statement(Generic[B]):
    """A statement whose form and signature hold.  by: the peer that brought it to us."""

    sender: PeerId
    body: B
    envelope: Envelope
    by: PeerId

    @property
    def raw(self) -> bytes:
        """Signed bytes as they travel."""
        return self.envelope.raw


@dataclass(frozen=True)
class Hears:
    """Declaration for gossiped statements.  anyone: takes also those of peers that are not admitted, or ejected."""

    kind: type[Body]
    anyone: bool


@dataclass(frozen=True)
class HearsNews:
    """Declaration for gossiped statements that the handler of their kind has accepted."""

    kind: type[Body]


@dataclass(frozen=True)
class IsTold:
    """Declaration for statements that a peer brings to us alone, as a question that is only acknowledged."""

    question: str
    kind: type[Body]
    max_bytes: int


@dataclass(frozen=True)
class Answers:
    """Declaration for questions.  form: None if the question is its name alone.  anyone: needs no greeting before."""

    question: str
    form: type[Body] | None
    anyone: bool


@dataclass(frozen=True)
class Lands:
    """Declaration for pushes, at their beginning or their end.

    read: returns what the method takes as its header; None for the pushes of other components.
    """

    read: Callable[[bytes], Any]
    at_end: bool


class PeerMoment(Enum):
    """Declaration for a moment in the life of a connection.  A peer is `GREETED` when it has accepted our greeting."""

    CONNECTED = "connected"
    GREETED = "greeted"
    DISCONNECTED = "disconnected"


Declaration = Hears | HearsNews | IsTold | Answers | Lands | PeerMoment


def _declare(*declarations: Declaration) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        setattr(method, _DECLARED, (*getattr(method, _DECLARED, ()), *declarations))
        return method

    return mark


def hears(*kinds: type[Body], anyone: bool = False) -> Callable[[Method], Method]:
    """Declare a method `(statement) -> Acceptance` for gossiped statements of these kinds.

    anyone: the method judges the sender itself; otherwise senders are admitted and not ejected.
    """
    return _declare(*(Hears(kind, anyone) for kind in kinds))


def hears_news(kind: type[Body]) -> Callable[[Method], Method]:
    """Declare a method `(statement) -> None` for gossiped statements that their handler found to be news."""
    return _declare(HearsNews(kind))


def is_told(question: str, kind: type[Body], *, max_bytes: int = MAX_ENVELOPE_BYTES) -> Callable[[Method], Method]:
    """Declare an async method `(statement) -> None` for statements that a peer brings to us alone.

    The sender of the statement may be another peer than the one that brings it.  The method may raise `Refused`.
    """
    return _declare(IsTold(question, kind, max_bytes))


def answers(question: str, form: type[Body] | None, *, anyone: bool = False) -> Callable[[Method], Method]:
    """Declare an async method `(peer, question) -> bytes` that answers questions; without a form, a method `(peer)`.

    anyone: also peers that have not greeted may ask.  The method raises `Refused` if there is no answer, or `Malformed`.
    """
    return _declare(Answers(question, form, anyone))


def lands(read: Callable[[bytes], Any]) -> Callable[[Method], Method]:
    """Declare an async method `(peer, header, size) -> Landing | None` for beginning pushes whose header `read` knows."""
    return _declare(Lands(read, at_end=False))


def landed(read: Callable[[bytes], Any]) -> Callable[[Method], Method]:
    """Declare an async method `(peer, header, landing) -> None` for ended pushes whose header `read` knows."""
    return _declare(Lands(read, at_end=True))


def at(moment: PeerMoment) -> Callable[[Method], Method]:
    """Declare a method `(peer) -> None` for a moment in the life of each connection."""
    return _declare(moment)


def declarations(component: type) -> Iterator[tuple[str, Declaration]]:
    """Yield the name and the declarations of each method of a class that handles messages."""
    for name in dir(component):
        for declaration in getattr(getattr(component, name), _DECLARED, ()):
            yield name, declaration


# ------------------------------------------------------------------------------------------------------------------------
# The guard: the one place that catches errors while a remote message is handled.
#
# A statement is accepted, or dropped with an event, or is proof of a lie.  A handler that raises instead shows a mistake of
# ours, which a peer may have found.  The error costs this peer an event and the sender its connection, but never a nursery:
# every `Exception` ends here.  A failure of our own computer (a file, memory) is not held against the sender.


REASON_CHARS = 160
OWN_TROUBLE = (OSError, MemoryError)
"""Errors of this computer, not of the sender."""
Arguments = TypeVarTuple("Arguments")

log = logging.getLogger(__name__)


class Guard:
    """Runs the handlers of one node, and the tasks that they start.

    failures: number of messages that made a handler raise.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nursery: trio.Nursery | None = None
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """True while tasks can be started."""
        return self._nursery is not None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Start tasks inside the context, in the nursery that it yields.  Before and after, none is started."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                yield nursery
        finally:
            self._nursery = None

    def start(self, task: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments) -> None:
        """Start a task that the sender of a message does not wait for, if open."""
        if self._nursery is not None:
            self._nursery.start_soon(task, *arguments)

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
