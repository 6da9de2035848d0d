"""Ejection of proven liars: proofs of their lies are persisted, announced, fetched and judged.

Each peer judges for itself.  An accusation is a gossip message with the hash of a proof.  A peer that receives it fetches
the proof from an accuser (`protocol.audit.accusations`), judges it (`protocol.audit.evidence`), persists it and announces it
in turn (this module).  So every honest peer ejects the same liars, and no peer is ejected by a majority alone.

Evidence about a tip that we do not know yet is postponed until we know the tip.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from protocol.agreement.contradictions import Tip
from protocol.audit.accusations import FETCH_S, AccusationOutcome, Accusations, Case, deadline_s
from protocol.audit.evidence import (
    Evidence,
    Law,
    ProvenLie,
    TwoStatements,
    UnknownTip,
    decode_evidence,
    encode_evidence,
    evidence_hash,
    judge,
    tip_needed,
)
from protocol.audit.witness import Witness
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.transport.handlers import Guard, Statement, answers, hears
from protocol.transport.interface import Acceptance, NetworkError, Refused, Session, Unreachable
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation
from protocol.wire.questions import SLICE_BYTES, EvidenceRequest

# ------------------------------------------------------------------------------------------------------------------------
# Publication of accusations: new accusations soon, all of them repeatedly, and never many at once.
#
# Peers accept few messages per second from one author, heartbeats included.  An attacker that sacrifices hundreds of keys
# must not make us exceed this rate.  Accusations against members go first.


AGAIN_S = 30.0
"""Seconds until an accusation is published again, for newcomers that have not received it."""
SPACING_S = 2.0
"""Seconds between two accusations."""


@dataclass
class _Announcement:
    envelope: Envelope
    is_member: bool
    due: float


class Announcements:
    """Queue of the accusations that we publish."""

    def __init__(self) -> None:
        self._of: dict[PeerId, _Announcement] = {}
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._of)

    def add(self, accused: PeerId, envelope: Envelope, *, is_member: bool) -> None:
        """Add an accusation, which is published as soon as possible."""
        self._of[accused] = _Announcement(envelope, is_member, trio.current_time())
        self._changed.set()

    def remove(self, accused: PeerId) -> None:
        """Stop announcing the accusation of this peer."""
        self._of.pop(accused, None)

    async def _next(self) -> Envelope:
        """Wait for the next announcement that is due, schedule its repetition, and return it."""
        while True:
            now = trio.current_time()
            first = min(self._of.values(), key=lambda each: (each.due > now, not each.is_member, each.due), default=None)
            if first is not None and first.due <= now:
                first.due = now + max(AGAIN_S, SPACING_S * len(self._of))
                return first.envelope
            self._changed = trio.Event()
            with trio.move_on_at(min((each.due for each in self._of.values()), default=trio.current_time() + AGAIN_S)):
                await self._changed.wait()

    async def run(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Publish due announcements, until cancelled."""
        while True:
            await publish((await self._next()).raw)
            await trio.sleep(SPACING_S)


# ------------------------------------------------------------------------------------------------------------------------
# Evidence that cannot be judged yet, because its tip is not in our chain; the tip may be added later.
#
# Any peer can make up such evidence about keys of its own, so the amount is limited.  Accusers announce evidence that we
# forgot again.  Evidence against peers of our chain has priority.


MAX_POSTPONED = 16
POSTPONED_BYTES = 16 << 20
"""Limit on the bytes of all postponed evidence together."""


@dataclass(frozen=True)
class _Piece:
    raw: bytes
    tip: Tip
    is_known: bool


class Postponed:
    """Postponed evidence, by name.  The oldest is evicted first, evidence against unknown peers before the rest."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, _Piece] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def add(self, name: Hash, raw: bytes, tip: Tip, *, is_known: bool) -> bool:
        """Keep a piece of evidence if there is room; return True if it is kept.

        tip: the tip to which the evidence refers.  is_known: True if the accused is in our chain.
        """
        if name in self._pieces or len(raw) > POSTPONED_BYTES:
            return False
        size = len(raw) + sum(len(piece.raw) for piece in self._pieces.values())
        while len(self._pieces) >= MAX_POSTPONED or size > POSTPONED_BYTES:
            oldest = min(self._pieces, key=lambda each: self._pieces[each].is_known)
            if self._pieces[oldest].is_known and not is_known:
                return False
            size -= len(self._pieces.pop(oldest).raw)
        self._pieces[name] = _Piece(raw, tip, is_known)
        return True

    def take(self, is_judged: Callable[[Tip], bool]) -> list[bytes]:
        """Remove and return the evidence about tips for which `is_judged` returns True."""
        due = [name for name, piece in self._pieces.items() if is_judged(piece.tip)]
        return [self._pieces.pop(name).raw for name in due]


# ------------------------------------------------------------------------------------------------------------------------


MAX_EJECTED = 256
"""Number of liars remembered; beyond it, liars that were never in the chain are forgotten, and members never."""
KEPT_BYTES = 512 << 20
"""Limit on the bytes of proofs on disk; later proofs are lost at a restart, after which other peers announce them again."""


class Ejections:
    """Register of the liars of a run, as proven to this peer, which no longer hears them, waits for them or serves them.

    on_verdict: called with each verdict on a lie that is proven while this peer runs.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        membership: Membership,
        offload: Offload,
        on_verdict: Callable[[ProvenLie], None],
    ) -> None:
        self._session, self._guard, self._store, self._membership = session, guard, replica.store, membership
        self._offload, self._on_verdict = offload, on_verdict
        self._history, manifest = replica.history, replica.manifest
        self._witness = Witness(session.run, replica.history, manifest.rounds.max_members)
        self._law = Law(session.run, manifest.fragments, replica.layouts, manifest.aggregation, manifest.rounds.max_members)
        self._verdicts: dict[PeerId, tuple[ProvenLie, Hash]] = {}
        """Verdict on each liar, and name of its proof, the oldest first."""
        self._accusations, self._announcements = Accusations(), Announcements()
        self._postponed = Postponed()
        self._judging = trio.Lock()
        """Lock for judging one proof at a time, because a proof is in memory two or three times while it is judged."""

    def __contains__(self, peer: object) -> bool:
        return peer in self._verdicts

    def reason(self, peer: PeerId) -> str:
        """Return the lie for which a peer was ejected, as a phrase."""
        return self._verdicts[peer][0].reason

    async def load(self) -> None:
        """Judge the proofs on disk again."""
        for name in (await self._offload(self._store.evidence.names))[:MAX_EJECTED]:
            raw = await self._offload(self._store.evidence.load, name)
            if raw is None:
                continue
            try:
                self._take(raw, await self._judge(raw))
            except UnknownTip as error:
                self._postpone(raw, error)
            except Malformed as error:
                self._session.emit(Notice("warning", f"a proof on disk proves nothing: {error}"))

    def compare(self, said: Statement[Body]) -> None:
        """Compare a statement about a round with earlier statements of its sender; convict a liar in the background."""
        for lie in self._witness.hear(said.sender, said.body, said.envelope):
            self._guard.start(self._convict_later, said.sender, lie)

    def accuse(self, peer: PeerId, first: bytes, second: bytes) -> None:
        """Convict a peer in the background for two statements that contradict each other."""
        self._guard.start(self._convict_later, peer, TwoStatements(first=first, second=second))

    async def _convict_later(self, sender: PeerId, lie: Evidence) -> None:
        with self._guard.watch(sender, "contradiction"):
            await self.convict(lie)

    async def convict(self, evidence: Evidence) -> ProvenLie | None:
        """Persist and announce a proof that we found ourselves, and return the verdict.

        Return None if the liar was ejected before.  Also return None if the evidence proves nothing, which is possible
        because it is made of statements that other peers sent.
        """
        raw = encode_evidence(evidence)
        try:
            verdict = await self._judge(raw)
        except (Malformed, UnknownTip) as error:
            self._session.emit(Notice("warning", f"what looked like proof of a lie is none: {error}"))
            return None
        return await self._eject(raw, verdict)

    async def look_again(self) -> None:
        """Judge the postponed evidence whose tip is known now."""
        for raw in self._postponed.take(lambda tip: self._history.base_at(*tip) is not None):
            try:
                await self._eject(raw, await self._judge(raw))
            except (Malformed, UnknownTip) as error:
                self._session.emit(Notice("debug", f"postponed evidence proves nothing: {error}"))

    # -- accusations --------------------------------------------------------------------------------------------------

    @hears(Accusation)
    def hear_accusation(self, said: Statement[Accusation]) -> Acceptance:
        """Record an accusation, and examine it in the background if it is new."""
        heard = self.hear(said.sender, said.body)
        if heard is AccusationOutcome.NEW:
            self._guard.start(self._look_into_later, said.sender, said.body)
        return Acceptance.of_news(heard is not AccusationOutcome.UNWANTED)

    async def _look_into_later(self, accuser: PeerId, accusation: Accusation) -> None:
        with self._guard.watch(accuser, "accusation"):
            await self.look_into(accusation)

    def hear(self, accuser: PeerId, accusation: Accusation) -> AccusationOutcome:
        """Record an accusation.  `UNWANTED` means that it is ignored; `NEW` means that the caller must examine it."""
        if accusation.accused in (self._session.me, accuser) or accusation.accused in self or accuser in self:
            return AccusationOutcome.UNWANTED
        if accusation.evidence in self._postponed:
            return AccusationOutcome.UNWANTED
        return self._accusations.hear(accuser, accusation, is_member=self._history.has_member(accuser))

    async def look_into(self, accusation: Accusation) -> ProvenLie | None:
        """Fetch the proof from its accusers, one after another, and judge it.  accusation: a new one (see `hear`).

        Return None if no accuser delivers a proof, or if the liar was ejected before.  Raises nothing, whatever a peer
        sends.
        """
        with self._accusations.open(accusation) as case:
            while accusation.accused not in self:
                raw: bytes | None = None
                with case.turn() as turn:
                    if turn is None:
                        return None
                    raw = await self._fetch_from(case, *turn)
                if raw is not None:
                    return await self._judge_case(case, turn[0], raw)
        return None

    async def _fetch_from(self, case: Case, accuser: PeerId, is_member: bool) -> bytes | None:
        """Return the proof with the announced hash; if that fails, penalise the accuser and return None."""
        size = case.accusation.size
        try:
            async with self._accusations.room(size, is_member=is_member):
                with trio.move_on_after(deadline_s(size)):
                    return await self._fetch(accuser, case.accusation)
                raise Unreachable("too slow")
        except NetworkError as error:
            self._accusations.failed(case, accuser)
            self._session.emit(Notice("debug", f"no proof from {accuser}: {error}"))
        except Malformed as error:
            self._accusations.lied(case, accuser)
            self._session.emit(Dropped(accuser, "accusation", str(error)))
        return None

    async def _judge_case(self, case: Case, accuser: PeerId, raw: bytes) -> ProvenLie | None:
        """Judge a proof; if it proves nothing, note that all its accusers have lied."""
        accused = case.accusation.accused
        try:
            verdict = await self._judge(raw)
            if verdict.peer != accused:
                raise Malformed("the proof is about somebody else")
        except (Malformed, UnknownTip) as error:
            if isinstance(error, UnknownTip) and error.signer == accused:
                self._postpone(raw, error)
                return None
            for liar in [*case.members, *case.strangers]:
                self._accusations.lied(case, liar)
            self._session.emit(Dropped(accuser, "accusation", str(error)))
            return None
        return await self._eject(raw, verdict)

    async def _fetch(self, accuser: PeerId, accusation: Accusation) -> bytes:
        name, raw = Hash(accusation.evidence), bytearray()
        while len(raw) < accusation.size:
            length = min(SLICE_BYTES, accusation.size - len(raw))
            question = EvidenceRequest(evidence=name, offset=len(raw), length=length)
            piece = await self._session.network.request(accuser, "evidence", question.encode(), timeout_s=FETCH_S)
            if len(piece) != length:
                raise Malformed("a proof of another size than announced")
            raw += piece
        if evidence_hash(bytes(raw)) != name:
            raise Malformed("a proof with another hash than announced")
        return bytes(raw)

    @answers("evidence", EvidenceRequest)
    async def answer(self, peer: PeerId, question: EvidenceRequest) -> bytes:
        """Return a slice of a proof; raise `Refused` if we do not hold the proof."""
        read = self._store.evidence.read
        found: bytes | None = await self._offload(read, Hash(question.evidence), question.offset, question.length)
        if found is None:
            raise Refused("that proof is not here")
        return found

    async def run(self) -> None:
        """Publish our accusations repeatedly, because newcomers have not heard them, until cancelled."""
        await self._announcements.run(self._session.network.publish)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    async def _judge(self, raw: bytes) -> ProvenLie:
        """Judge a proof; raise `Malformed` if it proves nothing, and `UnknownTip` if it cannot be judged yet."""
        async with self._judging:
            evidence = await self._offload(decode_evidence, raw)
            needed = await self._offload(tip_needed, self._law, evidence)
            base = self._history.base_at(*needed[1]) if needed is not None else None
            verdict: ProvenLie = await self._offload(judge, self._law, evidence, base)
            return verdict

    def _postpone(self, raw: bytes, error: UnknownTip) -> None:
        """Keep evidence until we know its tip."""
        is_known = self._history.has_member(error.signer) or error.signer in self._history.roster.electorate.electors
        if self._postponed.add(evidence_hash(raw), raw, error.tip, is_known=is_known):
            self._session.emit(Notice("debug", f"evidence about a tip that we do not know yet: {error}"))

    async def _eject(self, raw: bytes, verdict: ProvenLie) -> ProvenLie | None:
        """Persist the proof and eject the liar.  Return None if it was ejected before, or if there is no place for it."""
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
        self._on_verdict(verdict)
        return verdict

    async def _make_room(self, liar: PeerId) -> bool:
        """Return True if there is a place for `liar`; drop a stranger's verdict if needed."""
        if len(self._verdicts) < MAX_EJECTED:
            return True
        strangers = [peer for peer in self._verdicts if not self._history.has_member(peer)]
        if strangers:
            _, name = self._verdicts.pop(strangers[0])
            self._announcements.remove(strangers[0])
            await self._offload(self._store.evidence.remove, name)
        return bool(strangers) or self._history.has_member(liar)

    def _take(self, raw: bytes, verdict: ProvenLie) -> None:
        name, peer = evidence_hash(raw), verdict.peer
        self._verdicts[peer] = verdict, name
        envelope = self._session.seal(Accusation(accused=peer, evidence=name, size=len(raw)))
        self._announcements.add(peer, envelope, is_member=self._history.has_member(peer))
        self._session.emit(PeerEjected(peer, verdict.reason, name.hex()))
        self._membership.bar(peer)
        self._session.network.forget(peer)
