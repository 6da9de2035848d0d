"""Audits of the last round's receipts (`protocol.audit.receipts`): serving ours, fetching others', and computing rows again.

Audits run while our trainer has nothing to do: after our READY, until the round is over.  They concern the round before,
whose result is in our state, so the weights on the way to it follow from the state and the result, which is on disk.  The
state waits for an audit that runs when the round is over: otherwise a peer that becomes ready last would never audit.
A trainer that trains ahead, or that has several processes, does not audit; it still keeps receipts.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import trio

from kernels.aggregate import Rule, weights_of
from protocol.audit.receipts import (
    FIRST,
    LEAST_ROWS,
    MAX_ACCUSERS,
    SECOND,
    AuditBook,
    DrawnRows,
    ReceiptVerdict,
    RowDraw,
    drawn_rows,
    mean_of,
    verdict,
)
from protocol.bounds import BoundedDict
from protocol.chain.base import Base
from protocol.chain.leases import rows_among, stretches_in
from protocol.chain.records import record_hash
from protocol.chain.replica import Replica
from protocol.chain.results import ResultName
from protocol.events.events import ContributionAudited, MemberSetAside, Notice
from protocol.events.status import SwarmPeer
from protocol.formats.training import RECEIPT_BYTES
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.trainer_link import AuditedRows, NotMeasured, ReceiptAudit, TrainerDied, TrainerLink
from protocol.transport.handlers import Guard, Statement, answers, hears_news
from protocol.transport.interface import NetworkError, Refused, Session
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Member, Record
from protocol.wire.presence import Heartbeat
from protocol.wire.questions import ReceiptsRequest

ROUNDS_SERVED = 3
"""Newest rounds of ours whose receipts others can fetch."""
FETCH_S, LATE_S, SLOWEST_BYTES_PER_S = 30.0, 2.0, 32 << 10
"""Time for a member's receipts, besides that for their size at the slowest rate, until they count as withheld, and until
they count as late if they arrive after the round."""
PIECE_BYTES = 1 << 16
"""Bytes of receipts in one answer: a slow line is not held for long."""
PATIENCE, MOST_S = 2.0, 20.0
"""Times that the rows of an audit may take what they took in training, once the round is over, and most seconds of that."""
MOST_FETCHES = 4
"""Members whose receipts are fetched at a time."""


def receipts_hash(receipts: bytes | memoryview) -> Hash:
    """Return the name of the receipts of a contribution, to which its READY commits."""
    return hash_bytes("receipts", receipts)


@dataclass(frozen=True)
class _LastRound:
    """The last committed round.  base: that it stands on.  receipts: ours.  me: our entry in its record."""

    base: Base
    commit: Commit
    receipts: bytes
    me: Member

    @property
    def record(self) -> Record:
        return self.commit.record

    def mean_steps(self, rule: Rule) -> float:
        """Return the inner steps of the members, weighed as in the result."""
        members = self.record.members
        weights = weights_of(rule, [each.tokens for each in members])
        return sum(each.steps * weight for each, weight in zip(members, weights, strict=True)) / sum(weights)


class ReceiptAudits:
    """This peer's audits of the members of one run.  trainer: None if this peer does not train."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        membership: Membership,
        activity: Activity,
        offload: Offload,
        trainer: TrainerLink | None,
    ) -> None:
        self._session, self._guard, self._replica, self._membership = session, guard, replica, membership
        self._activity, self._offload, self._trainer = activity, offload, trainer
        self._book = AuditBook()
        self._own: dict[Hash, bytes] = {}
        """Our receipts of the last rounds, by their names."""
        self._last: _LastRound | None = None
        self._chosen: list[Member] = []
        """The members to audit in the running round."""
        self._fetching: dict[PeerId, Member] = {}
        self._fetched: dict[PeerId, bytes] = {}
        """Receipts of the chosen members that have arrived."""
        self._fetch_ended = trio.Event()
        self._is_closing = False
        self._idle = trio.Event()
        """Set while no audit is computed."""
        self._idle.set()
        self._cut_off: set[PeerId] = set()
        """Members whose connection broke before they sent their receipts, until the next record."""
        self._random = Random()
        self._accusers = BoundedDict[PeerId, None](MAX_ACCUSERS)
        """Electors that have set this peer aside, of each of which the user is told once."""

    # -- what the rounds need -----------------------------------------------------------------------------------------

    def aside(self, round: int) -> frozenset[PeerId]:
        """Return the members that are set aside in a round."""
        return self._book.aside(round)

    def keep(self, receipts: memoryview) -> Hash | None:
        """Keep the receipts of a contribution for auditors; return their name, None if there are none."""
        if not receipts:
            return None
        kept = bytes(receipts)
        name = receipts_hash(kept)
        self._own[name] = kept
        while len(self._own) > ROUNDS_SERVED:
            del self._own[next(iter(self._own))]
        return name

    def note(self, base: Base, commit: Commit) -> None:
        """Note a committed round, which is audited during the next one if we were a member."""
        for peer in self._cut_off & {PeerId(each.peer) for each in commit.record.members}:
            self._note_withheld(peer, base.round + 1, late=True)  # it was there, and could have answered
        self._cut_off.clear()
        me = next((each for each in commit.record.members if each.peer == self._session.me), None)
        receipts = self._own.get(Hash(me.receipts)) if me is not None and me.receipts is not None else None
        self._last = _LastRound(base, commit, receipts, me) if me is not None and receipts is not None else None
        if receipts is not None:
            self._book.note_trained(len(receipts) // RECEIPT_BYTES)

    def shown(self, peer: SwarmPeer) -> SwarmPeer:
        """Return another peer, as the status shows it, with what our audits found."""
        known = self._book.known.get(PeerId(peer.peer))
        if known is None:
            return peer
        audited = replace(peer, audits=known.audits, audited_tokens=known.tokens)
        if not self._book.is_aside(PeerId(peer.peer), self._replica.history.length):
            return audited
        return replace(audited, set_aside=known.reason, aside_until=known.until)

    def lift(self, peer: PeerId) -> bool:
        """Let a member take part again from the next round on; return False if it is not set aside here."""
        return self._book.lift(peer)

    # -- others -------------------------------------------------------------------------------------------------------

    @answers("receipts", ReceiptsRequest)
    async def answer(self, peer: PeerId, question: ReceiptsRequest) -> bytes:
        """Return a slice of our receipts; raise `Refused` if they are not here."""
        receipts = self._own.get(Hash(question.receipts))
        if receipts is None:
            raise Refused("those receipts are not here")
        return receipts[question.offset : question.offset + question.length]

    @hears_news(Heartbeat)
    def hear_heartbeat(self, said: Statement[Heartbeat]) -> None:
        """Note the members that an elector has set aside; tell the user if this peer is one of them."""
        aside, me = said.body.aside, self._session.me
        if said.sender not in self._replica.base.electors:
            return  # keys are free, and so are their words
        if me in aside and said.sender not in self._accusers:
            self._accusers[said.sender] = None
            name = self._membership.name(said.sender)
            text = (
                f"{name} has set this peer aside, because the receipts of the rows that it trained on were not right; if "
                "you changed nothing, check that this computer's memory is sound, and that its software is unchanged"
            )
            self._session.emit(Notice("warning", text))
        self._book.accuse(said.sender, (PeerId(peer) for peer in aside if peer != me))

    # -- audits -------------------------------------------------------------------------------------------------------

    def begin(self, base: Base) -> None:
        """Choose the members of the round before the one on `base` to audit, and begin to fetch their receipts.

        They arrive while our trainer works.  A fetch may outlast the round, and is then only noted.
        """
        last, trainer = self._last, self._trainer
        self._activity.tell_aside(self._book.told_aside(base.round))
        self._chosen, self._fetched, self._is_closing = [], {}, False
        if last is None or trainer is None or not trainer.audits or record_hash(last.record) != base.tip:
            return
        others = (each for each in last.record.members if each.peer != self._session.me)
        members = {PeerId(each.peer): each for each in others if self._has_rows(last.base, each)}
        seed = self._session.identity.sign(b"manyhands receipts 1" + base.tip)
        self._random = Random(hash_bytes("receipts draw", seed))
        for peer in self._book.choose(self._random, members.keys(), base.round):
            if peer not in self._fetching and len(self._fetching) < MOST_FETCHES:
                self._chosen.append(members[peer])
                if self._guard.start(self._fetch_for, peer, members[peer], base.round):
                    self._fetching[peer] = members[peer]

    async def _fetch_for(self, peer: PeerId, member: Member, round: int) -> None:
        """Fetch a member's receipts for the audits of a round, and note it if they are withheld."""
        began, size = trio.current_time(), self._size_of(member)
        try:
            with self._guard.watch(peer, "receipts"):
                claimed = await self._fetch(peer, member, size)
                if claimed is not None and member in self._chosen and not self._is_closing:
                    self._fetched[peer] = claimed
                elif claimed is not None:
                    if trio.current_time() - began > LATE_S + size / SLOWEST_BYTES_PER_S:
                        self._note_withheld(peer, round, late=True)
                elif peer in self._session.network.connected():
                    self._note_withheld(peer, round)
                else:
                    self._cut_off.add(peer)
        finally:
            del self._fetching[peer]
            self._fetch_ended.set()
            self._fetch_ended = trio.Event()

    def _note_withheld(self, peer: PeerId, round: int, *, late: bool = False) -> None:
        if self._book.note_withheld(peer, round, late=late):
            self._tell_aside(peer, round)

    async def run(self) -> None:
        """Audit the chosen members, while our trainer is idle; the caller cancels this when the round is over."""
        last, trainer, left = self._last, self._trainer, {PeerId(member.peer): member for member in self._chosen}
        while left and last is not None and trainer is not None and not self._is_closing:
            here = next((peer for peer in left if peer in self._fetched), None)
            if here is not None:
                self._idle = trio.Event()
                try:
                    await self._audit(trainer, last, left.pop(here), self._fetched.pop(here))
                except (TrainerDied, NotMeasured) as problem:
                    self._session.emit(Notice("debug", f"an audit of receipts ended early: {problem}"[:200]))
                    return
                finally:
                    self._idle.set()
            elif not left.keys() & self._fetching.keys():
                return
            else:
                await self._fetch_ended.wait()

    async def close(self, trained_s: float) -> None:
        """Begin no more audits of this round, and wait for the one that runs, at most `PATIENCE` times as long as it should.

        trained_s: the seconds in which we trained on the rows of our newest receipts.
        """
        self._is_closing = True
        if self._idle.is_set():
            return
        rows = max((len(each) // RECEIPT_BYTES for each in [*self._own.values()][-1:]), default=0)
        with trio.move_on_after(min(MOST_S, trained_s * PATIENCE * FIRST.cost / max(FIRST.cost, rows))):
            await self._idle.wait()

    def _has_rows(self, base: Base, member: Member) -> bool:
        """Return True if a member had rows for an inner step, and claims enough for a verdict.

        Members without rows train on nothing, and claim one token.
        """
        manifest = self._replica.manifest
        step_rows = manifest.data.sequences_per_step
        return member.steps * step_rows >= LEAST_ROWS and base.count_leased(manifest, PeerId(member.peer)) >= step_rows

    async def _audit(self, trainer: TrainerLink, last: _LastRound, member: Member, claimed: bytes) -> None:
        peer, round = PeerId(member.peer), last.base.round + 1
        draw = self._book.next_draw(peer)
        self._book.spend(draw)
        rows, level = await self._look(trainer, last, member, claimed, draw)
        if draw is FIRST and verdict(rows, level) is ReceiptVerdict.SUSPECT:
            self._book.note_suspect(peer)
            if self._is_closing:
                return  # the second draw has time in a later round
            self._book.spend(SECOND)
            rows, level = await self._look(trainer, last, member, claimed, SECOND)
        result, alike = verdict(rows, level), mean_of(rows)
        self._session.emit(ContributionAudited(last.record.round, peer, result.value, _rounded(alike), _rounded(level)))
        if result is ReceiptVerdict.NONE:
            self._book.note_unclear(peer)
        else:
            self._book.note_audited(peer, member.tokens)
        if result is ReceiptVerdict.SUSPECT:
            reason = f"its receipts of round {last.record.round} are alike by {alike:.2f}, and ours by {level:.2f}"
            if self._book.set_aside(peer, round, reason):
                self._tell_aside(peer, round)
        elif result is ReceiptVerdict.SOUND:
            self._book.note_sound(peer)

    def _tell_aside(self, peer: PeerId, round: int) -> None:
        known = self._book.of(peer)
        self._session.emit(MemberSetAside(peer, known.reason, known.until))
        self._activity.tell_aside(self._book.told_aside(round))

    async def _look(
        self, trainer: TrainerLink, last: _LastRound, member: Member, claimed: bytes, draw: RowDraw
    ) -> tuple[list[float], float]:
        """Return the cosines of a member's rows, and the level."""
        manifest, record = self._replica.manifest, last.record
        width = manifest.data.sequences_per_step
        mean_steps = last.mean_steps(manifest.aggregation)
        theirs, ours = drawn_rows(self._random, draw, member.steps, last.me.steps, width)
        rows, receipts, whose = dict[int, list[int]](), dict[int, bytes](), dict[int, list[bool]]()
        for claims, who, parts in ((claimed, member, theirs), (last.receipts, last.me, ours)):
            for part in parts:
                rows.setdefault(part.step, []).extend(self._rows(last.base, who, part))
                told = b"".join(_receipt(claims, part.step * width + row) for row in part.rows)
                receipts[part.step] = receipts.get(part.step, b"") + told
                whose.setdefault(part.step, []).extend([who is member] * len(part.rows))
        points = tuple(AuditedRows(place / mean_steps, tuple(rows[place]), receipts[place]) for place in sorted(rows))
        name = ResultName.of(record)
        view = await self._offload(self._replica.store.results.view, name, self._replica.layouts.result.payload_bytes)
        if view is None:
            raise NotMeasured("the result of the last round is not on disk")
        step = await self._offload(manifest.outer_step, record.round, [each.tokens for each in record.members], view)
        path = self._replica.store.results.path(name)
        task = ReceiptAudit(path, step.rate, step.momentum, points)
        found = await trainer.audit(task, self._replica.state.view)
        of_member = [is_theirs for place in sorted(rows) for is_theirs in whose[place]]
        alike: dict[bool, list[float]] = {True: [], False: []}
        for cosine, is_theirs in zip(found, of_member, strict=True):
            alike[is_theirs].append(cosine)
        return alike[True], mean_of(alike[False])

    def _rows(self, base: Base, member: Member, part: DrawnRows) -> list[int]:
        """Return the numbers of some rows of a member's inner step."""
        manifest = self._replica.manifest
        width = manifest.data.sequences_per_step
        read = base.rows_read(manifest, PeerId(member.peer), member.steps, stretches_in(member.stretches))
        ranges = rows_among(read, ((part.step * width, (part.step + 1) * width),))
        step = [row for start, end in ranges for row in range(start, end)]
        return [step[row] for row in part.rows]

    def _size_of(self, member: Member) -> int:
        """Return the bytes of a member's receipts."""
        return RECEIPT_BYTES * member.steps * self._replica.manifest.data.sequences_per_step

    async def _fetch(self, peer: PeerId, member: Member, size: int) -> bytes | None:
        """Return the receipts to which a member has committed; None if it does not send them in time."""
        if member.receipts is None:
            return None
        found = bytearray()
        with trio.move_on_after(FETCH_S + size / SLOWEST_BYTES_PER_S), suppress(NetworkError):
            while len(found) < size:
                length = min(PIECE_BYTES, size - len(found))
                question = ReceiptsRequest(receipts=member.receipts, offset=len(found), length=length).encode()
                piece = await self._session.network.request(peer, "receipts", question, timeout_s=FETCH_S)
                if len(piece) != length:
                    return None
                found += piece
        return bytes(found) if receipts_hash(bytes(found)) == member.receipts else None


def _receipt(receipts: bytes, row: int) -> bytes:
    return receipts[row * RECEIPT_BYTES : (row + 1) * RECEIPT_BYTES]


def _rounded(cosine: float) -> float | None:
    return None if math.isnan(cosine) else round(cosine, 3)
