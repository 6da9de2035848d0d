"""Ejection of proven liars: proofs of their lies are persisted, announced, fetched and judged.

Each peer judges for itself.  An accusation is a gossip message with the hash of a proof.  A peer that receives it fetches
the proof from the accuser, judges it (`protocol.audit.evidence`), persists it and announces it in turn.  So every honest
peer ejects the same liars, and no peer is ejected by a majority alone.

An accusation costs its author nothing, but costs us a download.  So we examine only accusations of electors: they compare
statements and audit records, they announce every proof that they hold, and no crowd of free keys is among them.  An
accusation that exceeds one of the limits below is ignored: each accuser repeats it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import trio

from protocol.audit.evidence import (
    Evidence,
    Law,
    ProvenLie,
    TwoStatements,
    Witness,
    decode_evidence,
    encode_evidence,
    evidence_hash,
    judge,
)
from protocol.bounds import Backoffs, BoundedDict
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.transport.handlers import Guard, Statement, answers, hears
from protocol.transport.interface import Acceptance, NetworkError, Refused, Session, Unreachable
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation
from protocol.wire.questions import SLICE_BYTES, EvidenceRequest

PROOFS_AT_ONCE, BYTES_AT_ONCE, SMALL_BYTES = 16, 64 << 20, 1 << 20
"""Limits on the proofs fetched at a time, one from each accuser, and on their total bytes.

A small proof may exceed the total: so a lying elector that announces 64 MiB does not keep out the contradictions that others
prove.
"""
FETCH_S = 15.0
SLOWEST_BYTES_PER_S = 512 << 10
"""Slowest permitted rate: the fetch of a proof may take `FETCH_S` plus the time for its size at this rate."""
SET_BACK_S = 30.0
MAX_SET_BACK_S = 3600.0
"""Shortest and longest time for which an accuser is ignored that did not deliver its proof in time."""
MAX_REMEMBERED = 4096
"""Limit on the accusers remembered as slow, and on the remembered false ones; the oldest entry is evicted."""
AGAIN_S = 30.0
"""Seconds until an accusation is published again, for newcomers that have not received it."""
SPACING_S = 2.0
"""Seconds between two accusations of ours.

Peers accept few messages per second from one author, heartbeats included.  An attacker that sacrifices hundreds of keys must
not make us exceed this rate.  Accusations against members go first.
"""
MAX_EJECTED = 256
"""Number of liars remembered; beyond it, liars that were never in the chain are forgotten, and members never."""
KEPT_BYTES = 512 << 20
"""Limit on the bytes of proofs on disk; later proofs are lost at a restart, after which other peers announce them again."""


def deadline_s(size: int) -> float:
    """Return the timeout (s) for fetching a proof of `size` bytes."""
    return FETCH_S + size / SLOWEST_BYTES_PER_S


@dataclass
class _Ejection:
    """Verdict on a liar, our signed accusation, and the time from which on it is published (again)."""

    verdict: ProvenLie
    proof: Hash
    accusation: bytes
    due: float


class Ejections:
    """Register of the liars of a run, as proven to this peer, which no longer hears them, waits for them or serves them.

    listeners: called with each verdict on a lie that is proven while this peer runs.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        membership: Membership,
        offload: Offload,
    ) -> None:
        self._session, self._guard, self._store, self._membership = session, guard, replica.store, membership
        self._offload, self.listeners = offload, list[Callable[[ProvenLie], None]]()
        self._history, manifest = replica.history, replica.manifest
        self._witness = Witness(session.run, replica.history)
        self._law = Law(session.run, manifest.fragments, replica.layouts, manifest.aggregation)
        self._ejected: dict[PeerId, _Ejection] = {}
        """The oldest first."""
        self._news = trio.Event()
        self._examined: dict[PeerId, Accusation] = {}
        """Accusations whose proofs are being fetched or judged, by accuser."""
        self._slow = Backoffs[PeerId](SET_BACK_S, MAX_SET_BACK_S, MAX_REMEMBERED)
        self._disbelieved = BoundedDict[PeerId, None](MAX_REMEMBERED)
        self._judging = trio.Lock()
        """Lock for judging one proof at a time, because a proof is in memory two or three times while it is judged."""

    def __contains__(self, peer: object) -> bool:
        return peer in self._ejected

    def reason(self, peer: PeerId) -> str:
        """Return the lie for which a peer was ejected, as a phrase."""
        return self._ejected[peer].verdict.reason

    async def load(self) -> None:
        """Judge the proofs on disk again."""
        for name in (await self._offload(self._store.evidence.names))[:MAX_EJECTED]:
            raw = await self._offload(self._store.evidence.load, name)
            if raw is None:
                continue
            try:
                self._take(raw, await self._judge(raw))
            except Malformed as error:
                self._session.emit(Notice("warning", f"a proof on disk proves nothing: {error}"))

    def compare(self, said: Statement[Body]) -> None:
        """Compare a statement about a round with earlier statements of its sender; convict a liar in the background."""
        for lie in self._witness.hear(said.sender, said.body, said.envelope):
            self._guard.start(self._watched, said.sender, "contradiction", self.convict, lie)

    def accuse(self, peer: PeerId, first: bytes, second: bytes) -> None:
        """Convict a peer in the background for two statements that contradict each other."""
        self._guard.start(self._watched, peer, "contradiction", self.convict, TwoStatements(first=first, second=second))

    async def _watched(self, peer: PeerId, what: str, work: Callable[[Any], Awaitable[object]], subject: object) -> None:
        with self._guard.watch(peer, what):
            await work(subject)

    async def convict(self, evidence: Evidence) -> ProvenLie | None:
        """Persist and announce a proof that we found ourselves, and return the verdict.

        Return None if the liar was ejected before.  Also return None if the evidence proves nothing, which is possible
        because it is made of statements that other peers sent.
        """
        raw = encode_evidence(evidence)
        try:
            verdict = await self._judge(raw)
        except Malformed as error:
            self._session.emit(Notice("warning", f"an apparent proof of a lie proves nothing: {error}"))
            return None
        return await self._eject(raw, verdict)

    # -- accusations --------------------------------------------------------------------------------------------------

    @hears(Accusation)
    def hear_accusation(self, said: Statement[Accusation]) -> Acceptance:
        """Examine the accusation of an elector in the background, unless a limit is reached."""
        accuser, accusation = said.sender, said.body
        if not self._is_wanted(accuser, accusation):
            return Acceptance.IGNORE
        if accusation not in self._examined.values():
            self._examined[accuser] = accusation
            self._guard.start(self._watched, accuser, "accusation", self.examine, accuser)
        return Acceptance.ACCEPT

    def _is_wanted(self, accuser: PeerId, accusation: Accusation) -> bool:
        if accusation.accused in (self._session.me, accuser) or accusation.accused in self or accuser in self:
            return False
        is_ignored = accuser in self._disbelieved or not self._slow.is_over(accuser, trio.current_time())
        if is_ignored or accuser in self._examined or accuser not in self._history.roster.electorate.electors:
            return False
        size = accusation.size + sum(each.size for each in self._examined.values())
        return len(self._examined) < PROOFS_AT_ONCE and (size <= BYTES_AT_ONCE or accusation.size <= SMALL_BYTES)

    async def examine(self, accuser: PeerId) -> None:
        """Fetch the proof of an accusation that we have accepted, and judge it.  Raise nothing, whatever a peer sends."""
        accusation = self._examined[accuser]
        try:
            raw = await self._fetch(accuser, accusation)
            verdict = await self._judge(raw)
            if verdict.peer != accusation.accused:
                raise Malformed("the proof is about another peer")
            await self._eject(raw, verdict)
        except NetworkError as error:
            self._slow.failed(accuser, trio.current_time())
            self._session.emit(Notice("debug", f"no proof from {accuser}: {error}"))
        except Malformed as error:
            self._disbelieved[accuser] = None
            self._session.emit(Dropped(accuser, "accusation", str(error)))
        finally:
            del self._examined[accuser]

    async def _fetch(self, accuser: PeerId, accusation: Accusation) -> bytes:
        """Return the proof with the announced hash."""
        name, size, raw = Hash(accusation.evidence), accusation.size, bytearray()
        with trio.move_on_after(deadline_s(size)) as deadline:
            while len(raw) < size:
                length = min(SLICE_BYTES, size - len(raw))
                question = EvidenceRequest(evidence=name, offset=len(raw), length=length).encode()
                piece = await self._session.network.request(accuser, "evidence", question, timeout_s=FETCH_S)
                if len(piece) != length:
                    raise Malformed("a proof whose size is not the announced one")
                raw += piece
        if deadline.cancelled_caught:
            raise Unreachable("too slow")
        if evidence_hash(bytes(raw)) != name:
            raise Malformed("a proof whose hash is not the announced one")
        return bytes(raw)

    @answers("evidence", EvidenceRequest)
    async def answer(self, peer: PeerId, question: EvidenceRequest) -> bytes:
        """Return a slice of a proof; raise `Refused` if we do not hold the proof."""
        read = self._store.evidence.read
        found: bytes | None = await self._offload(read, Hash(question.evidence), question.offset, question.length)
        if found is None:
            raise Refused("this peer does not have that proof")
        return found

    async def run(self) -> None:
        """Publish our accusations repeatedly, because newcomers have not heard them, until cancelled."""
        while True:
            now = trio.current_time()
            due = {peer: each for peer, each in self._ejected.items() if each.due <= now}
            if due:
                first = due[min(due, key=lambda peer: (not self._history.has_member(peer), due[peer].due))]
                first.due = now + max(AGAIN_S, SPACING_S * len(self._ejected))
                await self._session.network.publish(first.accusation)
                await trio.sleep(SPACING_S)
            else:
                self._news = trio.Event()
                with trio.move_on_at(min((each.due for each in self._ejected.values()), default=inf)):
                    await self._news.wait()

    # -- verdicts -----------------------------------------------------------------------------------------------------

    async def _judge(self, raw: bytes) -> ProvenLie:
        """Judge a proof; raise `Malformed` if it proves nothing."""
        async with self._judging:
            evidence = await self._offload(decode_evidence, raw)
            verdict: ProvenLie = await self._offload(judge, self._law, evidence)
            return verdict

    async def _eject(self, raw: bytes, verdict: ProvenLie) -> ProvenLie | None:
        """Persist the proof and eject the liar.  Return None if it was ejected before, or if no place is free."""
        if verdict.peer in self or not await self._make_room(verdict.peer):
            return None
        try:
            if await self._offload(self._store.evidence.size_bytes) + len(raw) <= KEPT_BYTES:
                await self._offload(self._store.evidence.save, evidence_hash(raw), raw)
        except StoreFailed as error:
            self._session.emit(Notice("warning", f"a proof was not kept: {error}"))
        if verdict.peer in self:
            return None
        self._take(raw, verdict)
        for listener in self.listeners:
            listener(verdict)
        return verdict

    async def _make_room(self, liar: PeerId) -> bool:
        """Return True if there is a place for `liar`; drop a stranger's verdict to make room if needed."""
        if len(self._ejected) < MAX_EJECTED:
            return True
        stranger = next((peer for peer in self._ejected if not self._history.has_member(peer)), None)
        if stranger is not None:
            await self._offload(self._store.evidence.remove, self._ejected.pop(stranger).proof)
        return stranger is not None or self._history.has_member(liar)

    def _take(self, raw: bytes, verdict: ProvenLie) -> None:
        name, peer = evidence_hash(raw), verdict.peer
        accusation = self._session.seal(Accusation(accused=peer, evidence=name, size=len(raw)))
        self._ejected[peer] = _Ejection(verdict, name, accusation.raw, trio.current_time())
        self._news.set()
        self._session.emit(PeerEjected(peer, verdict.reason, name.hex()))
        self._membership.bar(peer)
        self._session.network.forget(peer)
