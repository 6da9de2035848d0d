"""Answers to the questions of other peers: checks that a peer may ask now, and passes the question to a component."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from protocol.allreduce.messages import ExchangeAsk
from protocol.audit.ejection import Ejections
from protocol.blobs.messages import QUESTIONS as ABOUT_BLOBS
from protocol.blobs.swarm import Swarm
from protocol.chain.serving import QUESTIONS as SERVED
from protocol.chain.serving import Serving
from protocol.membership.handshake import Handshake
from protocol.node.current_round import CurrentRound
from protocol.node.ratifier import Ratifier
from protocol.node.statements import Statements
from protocol.run.greeting import Hello
from protocol.transport.interface import MALFORMED, Refused, Session
from protocol.versions.weight_versions import WeightVersions
from protocol.wire.body import Body, decode_body, largest
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.questions import EvidenceRequest, PartReply, PartRequest, RatificationRequest
from protocol.wire.versions import VersionsRequest

QUESTIONS: dict[str, type[Body] | None] = {
    "hello": Hello,
    "round": None,
    "exchange": ExchangeAsk,
    "goodbye": None,
    "part": PartRequest,
    "evidence": EvidenceRequest,
    "ratification": RatificationRequest,
    "version": None,
    "versions": VersionsRequest,
    **ABOUT_BLOBS,
    **SERVED,
}
"""Each question that is answered, with its form; None for a signed statement, which is taken in."""
BEFORE_HELLO = ("hello", "manifest")
"""Questions that a peer may ask before it has greeted."""


class Answers:
    """Answers every question of `QUESTIONS`."""

    def __init__(
        self,
        session: Session,
        handshake: Handshake,
        ejections: Ejections,
        serving: Serving,
        swarm: Swarm,
        versions: WeightVersions,
        statements: Statements,
        ratifier: Ratifier,
        current: CurrentRound,
    ) -> None:
        self._network, self._handshake, self._ejections = session.network, handshake, ejections
        self._serving, self._swarm, self._statements, self._round = serving, swarm, statements, current
        self._versions = versions
        self._answers: dict[str, Callable[[PeerId, bytes], Awaitable[bytes]]] = {
            "hello": self._hello,
            "round": self._round_statement,
            "exchange": self._exchange,
            "goodbye": self._goodbye,
            "part": self._part,
            "evidence": self._evidence,
            "ratification": ratifier.answer,
            "version": self._version,
            "versions": versions.answer,
        }
        assert {*self._answers, *ABOUT_BLOBS, *SERVED} == set(QUESTIONS)

    async def answer(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Return the answer for `peer`.  Raises `Refused`, or `Offence` if the question breaks the protocol."""
        if peer in self._ejections:
            raise Refused(f"you were ejected from this run: you {self._ejections.reason(peer)}")
        if kind not in QUESTIONS:
            raise Refused("no such question")
        form = QUESTIONS[kind]
        if form is not None and len(data) > largest(form).bytes:
            raise Refused("the question is too long")
        if kind not in BEFORE_HELLO and not self._handshake.may_speak(peer):
            raise Refused(f"not without a hello: {kind:.40}")
        if kind in ABOUT_BLOBS:
            return await self._swarm.answer(peer, kind, data)
        return await self._serving.answer(kind, data) if kind in SERVED else await self._answers[kind](peer, data)

    async def _hello(self, peer: PeerId, data: bytes) -> bytes:
        answer = self._handshake.answer_hello(peer, data)
        self._network.welcome(peer)
        return answer

    async def _round_statement(self, peer: PeerId, data: bytes) -> bytes:
        await self._statements.about_the_round(peer, data)
        return b""

    async def _goodbye(self, peer: PeerId, data: bytes) -> bytes:
        await self._statements.goodbye(peer, data)
        return b""  # the leaving peer waits for this alone

    async def _version(self, peer: PeerId, data: bytes) -> bytes:
        await self._versions.told(peer, data)
        return b""

    async def _exchange(self, peer: PeerId, data: bytes) -> bytes:
        try:
            ask = decode_body(ExchangeAsk, data, max_bytes=256)
        except Malformed as error:
            raise Refused(MALFORMED) from error
        exchanges = self._round.exchanges
        exchange = await exchanges.find(Hash(ask.plan)) if exchanges is not None else None
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    async def _part(self, peer: PeerId, data: bytes) -> bytes:
        """Return a slice of our contribution to an auditing peer."""
        try:
            question = decode_body(PartRequest, data, max_bytes=256)
        except Malformed as error:
            raise Refused(MALFORMED) from error
        work = self._round.work
        part = work.part(Hash(question.root), question.chunk) if work is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        return PartReply(proof=proof, data=bytes(piece[question.offset : question.offset + question.length])).encode()

    async def _evidence(self, peer: PeerId, data: bytes) -> bytes:
        return await self._ejections.answer(data)
