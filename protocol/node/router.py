"""The message router of a node: the handlers that the network calls.

The router checks the size, form, signature and admission of each message once, and delivers the message to the component
that declares a handler for it (`protocol.transport.handlers`).  Each handler runs under the guard, so only refusals
propagate: from `on_request`, and from the handlers of pushes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio

from protocol.audit.ejection import Ejections
from protocol.bounds import BoundedDict
from protocol.events.events import Dropped, Event, HandlerFailed
from protocol.membership.handshake import Handshake
from protocol.offload import Offload
from protocol.transport.handlers import (
    Answers,
    Fault,
    Guard,
    Hears,
    HearsNews,
    IsTold,
    Lands,
    PeerMoment,
    Statement,
    declarations,
)
from protocol.transport.interface import MALFORMED, Acceptance, Landing, Members, Offence, Refused, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import LARGE_BYTES, MAX_GOSSIP_BYTES, Body, decode_body, largest
from protocol.wire.identity import PeerId
from protocol.wire.messages import unpack

MAX_BARE_BYTES = 4096
"""Most bytes in the body of a question without a form; the body is not read."""


@dataclass(frozen=True)
class _Handler:
    """A method of a component; the method is looked up for each message."""

    component: object
    name: str

    @property
    def method(self) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.component, self.name)
        return method


class MessageRouter:
    """Implementation of `protocol.transport.interface.Handlers`.  A router that is not open ignores gossip and connections.

    `add` each component that handles messages.  decoding: runs the decoding of large statements.  members: distinguishes
    members from strangers.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        decoding: Offload,
        handshake: Handshake,
        ejections: Ejections,
        members: Members,
    ) -> None:
        self._session, self._guard, self._decoding, self._members = session, guard, decoding, members
        self._handshake, self._ejections = handshake, ejections
        self._hearers: dict[type[Body], tuple[Hears, _Handler]] = {}
        self._news: dict[type[Body], list[_Handler]] = {}
        self._questions: dict[str, tuple[Answers | IsTold, _Handler]] = {}
        self._pushes: list[tuple[Lands, _Handler]] = []
        self._moments: dict[PeerMoment, list[_Handler]] = {moment: [] for moment in PeerMoment}

    def add(self, *components: object) -> None:
        """Deliver messages to these components as their methods declare; connection events are delivered in this order."""
        for component in components:
            for name, declared in declarations(type(component)):
                handler = _Handler(component, name)
                match declared:
                    case Hears():
                        assert declared.kind.BY_GOSSIP and declared.kind not in self._hearers
                        self._hearers[declared.kind] = declared, handler
                    case HearsNews():
                        self._news.setdefault(declared.kind, []).append(handler)
                    case Answers() | IsTold():
                        assert declared.question not in self._questions
                        self._questions[declared.question] = declared, handler
                    case Lands():
                        self._pushes.append((declared, handler))
                    case PeerMoment():
                        self._moments[declared].append(handler)

    def open(self) -> AbstractAsyncContextManager[trio.Nursery]:
        """Handle arriving traffic inside the context, in the nursery that the context yields."""
        return self._guard.open()

    def has_member(self, peer: PeerId) -> bool:
        """Return True if a record of our chain names `peer`, or if it is an elector, as founders are before any record."""
        return self._members.has_member(peer) or self._handshake.is_elector(peer)

    def has_allowance(self, peer: PeerId) -> bool:
        """Return True for an active peer, and for one that is admitted where the organiser admits (`AnswerBudget`)."""
        return self._handshake.has_allowance(peer)

    # -- gossip -------------------------------------------------------------------------------------------------------

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Check a gossiped statement and deliver it; the returned value decides if the network forwards it."""
        self._note_heard(forwarder)
        with self._guard.watch(forwarder, "gossip"):
            try:
                sender, body, envelope = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
            except Malformed as error:
                self._session.emit(Dropped(forwarder, "gossip", str(error)))
                return Acceptance.REJECT
            if not body.BY_GOSSIP:
                self._session.emit(Dropped(forwarder, "gossip", f"a {envelope.kind} does not travel by gossip"))
                return Acceptance.REJECT
            if sender == self._session.me or not self._guard.is_open:
                return Acceptance.IGNORE  # a peer that has left, or has not begun yet, judges no forwarder
            with self._guard.watch(sender, envelope.kind):
                return self._hear(Statement(sender, body, envelope, forwarder))
        return Acceptance.IGNORE

    def _hear(self, said: Statement[Body]) -> Acceptance:
        found = self._hearers.get(type(said.body))
        if found is None or not found[0].anyone:
            self._handshake.meet(said.sender, said.body)
            if not self._may_speak(said.sender):
                return Acceptance.IGNORE
        if found is None:
            return Acceptance.IGNORE  # for example a statement about rollouts in a run without rollouts
        heard: Acceptance = found[1].method(said)
        if heard is Acceptance.ACCEPT:
            for handler in self._news.get(type(said.body), ()):
                handler.method(said)
        return heard

    def _may_speak(self, peer: PeerId) -> bool:
        return self._handshake.may_speak(peer) and peer not in self._ejections

    # -- questions ----------------------------------------------------------------------------------------------------

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Answer a peer's question.  Raises `Refused`, or `Offence` if the question breaks the protocol."""
        self._note_heard(peer)
        try:
            with self._guard.report(peer, f"question '{kind:.40}'"):
                return await self._answer(peer, kind, data)
        except Fault as fault:
            raise Refused("this peer failed to answer the question") from fault

    async def _answer(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if peer in self._ejections:
            raise Refused(f"you were ejected from this run: you {self._ejections.reason(peer)}")
        if kind not in self._questions:
            raise Refused("no such question")
        declared, handler = self._questions[kind]
        if isinstance(declared, Answers):
            if len(data) > (MAX_BARE_BYTES if declared.form is None else largest(declared.form).bytes):
                raise Refused("the question is too long")
            if not declared.anyone:
                self._require_hello(peer, kind)
            try:
                asked = [decode_body(declared.form, data)] if declared.form is not None else []
                answer: bytes = await handler.method(peer, *asked)
            except Malformed as error:
                raise Refused(MALFORMED) from error
            return answer
        self._require_hello(peer, kind)
        await handler.method(await self._opened(peer, declared, data))
        return b""

    def _require_hello(self, peer: PeerId, kind: str) -> None:
        if not self._handshake.may_speak(peer):
            raise Refused(f"a hello must come first: {kind:.40}")

    async def _opened(self, bringer: PeerId, declared: IsTold, data: bytes) -> Statement[Body]:
        """Decode and return a statement that was sent to us alone.  Raises `Offence`."""
        try:
            if LARGE_BYTES < len(data) <= declared.max_bytes:  # a longer statement is refused at once, unread
                sender, body, envelope = await self._decoding(_unpack, data, self._session.run, declared.max_bytes)
            else:
                sender, body, envelope = unpack(data, self._session.run, max_bytes=declared.max_bytes)
        except Malformed as error:
            self._session.emit(Dropped(bringer, "statement", str(error)))
            raise Offence(MALFORMED) from error
        if not isinstance(body, declared.kind):
            raise Offence("a statement of another kind")
        return Statement(sender, body, envelope, bringer)

    # -- pushes -------------------------------------------------------------------------------------------------------

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Return the landing for a pushed chunk; None if the chunk is not wanted."""
        self._note_heard(peer)
        with self._guard.watch(peer, "push"):
            if self._may_speak(peer):
                for handler, read in self._readers(header, at_end=False):
                    landing: Landing | None = await handler.method(peer, read, size)
                    return landing.with_listener(partial(self._note_heard, peer)) if landing is not None else None
        return None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Finish a push that is complete or was interrupted."""
        with self._guard.watch(peer, "push"):
            for handler, read in self._readers(header, at_end=True):
                await handler.method(peer, read, landing)

    def _readers(self, header: bytes, *, at_end: bool) -> list[tuple[_Handler, Any]]:
        """Return the handlers that recognise the header of a push, each with the decoded header."""
        known = [(handler, declared.read(header)) for declared, handler in self._pushes if declared.at_end is at_end]
        return [(handler, read) for handler, read in known if read is not None]

    # -- connections --------------------------------------------------------------------------------------------------

    def greet_connected(self) -> None:
        """Greet the peers that were connected before the router was open."""
        for peer in self._session.network.connected():
            self.on_peer_connected(peer)

    def on_peer_connected(self, peer: PeerId) -> None:
        """Greet a newly connected peer."""
        if not self._guard.is_open:
            return
        with self._guard.watch(peer, "connection"):
            self._guard.start(self._greet, peer)
            self._tell(PeerMoment.CONNECTED, peer)

    async def _greet(self, peer: PeerId) -> None:
        with self._guard.watch(peer, "answer to our greeting"):
            await self._handshake.greet(peer)

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Judge a peer's liveness by its broken connection."""
        if not self._guard.is_open:
            return  # we close the connections ourselves, which says nothing about a peer's liveness
        with self._guard.watch(peer, "disconnection"):
            self._tell(PeerMoment.DISCONNECTED, peer)

    def _note_heard(self, peer: PeerId) -> None:
        """Note that something came from a peer over its connection."""
        if self._guard.is_open:
            with self._guard.watch(peer, "message"):
                self._tell(PeerMoment.HEARD, peer)

    def _tell(self, moment: PeerMoment, peer: PeerId) -> None:
        for handler in self._moments[moment]:
            handler.method(peer)


def _unpack(data: bytes, run: Any, max_bytes: int) -> Any:
    return unpack(data, run, max_bytes=max_bytes)


# ------------------------------------------------------------------------------------------------------------------------
# Rate limit for events: a flood of drops must not become a flood of events.


TELL_EVERY_S = 10.0
"""Period (s) in which drops of one kind from one peer are reported once, with their number."""
MAX_TOLD = 64
"""Most drops reported in `TELL_EVERY_S`, for all peers together."""
MAX_COUNTED = 1024
"""Most pairs of peer and kind that are counted; beyond that, the pair without a drop for the longest time is forgotten."""


class RateLimitedEmitter:
    """Forwarder of events that reports drops and failures of one kind from one peer once in `TELL_EVERY_S`, with a count."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._counted = BoundedDict[tuple[type, str, str], tuple[float, int]](MAX_COUNTED)
        self._window, self._told = -TELL_EVERY_S, 0

    def __call__(self, event: Event) -> None:
        """Forward an event, or count it."""
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
