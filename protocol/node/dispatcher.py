"""What arrives at a peer, and who it is handed to: the handlers that the network calls.

Every byte is checked here for form and sender before any part of the peer sees it; nothing here raises, except the
refusals that `on_request` may.  What a statement means is decided by those it is handed to.
"""

from __future__ import annotations

import trio

from protocol.audit.ejection import Ejections
from protocol.audit.evidence import TwoStatements, slot
from protocol.content.serving import Serving
from protocol.events import Dropped, Notice
from protocol.exchange.messages import ExchangeAsk, push_plan
from protocol.membership.handshake import Doorkeeper
from protocol.membership.heartbeats import Pulse
from protocol.membership.liveness import Liveness, Membership
from protocol.network.interface import Landing, Offence, Refused, Verdict
from protocol.network.session import Session
from protocol.node.evaluator import Evaluator
from protocol.node.round_runner import RoundRunner
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_GOSSIP_BYTES, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, Body, Commit, Goodbye, Heartbeat, Motion, Proposal, Ready, decode_body, unpack
from protocol.wire.questions import PartReply, PartRequest

GOSSIP_KINDS = (Heartbeat, Goodbye, Ready, Accusation)
MAX_READYS = 1024


class Reception:
    """Implements `protocol.network.interface.Handlers`.  `runner` is the running round, None between rounds."""

    def __init__(self, session: Session, membership: Membership, door: Doorkeeper, pulse: Pulse, ejections: Ejections,
                 evaluator: Evaluator, serving: Serving) -> None:
        self._session, self._membership, self._evaluator = session, membership, evaluator
        self._door, self._pulse, self._ejections, self._serving = door, pulse, ejections, serving
        self.runner: RoundRunner | None = None
        self.nursery: trio.Nursery | None = None
        self._readys: dict[PeerId, tuple[Ready, Envelope]] = {}
        self._told: dict[PeerId, None] = {}
        """Whose goodbye came as a question, and has yet to be handed on when it comes by gossip."""

    def open_round(self, runner: RoundRunner) -> None:
        """From now on statements go to this round; what others said for it already comes first."""
        self.runner = runner
        for peer, (ready, envelope) in list(self._readys.items()):
            if ready.base == runner.base.tip:
                runner.receive(peer, ready, envelope)

    def close_round(self) -> None:
        self.runner = None

    def _may_speak(self, peer: PeerId) -> bool:
        return self._door.may_speak(peer) and peer not in self._ejections

    # -- gossip -------------------------------------------------------------------------------------------------------

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        try:
            sender, body, envelope = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            self._session.emit(Dropped(forwarder, "gossip", str(error)))
            return Verdict.REJECT
        if not isinstance(body, GOSSIP_KINDS):
            self._session.emit(Dropped(forwarder, "gossip", f"a {envelope.kind} does not travel by gossip"))
            return Verdict.REJECT
        if sender == self._session.me or self.nursery is None or not self._may_speak(sender):
            return Verdict.IGNORE  # who has left, or is not here yet, judges nobody
        return Verdict.ACCEPT if self._on_statement(sender, body, envelope) else Verdict.IGNORE

    def _on_statement(self, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        """Whether it is news."""
        if isinstance(body, Heartbeat):
            return self._on_heartbeat(sender, body)
        if isinstance(body, Goodbye):
            told = sender in self._told
            self._told.pop(sender, None)
            return self._on_goodbye(sender, body) or told
        if isinstance(body, Accusation):
            wanted = self._ejections.wants(sender, body)
            if wanted and self.nursery is not None:
                self.nursery.start_soon(self._ejections.look_into, sender, body)
            return wanted
        assert isinstance(body, Ready)
        return self._on_ready(sender, body, envelope)

    def _on_goodbye(self, sender: PeerId, bye: Goodbye) -> bool:
        fresh, events = self._membership.on_goodbye(sender, bye)
        if fresh and self.runner is not None:
            self.runner.peer_dead(sender)
        for event in events:
            self._session.emit(event)
        return fresh

    def _on_heartbeat(self, sender: PeerId, beat: Heartbeat) -> bool:
        membership = self._membership
        known = membership.get(sender)
        was = known.liveness if known else None
        fresh, events = membership.on_heartbeat(sender, beat, trio.current_time())
        if fresh:
            self._session.network.remember([a for a in beat.addresses if a.endswith(f"/p2p/{sender}")])
            if was is not Liveness.ALIVE and self.runner is not None:
                self.runner.peer_alive(sender)
        for event in events:
            self._session.emit(event)
        if fresh and beat.measured is not None:
            self._evaluator.on_claim(sender, beat.measured)
        return fresh

    def _on_ready(self, sender: PeerId, ready: Ready, envelope: Envelope) -> bool:
        if not self._door.may_contribute(sender):
            return False
        known = self._readys.get(sender)
        if known is not None and known[1].raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known[0].incarnation, known[0].serial):
            if slot(ready) == slot(known[0]) and self.nursery is not None:
                self.nursery.start_soon(self._ejections.convict, TwoStatements(first=known[1].raw, second=envelope.raw))
            return False
        if self._membership.get(sender) is None and len(self._readys) >= MAX_READYS:
            return False
        self._readys[sender] = (ready, envelope)
        if self.runner is not None:
            self.runner.receive(sender, ready, envelope)
        return True

    # -- requests -----------------------------------------------------------------------------------------------------

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if peer in self._ejections:
            raise Refused(f"you were ejected from this run: you {self._ejections.reason(peer)}")
        if kind == "hello":
            answer = self._door.answer_hello(peer, data)
            self._session.network.welcome(peer)
            return answer
        if kind == "manifest":
            return await self._serving.answer(kind, data)
        if not self._door.may_speak(peer):
            raise Refused(f"not without a hello: {kind:.40}")
        if self._serving.knows(kind):
            return await self._serving.answer(kind, data)
        if kind == "round":
            return await self._on_round_statement(peer, data)
        if kind == "vouch":
            return self._door.answer_vouch(data)
        if kind == "exchange":
            return await self._on_exchange_ask(peer, data)
        if kind == "goodbye":
            return self._on_goodbye_told(peer, data)
        if kind == "part":
            return self._on_part_request(data)
        if kind == "evidence":
            return await self._ejections.answer(data)
        raise Refused("no such question")

    async def _on_round_statement(self, peer: PeerId, data: bytes) -> bytes:
        try:
            sender, body, envelope = unpack(data, self._session.run)
        except Malformed as error:
            self._session.emit(Dropped(peer, "statement", str(error)))
            raise Offence(str(error)) from error
        if sender != peer and not isinstance(body, Commit):
            raise Offence("a statement of somebody else")
        if isinstance(body, Proposal | Motion) and not await self._names_only_admitted(peer, body):
            self._session.emit(Dropped(peer, envelope.kind, "it names somebody who was not admitted"))
            raise Refused("it names somebody whose token was not shown here")
        if self.runner is not None:
            self.runner.receive(sender, body, envelope, by=peer)
        return b""

    async def _names_only_admitted(self, proposer: PeerId, body: Proposal | Motion) -> bool:
        members = body.plan.members if isinstance(body, Proposal) else body.record.members
        named = [PeerId(member.peer) for member in members]
        return await self._door.all_admitted(self._session.network, named, proposer)

    def _on_goodbye_told(self, peer: PeerId, data: bytes) -> bytes:
        """The leaver tells its neighbours itself; the answer is all it waits for."""
        try:
            sender, body, _ = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            raise Offence(str(error)) from error
        if sender != peer or not isinstance(body, Goodbye):
            raise Offence("no goodbye of its own")
        if self.nursery is not None and self._on_goodbye(peer, body):
            if len(self._told) >= MAX_READYS:
                self._told.pop(next(iter(self._told)))
            self._told[peer] = None
        return b""

    async def _on_exchange_ask(self, peer: PeerId, data: bytes) -> bytes:
        try:
            ask = decode_body(ExchangeAsk, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        exchange = await self.runner.exchange_for(Hash(ask.plan)) if self.runner is not None else None
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    def _on_part_request(self, data: bytes) -> bytes:
        """A slice of what we contributed, for somebody who audits."""
        try:
            question = decode_body(PartRequest, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        part = self.runner.work.part(Hash(question.root), question.chunk) if self.runner is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        return PartReply(proof=proof, data=bytes(piece[question.offset : question.offset + question.length])).encode()

    # -- pushes -------------------------------------------------------------------------------------------------------

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        plan, runner = push_plan(header), self.runner
        if plan is None or runner is None or not self._may_speak(peer):
            return None
        exchange = await runner.exchange_for(plan)
        return await exchange.open_push(peer, header, size) if exchange is not None else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        plan, runner = push_plan(header), self.runner
        if plan is None or runner is None:
            return
        exchange = await runner.exchange_for(plan)
        if exchange is not None:
            await exchange.finish_push(peer, header, landing)
            runner.exchange_moved()

    # -- connections --------------------------------------------------------------------------------------------------

    def on_peer_connected(self, peer: PeerId) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(self._greet, peer)

    async def _greet(self, peer: PeerId) -> None:
        refusal = await self._door.greet(self._session.network, peer)
        self._pulse.beat_now()
        if refusal is not None:
            self._session.emit(Notice("warning", refusal))

    def on_peer_disconnected(self, peer: PeerId) -> None:
        if self.nursery is None:
            return  # we close the connections ourselves, and nobody is silent for that
        for event in self._membership.on_disconnected(peer, trio.current_time()):
            self._session.emit(event)
            if self.runner is not None:
                self.runner.peer_dead(peer)
