"""Audit of other members' averages, before we vote for the record.

We compare a record's averages with the results of our own exchange.  Each chunk that we do not hold must be signed by a
member of the plan.  A chunk averaged out of turn, while its owner is alive, is checked by averaging it again.  The same
holds for the chunks of a plan that is unknown to us and has few signers.  We also check some other chunks: we fetch the
members' parts, verify them against the roots in the plan, average them, and compare the results bit by bit.  These chunks
are:

* chunks drawn by a signature that only we can make, so that no other peer can predict the choice;
* chunks whose average is much larger than our own part, so that a destructive average is examined by every voter.

A wrong average is proof against its signer.  Two different averages of one chunk by the same signer are proof as well: one
that our exchange received, and one in the record (`contradictions`).  A chunk cannot be checked if a member that contributed
to it is gone or silent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import trio

from kernels.layout import Layout
from protocol.agreement.ballot import average_statement, plan_of
from protocol.allreduce.assignment import is_committed, plan_hash, takeover_order
from protocol.allreduce.runner import ExchangeRunner
from protocol.audit.evidence import AveragedPart, TwoStatements, WrongAverage, right_hash
from protocol.chain.electorate import quorum_size
from protocol.chain.replica import Replica
from protocol.disk import let_go
from protocol.events.events import AuditDone
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.transport.interface import NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope, decode_body, is_authentic
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Provenance, Record, members_in
from protocol.wire.questions import SLICE_BYTES, PartReply, PartRequest

SHARE = 50
"""Divisor of an audit: one chunk out of `SHARE` times the number of members is drawn, but at least one in all.

The cost is 1 to 3 % of an exchange's bytes.
"""
MAX_SUSPECTS = 3
SIGNATURES_AT_ONCE = 256
"""Signatures checked per call of a worker thread, at 0.1 ms each; an audit can be cancelled between two calls."""
SUSPICIOUS = 4.0
"""Ratio of the size of an average to the size of our own part above which the average is suspect."""
MAX_OUT_OF_TURN = 8
MAX_MEMBERS_AUDITED = 64
"""Limit on the parts of one chunk that are held at a time; a chunk with more members is not checked."""
PART_TIMEOUT_S = 5.0
MAX_REPLY_BYTES = SLICE_BYTES + 4096


def audited_chunks(chunks: int, members: int) -> int:
    """Return the number of chunks that are drawn for an audit."""
    return max(1, chunks // (SHARE * members))


class OwnContribution(Protocol):
    """Our own contribution of this round."""

    @property
    def data(self) -> memoryview | None:
        """Codec bytes of our contribution; None before it exists."""

    def part(self, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """Return a chunk with its tree proof; None if `root` is not the contribution's root."""
        ...


class Unaccountable(Exception):
    """Refusal to vote for a record, with the reason as its text.  evidence: proof that a member lied, if there is one.

    is_doubt: True if the record may be right, but its members did not show that it is.
    """

    def __init__(self, reason: str, evidence: WrongAverage | None = None, *, is_doubt: bool = False) -> None:
        super().__init__(reason)
        self.evidence, self.is_doubt = evidence, is_doubt


class Auditor:
    """Auditor of one round."""

    def __init__(
        self, session: Session, replica: Replica, offload: Offload, membership: Membership, own: OwnContribution
    ) -> None:
        self._session, self._layouts, self._offload = session, replica.layouts, offload
        self._rule = replica.manifest.aggregation
        self._membership, self._own = membership, own

    async def check(
        self,
        record: Record,
        index: Sequence[ChunkEntry],
        provenance: Provenance,
        proposer: PeerId | None,
        exchange: ExchangeRunner | None,
    ) -> None:
        """Audit a record before we vote for it; raise `Unaccountable` if it fails.

        proposer: the proposer of the record, whose own averages out of turn must be shown to be right; None to accept
        averages that cannot be checked.  exchange: our own exchange of the record's plan.
        """
        case = _Case(record, index, provenance)
        held = exchange.machine.entries if exchange is not None else {}
        strange = [chunk for chunk, entry in enumerate(index) if held.get(chunk) != entry]
        for start in range(0, len(strange), SIGNATURES_AT_ONCE):
            if not await self._offload(self._all_signed, case, strange[start : start + SIGNATURES_AT_ONCE]):
                raise Unaccountable("a record with a chunk that no member signed")
        others = [chunk for chunk in range(len(index)) if case.signer(chunk) != self._session.me]
        lot = case.lot(hash_bytes("audit", self._session.identity.sign(b"manyhands audit 1" + case.name)))
        drawn = sorted(others, key=lot)[: audited_chunks(len(index), len(case.members))]
        signers = len({*provenance.signers})
        if exchange is None and signers < min(quorum_size(len(case.members)), len(index)):
            out_of_turn = strange  # we do not know the plan: its few signers may have made it up
        else:
            out_of_turn = [chunk for chunk in strange if not self._in_turn(case, chunk, exchange)]
        outsized = await self._offload(self._outsized, sorted(held), exchange.result) if exchange is not None else []
        optional = dict.fromkeys([*outsized[:MAX_SUSPECTS], *drawn])
        right = Counter[str]()
        for chunk in dict.fromkeys([*sorted(out_of_turn, key=lot)[:MAX_OUT_OF_TURN], *optional]):
            is_right = await self._audit(case, chunk)
            if not is_right and chunk in out_of_turn and case.signer(chunk) == proposer:
                raise Unaccountable(f"a record whose chunk {chunk} was averaged out of turn, and cannot be checked")
            right[case.signer(chunk)] += is_right
        self._session.emit(AuditDone(record.round, len(optional), right.total(), dict(+right)))

    async def contradictions(
        self, record: Record, index: Sequence[ChunkEntry], provenance: Provenance, exchange: ExchangeRunner | None
    ) -> list[TwoStatements]:
        """Return one proof against each member that signed an average in this record and another one in our exchange.

        exchange: our own exchange of the record's plan.  The record may still be right.
        """
        if exchange is None:
            return []
        case, held = _Case(record, index, provenance), exchange.statements
        twice: dict[PeerId, int] = {}
        for chunk, entry in enumerate(index):
            if chunk in held and held[chunk].sender == case.signer(chunk) and exchange.machine.entries.get(chunk) != entry:
                twice.setdefault(case.signer(chunk), chunk)
        chunks = list(twice.values())
        if not chunks or not await self._offload(self._all_signed, case, chunks):
            return []
        run = self._session.run
        return [TwoStatements(first=held[chunk].raw, second=case.statement(run, chunk).raw) for chunk in chunks]

    async def inspect(
        self, record: Record, index: Sequence[ChunkEntry], provenance: Provenance, chunks: Sequence[int], result: memoryview
    ) -> None:
        """Audit fetched chunks of a record before we vote for it; raise `Unaccountable` if they fail.

        A chunk that is much larger than our own part must be shown to be right, unless we averaged it ourselves.
        """
        case = _Case(record, index, provenance)
        others = [chunk for chunk in chunks if case.signer(chunk) != self._session.me]
        for chunk in (await self._offload(self._outsized, others, result))[:MAX_SUSPECTS]:
            if not await self._audit(case, chunk):
                raise Unaccountable(
                    f"a record whose chunk {chunk} is more than {SUSPICIOUS:g} times our own part, and whose members did "
                    "not show in time that it is right; this can happen if other members trained more",
                    is_doubt=True,
                )

    def _outsized(self, chunks: Iterable[int], result: memoryview | None) -> list[int]:
        """Return the chunks whose average is much larger than our own part, the largest ratio first."""
        own, ratios = self._own.data, {}
        for chunk in chunks if own is not None and result is not None else ():
            assert own is not None and result is not None
            ratios[chunk] = _norm(result, self._layouts.result, chunk) / max(
                _norm(own, self._layouts.contribution, chunk), 1e-30
            )
        return sorted((chunk for chunk in ratios if ratios[chunk] > SUSPICIOUS), key=lambda chunk: -ratios[chunk])

    def _in_turn(self, case: _Case, chunk: int, exchange: ExchangeRunner | None) -> bool:
        """Return True if the signer is the chunk's owner, or if all peers before it in the takeover order are gone."""
        owner = PeerId(case.plan.members[case.plan.owners[chunk]].peer)
        if case.signer(chunk) == owner:
            return True
        for peer in takeover_order(case.name, chunk, case.members, owner):
            if peer == case.signer(chunk):
                return True
            lost = exchange is not None and peer in exchange.machine.lost
            if self._membership.is_live(peer) and not lost:
                return False
        return False

    def _all_signed(self, case: _Case, chunks: Sequence[int]) -> bool:
        return all(is_authentic(case.statement(self._session.run, chunk)) for chunk in chunks)

    # -- checks -------------------------------------------------------------------------------------------------------

    async def _audit(self, case: _Case, chunk: int) -> bool:
        """Return True if a chunk is right, False if it cannot be checked; raise `Unaccountable` if it is wrong."""
        try:
            averaged = members_in(case.index[chunk].mask, len(case.members))
        except Malformed:
            return False
        if case.signer(chunk) == self._session.me or len(averaged) > MAX_MEMBERS_AUDITED:
            return False
        if not all(self._membership.is_live(case.members[member]) for member in averaged):
            return False
        parts = await self._gather(case, chunk, averaged)
        if parts is None:
            return False
        if await self._offload(self._is_right, case, chunk, parts):
            return True
        statement = case.statement(self._session.run, chunk).raw
        proof = WrongAverage(plan=case.plan, statement=statement, parts=parts)
        raise Unaccountable(f"a record with a wrong average of chunk {chunk}", proof)

    def _is_right(self, case: _Case, chunk: int, parts: Sequence[AveragedPart]) -> bool:
        layout = self._layouts.contribution
        if not all(layout.format.is_sane(part.data, layout[chunk].count) for part in parts):
            return False
        tokens = [case.plan.members[part.member].tokens for part in parts]
        right = right_hash(self._rule, self._layouts, chunk, [part.data for part in parts], tokens)
        return right == case.index[chunk].hash

    async def _gather(self, case: _Case, chunk: int, averaged: Sequence[int]) -> list[AveragedPart] | None:
        """Return the parts of these members, in the same order; None if a part cannot be fetched."""
        found: dict[int, AveragedPart] = {}

        async def fetch(member: int) -> None:
            part = await self._fetch(case, chunk, member)
            if part is not None:
                found[member] = part

        async with trio.open_nursery() as nursery:
            for member in averaged:
                nursery.start_soon(fetch, member)
        return [found[member] for member in averaged] if len(found) == len(averaged) else None

    async def _fetch(self, case: _Case, chunk: int, member: int) -> AveragedPart | None:
        peer, span = case.members[member], self._layouts.contribution[chunk]
        if peer == self._session.me:
            own = self._own.part(Hash(case.plan.members[member].root), chunk)
            return None if own is None else AveragedPart(member=member, proof=own[0], data=bytes(own[1]))
        data = bytearray()
        try:
            while len(data) < span.size:
                length = min(SLICE_BYTES, span.size - len(data))
                question = PartRequest(root=case.plan.members[member].root, chunk=chunk, offset=len(data), length=length)
                raw = await self._session.network.request(peer, "part", question.encode(), timeout_s=PART_TIMEOUT_S)
                reply = decode_body(PartReply, raw, max_bytes=MAX_REPLY_BYTES)
                if len(reply.data) != length:
                    return None
                data += reply.data
                proof = list(reply.proof)
        except (NetworkError, Malformed):
            return None
        hash = await self._offload(chunk_hash, data)
        if not is_committed(case.plan.members[member], len(case.index), chunk, hash, proof):
            return None
        return AveragedPart(member=member, proof=proof, data=bytes(data))


class _Case:
    """One record under audit."""

    def __init__(self, record: Record, index: Sequence[ChunkEntry], provenance: Provenance) -> None:
        self.plan, self.index, self.provenance = plan_of(record, provenance), index, provenance
        self.name = plan_hash(self.plan)
        self.members = [PeerId(member.peer) for member in self.plan.members]

    def signer(self, chunk: int) -> PeerId:
        return self.members[self.provenance.signers[chunk]]

    def statement(self, run: Hash, chunk: int) -> Envelope:
        """Return the signed `ChunkResult` of a chunk; the signature is not checked."""
        return average_statement(run, self.name, self.plan.members, chunk, self.index[chunk], self.provenance)

    def lot(self, seed: bytes) -> Callable[[int], bytes]:
        """Return a sort key that puts chunks in an order drawn by `seed`."""
        return lambda chunk: hash_bytes("audit lot", seed + chunk.to_bytes(4, "big"))


def _norm(data: memoryview, layout: Layout, chunk: int) -> float:
    """Return the L2 norm of a chunk's decoded values, and let go of the chunk's memory.

    The sum of squares in a result's header is not used, because its owner may have lied.
    """
    span = layout[chunk]
    square = layout.format.sum_of_squares(data[span.encoded], span.count)
    let_go(data[span.encoded])
    return math.sqrt(square)
