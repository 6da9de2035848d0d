"""Who was ejected from this run, and why: proofs kept, announced, fetched and judged.

Each peer judges for itself.  An accusation is a rumour with the name of a proof; whoever hears it fetches the proof from the
accuser, judges it (`protocol.audit.evidence`), keeps it on disk and announces it in turn.  So every honest peer ejects
the same liars, and nobody is ejected by a majority's word.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.audit.evidence import (
    Evidence,
    Law,
    Verdict,
    decode_evidence,
    encode_evidence,
    evidence_hash,
    judge,
)
from protocol.events import Dropped, Notice, PeerEjected
from protocol.network.interface import NetworkError, Refused
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.replica import Replica
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, decode_body
from protocol.wire.questions import SLICE_BYTES, EvidenceRequest

MAX_EJECTED = 256
"""Liars remembered; a run with more than this needs an allowlist."""
KEPT_BYTES = 512 << 20
"""Proofs on disk; later ones count until the next start, when they are heard again."""
FETCH_TIMEOUT_S = 20.0
ANNOUNCE_EVERY_S = 30.0
MAX_WAITING = 16
"""Accusations looked into at a time; more are heard again later."""


class Ejections:
    """The liars of a run, as proven to this peer.  `on_verdict` is told of each new one."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, on_verdict: Callable[[Verdict], None]) -> None:
        self._session, self._store, self._offload, self._on_verdict = session, replica.store, offload, on_verdict
        self._law = Law(session.run, replica.manifest.fragments, replica.layout, replica.manifest.aggregation)
        self._verdicts: dict[PeerId, Verdict] = {}
        self._accusations: list[Envelope] = []
        self._looking: dict[bytes, None] = {}
        self._not_believed: dict[PeerId, None] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._verdicts

    def reason(self, peer: PeerId) -> str:
        """What an ejected peer did."""
        return self._verdicts[peer].reason

    async def load(self) -> None:
        """Judge again what lies on disk."""
        for name in await self._offload(self._store.evidence_names):
            raw = await self._offload(self._store.load_evidence, name)
            if raw is None:
                continue
            try:
                self._take(raw, await self._offload(self._judge_raw, raw))
            except Malformed as error:
                self._session.emit(Notice("warning", f"a proof on disk proves nothing: {error}"))

    async def convict(self, evidence: Evidence) -> None:
        """We found proof ourselves: keep it, and say so."""
        raw = encode_evidence(evidence)
        verdict = await self._offload(judge, self._law, evidence)
        if verdict.peer not in self:
            await self._keep(raw, verdict)

    # -- rumours ------------------------------------------------------------------------------------------------------

    def wants(self, accuser: PeerId, accusation: Accusation) -> bool:
        """Whether to look into it: somebody new is accused, by somebody who has not accused falsely."""
        if accusation.accused in (self._session.me, accuser) or accusation.accused in self:
            return False
        if accuser in self._not_believed or accuser in self or accusation.evidence in self._looking:
            return False
        return len(self._looking) < MAX_WAITING and len(self._verdicts) < MAX_EJECTED

    async def look_into(self, accuser: PeerId, accusation: Accusation) -> None:
        """Fetch the proof and judge it.  Never raises."""
        self._looking[accusation.evidence] = None
        try:
            raw = await self._fetch(accuser, accusation)
            verdict = await self._offload(self._judge_raw, raw)
            if verdict.peer != accusation.accused:
                raise Malformed("the proof is about somebody else")
            if verdict.peer not in self:
                await self._keep(raw, verdict)
        except NetworkError as error:
            self._session.emit(Notice("debug", f"no proof from {accuser}: {error}"))
        except Malformed as error:
            self._not_believed[accuser] = None
            self._session.emit(Dropped(accuser, "accusation", str(error)))
        finally:
            del self._looking[accusation.evidence]

    async def _fetch(self, accuser: PeerId, accusation: Accusation) -> bytes:
        name, raw = Hash(accusation.evidence), bytearray()
        while len(raw) < accusation.size:
            length = min(SLICE_BYTES, accusation.size - len(raw))
            question = EvidenceRequest(evidence=name, offset=len(raw), length=length)
            piece = await self._session.network.request(accuser, "evidence", question.encode(), timeout_s=FETCH_TIMEOUT_S)
            if len(piece) != length:
                raise Malformed("a proof of another size than announced")
            raw += piece
        if evidence_hash(bytes(raw)) != name:
            raise Malformed("a proof with another hash than announced")
        return bytes(raw)

    async def answer(self, data: bytes) -> bytes:
        """A slice of a proof that we hold; raises `Refused`."""
        try:
            question = decode_body(EvidenceRequest, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        raw = await self._offload(self._store.load_evidence, Hash(question.evidence))
        if raw is None:
            raise Refused("that proof is not here")
        return bytes(raw[question.offset : question.offset + question.length])

    async def announce(self) -> None:
        """Say now and again what we hold proof of: newcomers did not hear it.  Until cancelled."""
        while True:
            for envelope in list(self._accusations):
                await self._session.network.publish(envelope.raw)
            await trio.sleep(ANNOUNCE_EVERY_S)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def _judge_raw(self, raw: bytes) -> Verdict:
        return judge(self._law, decode_evidence(raw))

    async def _keep(self, raw: bytes, verdict: Verdict) -> None:
        if await self._offload(self._store.evidence_bytes) + len(raw) <= KEPT_BYTES:
            await self._offload(self._store.save_evidence, evidence_hash(raw), raw)
        if verdict.peer not in self:
            self._take(raw, verdict)
            await self._session.network.publish(self._accusations[-1].raw)

    def _take(self, raw: bytes, verdict: Verdict) -> None:
        name = evidence_hash(raw)
        self._verdicts[verdict.peer] = verdict
        accusation = Accusation(accused=verdict.peer, evidence=name, size=len(raw))
        self._accusations.append(self._session.seal(accusation))
        self._session.emit(PeerEjected(verdict.peer, verdict.reason, name.hex()))
        self._on_verdict(verdict)
