"""Ejecting peers that are proven to have lied: proofs are persisted, announced, fetched and judged.

Each peer judges for itself.  An accusation is a rumour with the name of a proof; a peer that hears it fetches the proof from
the accuser, judges it (`protocol.audit.evidence`), persists it and announces it in turn.  So every honest peer ejects
the same liars, and nobody is ejected by a majority's word.

Some evidence is about a tip that we do not know yet: it is postponed until we do.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from protocol.audit.evidence import (
    Evidence,
    Law,
    UnknownTip,
    Verdict,
    decode_evidence,
    encode_evidence,
    evidence_hash,
    judge,
    tip_needed,
)
from protocol.audit.postponed import Postponed
from protocol.events import Dropped, Notice, PeerEjected
from protocol.membership.liveness import Membership
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
"""Accusations looked into at a time; others are heard again later."""


class Ejections:
    """The liars of a run, as proven to this peer.  They are not heard, waited for or served any more."""

    def __init__(self, session: Session, replica: Replica, membership: Membership, offload: Offload) -> None:
        self._session, self._store, self._membership, self._offload = session, replica.store, membership, offload
        self._history, manifest = replica.history, replica.manifest
        self._law = Law(session.run, manifest.fragments, replica.layout, manifest.aggregation, manifest.rounds.max_members)
        self._verdicts: dict[PeerId, Verdict] = {}
        self._accusations: list[Envelope] = []
        self._put_new, self._new = trio.open_memory_channel[Envelope](MAX_EJECTED)
        self._looking: dict[bytes, None] = {}
        self._not_believed: dict[PeerId, None] = {}
        self._postponed = Postponed()

    def __contains__(self, peer: object) -> bool:
        return peer in self._verdicts

    def reason(self, peer: PeerId) -> str:
        """What an ejected peer did."""
        return self._verdicts[peer].reason

    async def load(self) -> None:
        """Judge again what lies on disk."""
        for name in await self._offload(self._store.evidence.names):
            raw = await self._offload(self._store.evidence.load, name)
            if raw is None:
                continue
            try:
                self._take(raw, await self._judge(raw))
            except UnknownTip as error:
                self._postpone(raw, error, is_known=True)
            except Malformed as error:
                self._session.emit(Notice("warning", f"a proof on disk proves nothing: {error}"))

    async def convict(self, evidence: Evidence) -> Verdict | None:
        """We found proof ourselves: persist it, and announce it.

        None when its author was ejected before, or when it proves nothing: it is made of what others sent.
        """
        raw = encode_evidence(evidence)
        try:
            verdict = await self._judge(raw)
        except (Malformed, UnknownTip) as error:
            self._session.emit(Notice("warning", f"what looked like proof of a lie is none: {error}"))
            return None
        return await self._eject(raw, verdict)

    async def look_again(self) -> None:
        """Judge the postponed evidence whose tip we know by now."""
        for raw in self._postponed.take(lambda tip: self._history.base_at(*tip) is not None):
            try:
                await self._eject(raw, await self._judge(raw))
            except (Malformed, UnknownTip) as error:
                self._session.emit(Notice("debug", f"postponed evidence proves nothing: {error}"))

    # -- rumours ------------------------------------------------------------------------------------------------------

    def wants(self, accuser: PeerId, accusation: Accusation) -> bool:
        """Whether to look into it: the accused is not ejected yet, and the accuser has not accused falsely."""
        if accusation.accused in (self._session.me, accuser) or accusation.accused in self:
            return False
        if accuser in self._not_believed or accuser in self or accusation.evidence in self._looking:
            return False
        return len(self._looking) < MAX_WAITING and len(self._verdicts) < MAX_EJECTED

    async def look_into(self, accuser: PeerId, accusation: Accusation) -> Verdict | None:
        """Fetch the proof and judge it.  None when it proves nothing, or nothing new.  Never raises for what a peer sent."""
        self._looking[accusation.evidence] = None
        try:
            raw = await self._fetch(accuser, accusation)
            verdict = await self._judge(raw)
            if verdict.peer != accusation.accused:
                raise Malformed("the proof is about somebody else")
            return await self._eject(raw, verdict)
        except NetworkError as error:
            self._session.emit(Notice("debug", f"no proof from {accuser}: {error}"))
        except UnknownTip as error:
            self._postpone(raw, error, is_known=self._history.has_member(PeerId(accusation.accused)))
        except Malformed as error:
            self._not_believed[accuser] = None
            self._session.emit(Dropped(accuser, "accusation", str(error)))
        finally:
            del self._looking[accusation.evidence]
        return None

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
        raw = await self._offload(self._store.evidence.load, Hash(question.evidence))
        if raw is None:
            raise Refused("that proof is not here")
        return bytes(raw[question.offset : question.offset + question.length])

    async def announce(self) -> None:
        """Publish new accusations at once, and now and again all of them: newcomers did not hear them.  Until cancelled."""
        while True:
            for envelope in list(self._accusations):
                await self._session.network.publish(envelope.raw)
            again = trio.current_time() + ANNOUNCE_EVERY_S
            while (new := await self._next_new(again - trio.current_time())) is not None:
                await self._session.network.publish(new.raw)

    async def _next_new(self, within_s: float) -> Envelope | None:
        with trio.move_on_after(max(0.0, within_s)):
            return await self._new.receive()
        return None

    # -- verdicts -----------------------------------------------------------------------------------------------------

    async def _judge(self, raw: bytes) -> Verdict:
        """Raises `Malformed` for what proves nothing, and `UnknownTip` for what cannot be judged yet."""
        evidence = await self._offload(decode_evidence, raw)
        tip = await self._offload(tip_needed, self._law, evidence)
        base = self._history.base_at(*tip) if tip is not None else None
        verdict: Verdict = await self._offload(judge, self._law, evidence, base)
        return verdict

    def _postpone(self, raw: bytes, error: UnknownTip, *, is_known: bool) -> None:
        """Keep evidence until we know the tip that it is about.  is_known: the accused is in our chain."""
        if self._postponed.add(raw, error.tip, is_known=is_known):
            self._session.emit(Notice("debug", f"evidence about a tip that we do not know yet: {error}"))

    async def _eject(self, raw: bytes, verdict: Verdict) -> Verdict | None:
        """Persist the proof, and act on it.  None when its author was ejected before."""
        if verdict.peer in self:
            return None
        if await self._offload(self._store.evidence.size_bytes) + len(raw) <= KEPT_BYTES:
            await self._offload(self._store.evidence.save, evidence_hash(raw), raw)
        if verdict.peer in self:
            return None
        self._take(raw, verdict)
        with suppress(trio.WouldBlock):  # then it is announced with all the others
            self._put_new.send_nowait(self._accusations[-1])
        return verdict

    def _take(self, raw: bytes, verdict: Verdict) -> None:
        name = evidence_hash(raw)
        self._verdicts[verdict.peer] = verdict
        accusation = Accusation(accused=verdict.peer, evidence=name, size=len(raw))
        self._accusations.append(self._session.seal(accusation))
        self._session.emit(PeerEjected(verdict.peer, verdict.reason, name.hex()))
        self._membership.bar(verdict.peer)
        self._session.network.forget(verdict.peer)
