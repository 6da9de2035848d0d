"""Handlers of remote messages: their declarations in a component, and the guard under which they run.

A component declares the messages that a method handles with a decorator:

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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, TypeVarTuple

import trio

from protocol.events.events import HandlerFailed
from protocol.transport.interface import Refused, Session
from protocol.transport.task_group import TaskGroup
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
    """A statement with a valid form and signature.  by: the peer that delivered the statement to us."""

    sender: PeerId
    body: B
    envelope: Envelope
    by: PeerId

    @property
    def raw(self) -> bytes:
        """The encoded envelope with its signature, as sent on the wire."""
        return self.envelope.raw


@dataclass(frozen=True)
class Hears:
    """Declaration for gossiped statements.  anyone: True to accept senders that are ejected or not admitted."""

    kind: type[Body]
    anyone: bool


@dataclass(frozen=True)
class HearsNews:
    """Declaration for gossiped statements that the handler of their kind has accepted."""

    kind: type[Body]


@dataclass(frozen=True)
class IsTold:
    """Declaration for statements that a peer sends only to us, in a question that we only acknowledge."""

    question: str
    kind: type[Body]
    max_bytes: int


@dataclass(frozen=True)
class Answers:
    """Declaration for questions.  form: None if a question has no data.  anyone: True if the asker need not have greeted."""

    question: str
    form: type[Body] | None
    anyone: bool


@dataclass(frozen=True)
class Lands:
    """Declaration for pushes, at their beginning or their end.

    read: parses a header for the method; returns None for the pushes of other components.
    """

    read: Callable[[bytes], Any]
    at_end: bool


class PeerMoment(Enum):
    """Declaration for a moment in the life of a connection.

    A peer is `HEARD` whenever a message of any kind, or a piece of a push, comes from it over the connection.
    """

    CONNECTED = "connected"
    HEARD = "heard"
    DISCONNECTED = "disconnected"


Declaration = Hears | HearsNews | IsTold | Answers | Lands | PeerMoment


def _declare(*declarations: Declaration) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        setattr(method, _DECLARED, (*getattr(method, _DECLARED, ()), *declarations))
        return method

    return mark


def hears(*kinds: type[Body], anyone: bool = False) -> Callable[[Method], Method]:
    """Declare a method `(statement) -> Acceptance` for gossiped statements of these kinds.

    anyone: True if the method checks the sender itself; otherwise the router accepts only admitted senders that are not
    ejected.
    """
    return _declare(*(Hears(kind, anyone) for kind in kinds))


def hears_news(kind: type[Body]) -> Callable[[Method], Method]:
    """Declare a method `(statement) -> None` for gossiped statements that the handler of their kind accepted as new."""
    return _declare(HearsNews(kind))


def is_told(question: str, kind: type[Body], *, max_bytes: int = MAX_ENVELOPE_BYTES) -> Callable[[Method], Method]:
    """Declare an async method `(statement) -> None` for statements that a peer sends only to us.

    The peer that delivers a statement need not be the statement's sender.  The method may raise `Refused`.
    """
    return _declare(IsTold(question, kind, max_bytes))


def answers(question: str, form: type[Body] | None, *, anyone: bool = False) -> Callable[[Method], Method]:
    """Declare an async method `(peer, question) -> bytes` that answers questions; without a form, a method `(peer)`.

    anyone: True if peers that have not greeted may also ask.  The method may raise `Refused` if it has no answer, or
    `Malformed`.
    """
    return _declare(Answers(question, form, anyone))


def lands(read: Callable[[bytes], Any]) -> Callable[[Method], Method]:
    """Declare an async method `(peer, header, size) -> Landing | None` for the beginning of pushes that `read` parses."""
    return _declare(Lands(read, at_end=False))


def landed(read: Callable[[bytes], Any]) -> Callable[[Method], Method]:
    """Declare an async method `(peer, header, landing) -> None` for the end of pushes that `read` parses."""
    return _declare(Lands(read, at_end=True))


def at(moment: PeerMoment) -> Callable[[Method], Method]:
    """Declare a method `(peer) -> None` that is called at a moment in the life of each connection."""
    return _declare(moment)


def declarations(component: type) -> Iterator[tuple[str, Declaration]]:
    """Yield the name of a method and one of its declarations, for all declarations of the methods of a class."""
    for name in dir(component):
        for declaration in getattr(getattr(component, name), _DECLARED, ()):
            yield name, declaration


# ------------------------------------------------------------------------------------------------------------------------
# The guard: the one place that catches errors while a remote message is handled.
#
# A statement is accepted, or dropped with an event, or is proof of a lie.  A handler that raises instead has a bug, which a
# peer may have found.  We then emit an event and disconnect the sender, but no nursery ends, because every `Exception` is
# caught here.  We do not disconnect the sender for a failure of our own computer (a file, memory).


REASON_CHARS = 160
OWN_TROUBLE = (OSError, MemoryError)
"""Errors of this computer, not of the sender."""
Arguments = TypeVarTuple("Arguments")

log = logging.getLogger(__name__)


class Fault(Exception):
    """A handler raised an error, which the guard has counted and reported."""


class Guard:
    """The guard around the handlers of one node, and the tasks that they start.

    failures: number of messages whose handler raised an error.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks = TaskGroup()
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """True while tasks can be started."""
        return self._tasks.is_open

    def open(self) -> AbstractAsyncContextManager[trio.Nursery]:
        """Allow `start` inside the context, which yields the nursery of the tasks.  Outside it, `start` does nothing."""
        return self._tasks.open()

    def start(self, task: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments) -> bool:
        """Start a task, for which the sender of a message does not wait; return False if the guard is not open."""
        return self._tasks.start(task, *arguments)

    def watch(self, sender: PeerId, what: str, *, passing: tuple[type[Exception], ...] = ()) -> HandlerScope:
        """Return a context for handling a statement of `sender`; what: the kind of the statement.

        The context catches errors and ends early.  Cancellation, refusals and exceptions in `passing` propagate.
        """
        return HandlerScope(self, sender, what, (Refused, *passing))

    @contextmanager
    def report(self, sender: PeerId, what: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Return a context like `watch`, which raises `Fault` for the errors that it catches."""
        with self.watch(sender, what, passing=passing):
            yield
            return
        raise Fault

    def failed(self, sender: PeerId, what: str, error: Exception) -> None:
        """Count a failure, log and emit it, and disconnect the sender unless our own computer failed."""
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
    """Describe an error and its place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}"[:REASON_CHARS] + where
