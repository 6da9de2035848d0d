"""Ejection of proven liars: proofs of their lies are persisted, announced, fetched and judged.

Each peer judges for itself.  An accusation is a gossip message with the hash of a proof.  A peer that receives it fetches
the proof from an accuser, judges it (`protocol.audit.evidence`), persists it and announces it in turn.  So every honest peer
ejects the same liars, and no peer is ejected by a majority alone.

Evidence about a tip that we do not know yet is fetched again later: its accusers repeat their accusation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any

import trio

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
from protocol.bounds import Backoffs, BoundedDict
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.transport.handlers import Guard, Statement, answers, hears
from protocol.transport.interface import Acceptance, NetworkError, Refused, Session, Unreachable
from protocol.transport.rate_limit import Allowance, TokenBucket
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation
from protocol.wire.questions import SLICE_BYTES, EvidenceRequest

# ------------------------------------------------------------------------------------------------------------------------
# Accusations of others.  An accusation costs its author nothing, but costs us a download.  So:
#
# * An accuser has at most one pending accusation, and all accusers with the same proof are one case.  The proof is fetched
#   once, from one accuser at a time, members of the chain first.
# * Members and strangers have separate places, and all strangers together have a budget of bytes.
# * A fetch has a deadline.  An accuser that misses the deadline loses its place and is not asked again for a while, with
#   exponential backoff.
# * Further accusations of a peer that accused falsely are ignored.


MEMBER_PLACES, MEMBER_BYTES = 4, 64 << 20
STRANGER_PLACES, STRANGER_BYTES = 2, 16 << 20
"""Limits on the proofs fetched at a time, and on their total bytes; a larger proof from a stranger is not fetched."""
STRANGERS_BYTES_PER_S = 64 << 10
STRANGERS = Allowance(inf, STRANGERS_BYTES_PER_S, STRANGER_BYTES / STRANGERS_BYTES_PER_S)
"""Long-term rate limit on the proofs of all strangers together, after a burst of `STRANGER_BYTES`."""
MAX_PENDING = 64
"""Limit on waiting strangers; further ones announce again later.  Members need no limit, because they are few."""
FETCH_S = 15.0
SLOWEST_BYTES_PER_S = 512 << 10
"""Slowest permitted rate: the fetch of a proof may take `FETCH_S` plus the time for its size at this rate."""
SET_BACK_S = 30.0
MAX_SET_BACK_S = 3600.0
MAX_REMEMBERED = 4096
"""Limit on the accusers remembered as slow, and on the remembered liars; the oldest entry is evicted."""


def deadline_s(size: int) -> float:
    """Return the timeout (s) for fetching a proof of `size` bytes."""
    return FETCH_S + size / SLOWEST_BYTES_PER_S


class AccusationOutcome(Enum):
    """Outcome of hearing an accusation."""

    UNWANTED = "unwanted"
    JOINED = "joined"
    """The accuser joined a case that is already being examined."""
    NEW = "new"
    """The case is new, and must be examined."""


@dataclass
class FetchLane:
    """Limit on concurrent fetches, and on their bytes."""

    places: int
    bytes: int
    _freed: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it during the context."""
        while self.places < 1 or self.bytes < size:
            await self._freed.wait()
        self.places, self.bytes = self.places - 1, self.bytes - size
        try:
            yield
        finally:
            self.places, self.bytes = self.places + 1, self.bytes + size
            self._freed.set()
            self._freed = trio.Event()


@dataclass
class Case:
    """One accusation, and its accusers; True: a member."""

    accusation: Accusation
    accusers: dict[PeerId, bool] = field(default_factory=dict)
    _strangers_turn: trio.CancelScope | None = None

    def add(self, accuser: PeerId, is_member: bool) -> None:
        """Add an accuser; if it is a member, end the turn of a stranger."""
        self.accusers[accuser] = is_member
        if is_member and self._strangers_turn is not None:
            self._strangers_turn.cancel()

    @contextmanager
    def turn(self) -> Iterator[tuple[PeerId, bool] | None]:
        """Yield (next accuser, True if it is a member); yield None if no accuser is left.

        If a member joins the case during a stranger's turn, the context is cancelled.
        """
        first = min(self.accusers.items(), key=lambda item: not item[1], default=None)
        with trio.CancelScope() as scope:
            self._strangers_turn = scope if first is not None and not first[1] else None
            yield first
        self._strangers_turn = None


class Accusations:
    """Register of the pending cases, and of slow or lying accusers."""

    def __init__(self) -> None:
        self._cases: dict[Accusation, Case] = {}
        self._lanes = {True: FetchLane(MEMBER_PLACES, MEMBER_BYTES), False: FetchLane(STRANGER_PLACES, STRANGER_BYTES)}
        self._budget = TokenBucket(STRANGERS.burst_s, STRANGERS.burst_s, -inf)
        self._disbelieved = BoundedDict[PeerId, None](MAX_REMEMBERED)
        self._slow = Backoffs[PeerId](SET_BACK_S, MAX_SET_BACK_S, MAX_REMEMBERED)

    def hear(self, accuser: PeerId, accusation: Accusation, *, is_member: bool) -> AccusationOutcome:
        """Record an accusation; if the outcome is `NEW`, the caller must examine the case."""
        is_pending = any(accuser in case.accusers for case in self._cases.values())
        if is_pending or accuser in self._disbelieved or not self._slow.is_over(accuser, trio.current_time()):
            return AccusationOutcome.UNWANTED
        case = self._cases.get(accusation)
        if not is_member:
            pending = sum(not known for each in self._cases.values() for known in each.accusers.values())
            if accusation.size > STRANGER_BYTES or pending >= MAX_PENDING:
                return AccusationOutcome.UNWANTED
            if case is None and not self._budget.take(STRANGERS, trio.current_time(), 0, accusation.size):
                return AccusationOutcome.UNWANTED
        self._cases.setdefault(accusation, Case(accusation)).add(accuser, is_member)
        return AccusationOutcome.NEW if case is None else AccusationOutcome.JOINED

    @contextmanager
    def open(self, accusation: Accusation) -> Iterator[Case]:
        """Yield the case of an accusation for which `hear` returned `NEW`, and close the case at the end."""
        try:
            yield self._cases[accusation]
        finally:
            del self._cases[accusation]

    def room(self, size: int, *, is_member: bool) -> AbstractAsyncContextManager[None]:
        """Return an asynchronous context that holds a place for a fetch."""
        return self._lanes[is_member].room(size)

    def failed(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser did not deliver: it is ignored for a while, twice as long as the last time."""
        case.accusers.pop(accuser, None)
        self._slow.failed(accuser, trio.current_time())

    def lied(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser delivered something that proves nothing: its accusations are ignored from now on."""
        case.accusers.pop(accuser, None)
        self._disbelieved[accuser] = None


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
    raw: bytes
    is_member: bool
    due: float


class Announcements:
    """Queue of the accusations that we publish."""

    def __init__(self) -> None:
        self._of: dict[PeerId, _Announcement] = {}
        self._changed = trio.Event()

    def add(self, accused: PeerId, raw: bytes, *, is_member: bool) -> None:
        """Add a signed accusation, which is published as soon as possible."""
        self._of[accused] = _Announcement(raw, is_member, trio.current_time())
        self._changed.set()

    def remove(self, accused: PeerId) -> None:
        """Stop announcing the accusation of this peer."""
        self._of.pop(accused, None)

    async def run(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Publish due announcements, until cancelled."""
        while True:
            now = trio.current_time()
            due = [each for each in self._of.values() if each.due <= now]
            if due:
                first = min(due, key=lambda each: (not each.is_member, each.due))
                first.due = now + max(AGAIN_S, SPACING_S * len(self._of))
                await publish(first.raw)
                await trio.sleep(SPACING_S)
            else:
                self._changed = trio.Event()
                with trio.move_on_at(min((each.due for each in self._of.values()), default=inf)):
                    await self._changed.wait()


# ------------------------------------------------------------------------------------------------------------------------


MAX_EJECTED = 256
"""Number of liars remembered; beyond it, liars that were never in the chain are forgotten, and members never."""
KEPT_BYTES = 512 << 20
"""Limit on the bytes of proofs on disk; later proofs are lost at a restart, after which other peers announce them again."""


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
        self._witness = Witness(session.run, replica.history, manifest.rounds.max_members)
        self._law = Law(session.run, manifest.fragments, replica.layouts, manifest.aggregation, manifest.rounds.max_members)
        self._verdicts: dict[PeerId, tuple[ProvenLie, Hash]] = {}
        """Verdict on each liar, and name of its proof, the oldest first."""
        self._accusations, self._announcements = Accusations(), Announcements()
        self._too_early = BoundedDict[Hash, float](MAX_REMEMBERED)
        """Evidence about tips that we do not know yet, with the time from which on we fetch it again."""
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
                self._wait_for_tip(name, error)
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
        except (Malformed, UnknownTip) as error:
            self._session.emit(Notice("warning", f"an apparent proof of a lie proves nothing: {error}"))
            return None
        return await self._eject(raw, verdict)

    # -- accusations --------------------------------------------------------------------------------------------------

    @hears(Accusation)
    def hear_accusation(self, said: Statement[Accusation]) -> Acceptance:
        """Record an accusation, and examine it in the background if it is new."""
        heard = self.hear(said.sender, said.body)
        if heard is AccusationOutcome.NEW:
            self._guard.start(self._watched, said.sender, "accusation", self.look_into, said.body)
        return Acceptance.of_news(heard is not AccusationOutcome.UNWANTED)

    def hear(self, accuser: PeerId, accusation: Accusation) -> AccusationOutcome:
        """Record an accusation.  `UNWANTED` means that it is ignored; `NEW` means that the caller must examine it."""
        if accusation.accused in (self._session.me, accuser) or accusation.accused in self or accuser in self:
            return AccusationOutcome.UNWANTED
        if trio.current_time() < self._too_early.get(Hash(accusation.evidence), -inf):
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
        name, size, raw = Hash(case.accusation.evidence), case.accusation.size, bytearray()
        try:
            async with self._accusations.room(size, is_member=is_member):
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
                raise Malformed("the proof is about another peer")
        except (Malformed, UnknownTip) as error:
            if isinstance(error, UnknownTip) and error.signer == accused:
                self._wait_for_tip(Hash(case.accusation.evidence), error)
                return None
            for liar in [*case.accusers]:
                self._accusations.lied(case, liar)
            self._session.emit(Dropped(accuser, "accusation", str(error)))
            return None
        return await self._eject(raw, verdict)

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

    def _wait_for_tip(self, name: Hash, error: UnknownTip) -> None:
        self._too_early.renew(name, trio.current_time() + AGAIN_S)
        self._session.emit(Notice("debug", f"evidence about a tip that we do not know yet: {error}"))

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
        accusation = self._session.seal(Accusation(accused=peer, evidence=name, size=len(raw)))
        self._announcements.add(peer, accusation.raw, is_member=self._history.has_member(peer))
        self._session.emit(PeerEjected(peer, verdict.reason, name.hex()))
        self._membership.bar(peer)
        self._session.network.forget(peer)
