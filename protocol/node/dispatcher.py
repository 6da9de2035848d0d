"""Handing what arrives at a peer to the component that it concerns: the handlers that the network calls.

Every byte is checked here for form and sender before any part of the peer sees it.  What a statement means is decided by
the component that it is handed to.  Each handler runs under the guard, so nothing here raises, except the refusals that
`on_request` may.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from protocol.audit.accusations import Heard
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import Evidence, TwoStatements
from protocol.audit.witness import Witness
from protocol.consensus.relay import RELAYED
from protocol.content.serving import QUESTIONS as SERVED
from protocol.content.serving import Serving
from protocol.events import Dropped, Notice
from protocol.exchange.messages import ExchangeAsk, push_plan
from protocol.membership.activity import Activity
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.network.interface import Landing, Offence, Refused, Verdict
from protocol.network.session import Session
from protocol.node.current_round import CurrentRound
from protocol.node.evaluator import Evaluator
from protocol.node.guard import Guard
from protocol.node.readys import Readys
from protocol.offload import Offload
from protocol.run.greeting import Hello
from protocol.wire.body import LARGE_BYTES, Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_GOSSIP_BYTES, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, Commit, Ready, unpack
from protocol.wire.presence import Goodbye, Heartbeat
from protocol.wire.questions import EvidenceRequest, PartReply, PartRequest
from protocol.wire.shape import largest

GOSSIP_KINDS = (Heartbeat, Goodbye, Ready, Accusation)
QUESTIONS: dict[str, type[Body] | None] = {
    "hello": Hello,
    "round": None,
    "exchange": ExchangeAsk,
    "goodbye": None,
    "part": PartRequest,
    "evidence": EvidenceRequest,
    **SERVED,
}
"""Each question that is answered, and how it is asked; None: with a signed statement."""
BEFORE_HELLO = ("hello", "manifest")
"""What those may ask who have not greeted."""
MAX_TOLD = 1024
"""Goodbyes remembered that came as questions."""


class Dispatcher:
    """Implements `protocol.network.interface.Handlers`.  While not open, it ignores gossip."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        offload: Offload,
        membership: Membership,
        handshake: Handshake,
        activity: Activity,
        ejections: Ejections,
        witness: Witness,
        evaluator: Evaluator,
        serving: Serving,
        readys: Readys,
        current: CurrentRound,
    ) -> None:
        self._session, self._guard, self._offload = session, guard, offload
        self._membership, self._evaluator = membership, evaluator
        self._handshake, self._activity, self._ejections, self._serving = handshake, activity, ejections, serving
        self._readys, self._round, self._witness = readys, current, witness
        self._nursery: trio.Nursery | None = None
        self._answers: dict[str, Callable[[PeerId, bytes], Awaitable[bytes]]] = {
            "hello": self._on_hello,
            "round": self._on_round_statement,
            "exchange": self._on_exchange_ask,
            "goodbye": self._on_goodbye_told,
            "part": self._on_part_request,
            "evidence": self._on_evidence_request,
        }
        assert {*self._answers, *SERVED} == set(QUESTIONS)
        self._decoding = trio.Lock()
        """One large statement is decoded at a time."""
        self._told: dict[PeerId, None] = {}
        """Peers whose goodbye came as a question, and has yet to be handed on when it comes by gossip."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Within, what arrives is handled, in the nursery that this gives."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                yield nursery
        finally:
            self._nursery = None

    def has_member(self, peer: PeerId) -> bool:
        """Whether a record of our chain names `peer`."""
        return self._membership.has_member(peer)

    def _may_speak(self, peer: PeerId) -> bool:
        return self._handshake.may_speak(peer) and peer not in self._ejections

    # -- gossip -------------------------------------------------------------------------------------------------------

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        """Judge a statement that travels by gossip, and hand it on; whether it is forwarded."""
        with self._guard.watch(forwarder, "gossip"):
            return self._judge_gossip(forwarder, data)
        return Verdict.IGNORE

    def _judge_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        try:
            sender, body, envelope = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            self._session.emit(Dropped(forwarder, "gossip", str(error)))
            return Verdict.REJECT
        if not isinstance(body, GOSSIP_KINDS):
            self._session.emit(Dropped(forwarder, "gossip", f"a {envelope.kind} does not travel by gossip"))
            return Verdict.REJECT
        if sender == self._session.me or self._nursery is None:
            return Verdict.IGNORE  # a peer that has left, or is not here yet, judges no forwarder
        with self._guard.watch(sender, envelope.kind):
            if isinstance(body, Ready):
                self._handshake.meet(sender, body)
            if self._may_speak(sender) and self._on_statement(forwarder, sender, body, envelope):
                return Verdict.ACCEPT
        return Verdict.IGNORE

    def _on_statement(self, forwarder: PeerId, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        """Whether it is news."""
        if isinstance(body, Heartbeat):
            return self._on_heartbeat(forwarder, sender, body)
        if isinstance(body, Goodbye):
            told = sender in self._told
            self._told.pop(sender, None)
            return self._on_goodbye(sender, body) or told
        if isinstance(body, Accusation):
            heard = self._ejections.hear(sender, body)
            if heard is Heard.NEW and self._nursery is not None:
                self._nursery.start_soon(self._look_into, sender, body)
            return heard is not Heard.UNWANTED
        assert isinstance(body, Ready)
        return self._on_ready(sender, body, envelope)

    async def _look_into(self, accuser: PeerId, accusation: Accusation) -> None:
        with self._guard.watch(accuser, "accusation"):
            verdict = await self._ejections.look_into(accusation)
            if verdict is not None:
                self._round.on_verdict(verdict)

    async def _convict(self, sender: PeerId, evidence: Evidence) -> None:
        with self._guard.watch(sender, "contradiction"):
            verdict = await self._ejections.convict(evidence)
            if verdict is not None:
                self._round.on_verdict(verdict)

    def _convict_all(self, sender: PeerId, lies: Sequence[Evidence]) -> None:
        for lie in lies:
            if self._nursery is not None:
                self._nursery.start_soon(self._convict, sender, lie)

    def _on_goodbye(self, sender: PeerId, bye: Goodbye) -> bool:
        fresh, events = self._membership.on_goodbye(sender, bye)
        if fresh:
            self._round.peer_dead(sender)
        for event in events:
            self._session.emit(event)
        return fresh

    def _on_heartbeat(self, forwarder: PeerId, sender: PeerId, beat: Heartbeat) -> bool:
        membership = self._membership
        was_live = membership.is_live(sender)
        fresh, events = membership.on_heartbeat(sender, beat, trio.current_time(), forwarder)
        if fresh:
            self._session.network.remember([a for a in beat.addresses if a.endswith(f"/p2p/{sender}")], claimed=True)
            if not was_live and membership.is_live(sender):
                self._round.peer_alive(sender)
        for event in events:
            self._session.emit(event)
        if fresh and beat.measured is not None:
            self._evaluator.on_claim(sender, beat.measured)
        return fresh

    def _on_ready(self, sender: PeerId, ready: Ready, envelope: Envelope) -> bool:
        if not self._handshake.may_be_named(sender, ready):
            return False
        news = self._readys.add(sender, ready, envelope, is_live=self._membership.is_live(sender))
        if isinstance(news, TwoStatements):
            self._convict_all(sender, [news])
            return False
        if news:
            self._round.receive(sender, ready, envelope)
        return news

    # -- requests -----------------------------------------------------------------------------------------------------

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Answer a peer's question.  Raises `Refused`, or `Offence` where the question breaks the protocol."""
        with self._guard.watch(peer, f"question '{kind:.40}'"):
            return await self._answer(peer, kind, data)
        raise Refused("this peer failed at the question")

    async def _answer(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if peer in self._ejections:
            raise Refused(f"you were ejected from this run: you {self._ejections.reason(peer)}")
        if kind not in QUESTIONS:
            raise Refused("no such question")
        form = QUESTIONS[kind]
        if form is not None and len(data) > largest(form).bytes:
            raise Refused("the question is too long")
        if kind not in BEFORE_HELLO and not self._handshake.may_speak(peer):
            raise Refused(f"not without a hello: {kind:.40}")
        return await self._serving.answer(kind, data) if kind in SERVED else await self._answers[kind](peer, data)

    async def _on_hello(self, peer: PeerId, data: bytes) -> bytes:
        answer = self._handshake.answer_hello(peer, data)
        self._session.network.welcome(peer)
        return answer

    async def _on_evidence_request(self, peer: PeerId, data: bytes) -> bytes:
        return await self._ejections.answer(data)

    async def _on_round_statement(self, peer: PeerId, data: bytes) -> bytes:
        try:
            if len(data) > LARGE_BYTES:
                async with self._decoding:
                    sender, body, envelope = await self._offload(unpack, data, self._session.run)
            else:
                sender, body, envelope = unpack(data, self._session.run)
        except Malformed as error:
            self._session.emit(Dropped(peer, "statement", str(error)))
            raise Offence(str(error)) from error
        if sender != peer and not isinstance(body, (Commit, *RELAYED)):
            raise Offence("a statement of somebody else")
        self._convict_all(sender, self._witness.hear(sender, body, envelope))
        self._round.receive(sender, body, envelope, by=peer)
        return b""

    async def _on_goodbye_told(self, peer: PeerId, data: bytes) -> bytes:
        """The leaver tells its neighbours itself; the answer is all it waits for."""
        try:
            sender, body, _ = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            raise Offence(str(error)) from error
        if sender != peer or not isinstance(body, Goodbye):
            raise Offence("no goodbye of its own")
        if self._nursery is not None and self._on_goodbye(peer, body):
            if len(self._told) >= MAX_TOLD:
                self._told.pop(next(iter(self._told)))
            self._told[peer] = None
        return b""

    async def _on_exchange_ask(self, peer: PeerId, data: bytes) -> bytes:
        try:
            ask = decode_body(ExchangeAsk, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        exchanges = self._round.exchanges
        exchange = await exchanges.find(Hash(ask.plan)) if exchanges is not None else None
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    async def _on_part_request(self, peer: PeerId, data: bytes) -> bytes:
        """A slice of our contribution, for a peer that audits."""
        try:
            question = decode_body(PartRequest, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        work = self._round.work
        part = work.part(Hash(question.root), question.chunk) if work is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        return PartReply(proof=proof, data=bytes(piece[question.offset : question.offset + question.length])).encode()

    # -- pushes -------------------------------------------------------------------------------------------------------

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Where a pushed chunk goes; None when it is not wanted."""
        with self._guard.watch(peer, "push"):
            plan, exchanges = push_plan(header), self._round.exchanges
            if plan is None or exchanges is None or not self._may_speak(peer):
                return None
            exchange = await exchanges.find(plan)
            return await exchange.open_push(peer, header, size) if exchange is not None else None
        return None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """A pushed chunk is complete, or was broken off."""
        with self._guard.watch(peer, "push"):
            plan, exchanges = push_plan(header), self._round.exchanges
            if plan is not None and exchanges is not None:
                await exchanges.finish_push(plan, peer, header, landing)

    # -- connections --------------------------------------------------------------------------------------------------

    def on_peer_connected(self, peer: PeerId) -> None:
        """Greet a peer that we are connected to now."""
        if self._nursery is not None:
            self._nursery.start_soon(self._greet, peer)
            for event in self._membership.on_connected(peer, trio.current_time()):
                self._session.emit(event)
                self._round.peer_alive(peer)

    async def _greet(self, peer: PeerId) -> None:
        with self._guard.watch(peer, "answer to our greeting"):
            refusal = await self._handshake.greet(self._session.network, peer)
            self._activity.tell_now()
            if refusal is not None:
                self._session.emit(Notice("warning", refusal))

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Judge a peer's liveness by its broken connection."""
        if self._nursery is None:
            return  # we close the connections ourselves, and nobody is silent for that
        with self._guard.watch(peer, "disconnection"):
            for event in self._membership.on_disconnected(peer, trio.current_time()):
                self._session.emit(event)
                self._round.peer_dead(peer)
