"""Proof that a peer lied: self-contained, and the same for every judge.

There are two lies:

* Two statements of one peer in one slot.
* A wrong average: the signed `ChunkResult` of the owner, the plan named in it, and the parts that the owner claims to have
  averaged.  Each part has a tree proof against its member's root in the plan.  The average of these parts differs from the
  signed one.

Both are proven by signatures and hashes alone, so every peer of the run can judge them, whatever chain it has.  Receivers
refuse other statements that no honest peer signs, such as a proposal that its view changes do not justify.  Such a statement
costs the round as much as silence, which cannot be proven.

`judge` is pure.  `Witness` compares the electors' statements on the newest tips, within a bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from kernels.aggregate import Rule, aggregate
from kernels.layout import Layouts
from protocol.agreement.ballot import plan_of
from protocol.allreduce.assignment import is_committed, plan_hash
from protocol.bounds import BoundedDict
from protocol.chain.base import fragment_of
from protocol.chain.history import History
from protocol.chain.records import record_hash
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import (
    MAX_ENVELOPE_BYTES,
    MAX_MEMBERS,
    Body,
    Envelope,
    HashField,
    decode_body,
    is_authentic,
    rebuild,
)
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkResult,
    Commit,
    Lock,
    Plan,
    PrevoteCertificate,
    Proposal,
    Ready,
    RecordProposal,
    Step,
    ViewChange,
    Vote,
    members_in,
    unpack,
)
from protocol.wire.rollouts import RolloutBatch

# ------------------------------------------------------------------------------------------------------------------------
# Slots.
#
# For each slot an honest peer signs one statement: one READY for each serial, one average for each chunk of a plan, one
# batch of rollouts for each number; and in each attempt on a tip one vote in each step, one proposal and one record
# proposal.  Its votes are on disk before they are sent, and after a restart it leads no attempt in which it took part
# before.  A record proposal that continues no lock is of the plan that its author proposed in this attempt.


Slot = tuple[object, ...]
Tip = tuple[int, bytes]
"""Number of a round, and the tip on which it is based."""


def tip_of(body: Body) -> Tip | None:
    """Return the tip to which a statement of the agreement refers; None for other statements."""
    match body:
        case ViewChange() | Vote() | PrevoteCertificate():
            return body.round, body.base
        case Proposal():
            return body.plan.round, body.plan.base
        case RecordProposal() | Lock() | Commit():
            return body.record.round, body.record.previous
    return None


def slots(body: Body) -> dict[Slot, object]:
    """Return the slots that a statement fills, each with its content; empty for statements that contradict no other."""
    match body:
        case Ready():
            return {("ready", body.incarnation, body.serial): body}
        case ChunkResult():
            return {("chunk", body.plan, body.chunk): body}
        case RolloutBatch():
            return {("rollouts", body.tip, body.incarnation, body.number): body}
        case Vote():
            return {("vote", tip_of(body), body.attempt, body.step): body}
        case Proposal():
            attempt = tip_of(body), body.attempt
            return {("proposal", *attempt): body, ("plan", *attempt): plan_hash(body.plan)}
        case RecordProposal():
            attempt = tip_of(body), body.attempt
            filled: dict[Slot, object] = {("record proposal", *attempt): body}
            if body.proof is None:
                filled["plan", *attempt] = plan_hash(plan_of(body.record, body.provenance))
            return filled
    return {}


def contradict(one: Body, other: Body) -> bool:
    """Return True if no honest peer signs both statements."""
    first, second = slots(one), slots(other)
    return any(first[slot] != second[slot] for slot in first.keys() & second.keys())


# ------------------------------------------------------------------------------------------------------------------------
# Proofs, and their judge.


MAX_EVIDENCE_BYTES = 64 << 20
"""Size of the largest evidence that is sent (bytes); with chunks of 1 MiB, enough for 60 members."""


class AveragedPart(Body):
    """Part of the chunk from one member.  member: the index of the member in the plan."""

    member: Annotated[int, Field(ge=0, lt=MAX_MEMBERS)]
    proof: Annotated[list[HashField], Field(max_length=16)]
    data: bytes


class WrongAverage(Body):
    """A `statement` (a `ChunkResult` envelope) that the owner signed about `plan`, with all the parts in its mask."""

    KIND: ClassVar[str] = "wrong average"
    plan: Plan
    statement: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    parts: Annotated[list[AveragedPart], Field(min_length=1, max_length=MAX_MEMBERS)]


class TwoStatements(Body):
    """Two envelopes of one peer, with different statements in one slot."""

    KIND: ClassVar[str] = "two statements"
    first: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    second: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]


Evidence = WrongAverage | TwoStatements
KINDS: dict[str, type[Evidence]] = {cls.KIND: cls for cls in (WrongAverage, TwoStatements)}


@dataclass(frozen=True)
class ProvenLie:
    """A liar, and its lie as a phrase.

    false_chunks: (chunk, hash) of averages for which no peer must vote: either an average that is proven wrong, or both of
    two averages that contradict each other.  So all peers refuse the same records, whichever average they hold.
    """

    peer: PeerId
    reason: str
    false_chunks: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True)
class Law:
    """Rules fixed by the manifest.  layouts: the chunks of contributions and results, the same in all fragments."""

    run: Hash
    fragments: int
    layouts: Layouts
    rule: Rule


def encode_evidence(evidence: Evidence) -> bytes:
    """Return the bytes of a proof, for disk and network."""
    return canonical.encode({"kind": evidence.KIND, "case": evidence.encode()})


def evidence_hash(raw: bytes) -> Hash:
    """Return the hash of a proof, by which it is announced and kept."""
    return hash_bytes("evidence", raw)


def decode_evidence(raw: bytes) -> Evidence:
    """Decode the bytes of a proof; raise `Malformed`."""
    fields = canonical.decode(raw, max_bytes=MAX_EVIDENCE_BYTES, max_values=4)
    if not isinstance(fields, dict) or set(fields) != {"kind", "case"} or not isinstance(fields["case"], bytes):
        raise Malformed("not evidence")
    kind = KINDS.get(fields["kind"]) if isinstance(fields["kind"], str) else None
    if kind is None:
        raise Malformed("evidence of an unknown kind")
    return decode_body(kind, fields["case"], max_bytes=MAX_EVIDENCE_BYTES)


def judge(law: Law, evidence: Evidence) -> ProvenLie:
    """Return the verdict that the evidence proves; raise `Malformed` if it proves nothing."""
    return _wrong_average(law, evidence) if isinstance(evidence, WrongAverage) else _two_statements(law, evidence)


def _wrong_average(law: Law, case: WrongAverage) -> ProvenLie:
    signer, body, _ = unpack(case.statement, law.run)
    plan, chunk, layout = case.plan, -1, law.layouts.contribution
    if isinstance(body, ChunkResult):
        chunk = body.chunk
    if not isinstance(body, ChunkResult) or body.plan != plan_hash(plan) or not 0 <= chunk < len(layout):
        raise Malformed("a statement about another plan")
    if plan.fragment != fragment_of(plan.round, law.fragments):
        raise Malformed("a statement about a plan whose fragment is not the round's")
    if len(plan.owners) != len(layout) or signer not in [member.peer for member in plan.members]:
        raise Malformed("a statement of a peer that had nothing to average")
    averaged = members_in(body.entry.mask, len(plan.members))
    if [part.member for part in case.parts] != averaged:
        raise Malformed("parts that do not match the members in the mask")
    span = layout[chunk]
    for part in case.parts:
        member, hash = plan.members[part.member], chunk_hash(part.data)
        if len(part.data) != span.size or not is_committed(member, len(layout), chunk, hash, part.proof):
            raise Malformed("a part to which its member did not commit")
    verdict = ProvenLie(
        signer, f"signed a wrong average of chunk {chunk} in round {plan.round}", ((chunk, body.entry.hash),)
    )
    if not all(layout.format.is_sane(part.data, span.count) for part in case.parts):
        return verdict  # the signer should have refused that part
    tokens = [plan.members[index].tokens for index in averaged]
    if right_hash(law.rule, law.layouts, chunk, [part.data for part in case.parts], tokens) == body.entry.hash:
        raise Malformed("the average is right")
    return verdict


def right_hash(rule: Rule, layouts: Layouts, chunk: int, parts: Sequence[bytes | memoryview], tokens: Sequence[int]) -> Hash:
    """Return the hash of the average of a chunk that `rule` makes of these parts (sane, in canonical order)."""
    span = layouts.result[chunk]
    mean = bytearray(span.size)
    aggregate(rule, layouts.codec, parts, tokens, span.count, mean)
    return chunk_hash(mean)


def _two_statements(law: Law, case: TwoStatements) -> ProvenLie:
    sender, first, _ = unpack(case.first, law.run)
    other, second, _ = unpack(case.second, law.run)
    if sender != other or not contradict(first, second):
        raise Malformed("two statements that do not contradict each other")
    if isinstance(first, ChunkResult) and isinstance(second, ChunkResult):
        averages = ((first.chunk, first.entry.hash), (second.chunk, second.entry.hash))
        return ProvenLie(sender, f"signed two averages of chunk {first.chunk}", averages)
    if first.KIND == second.KIND:
        return ProvenLie(sender, f"signed two {first.KIND} statements that contradict each other")
    return ProvenLie(sender, f"signed a {first.KIND} and a {second.KIND} that contradict each other")


# ------------------------------------------------------------------------------------------------------------------------
# The witness sees all statements that reach this peer about the running round and the round before it: votes (which a
# proposer collects), proposals and record proposals, and the certificates in prevote certificates, commits, locks and
# record proposals, which hold votes.  Safety does not rest on the witness: it does not catch a liar that sends different
# statements to two peers that never compare them.


TIPS = 2
"""Number of the newest tips watched: the running round's tip, and the tip before it, whose last votes may still arrive."""
KEPT_STATEMENTS = 48
KEPT_BYTES = 2 << 20
"""Limit on the bytes of one elector's statements; the oldest are evicted.  The largest record proposal takes half of it."""
KEPT_CERTIFICATES = 8
"""Number of certificates kept for each elector that sent them."""


class Claim(NamedTuple):
    """An unchecked certificate, which claims that its signers cast `vote`."""

    vote: Vote
    certificate: Certificate


def certified(body: Body) -> Claim | None:
    """Return the claim of the certificate in `body`; None if there is no certificate."""
    match body:
        case PrevoteCertificate():
            proof, step, tip, name = body.certificate, Step.FIRST, (body.round, body.base), body.record_hash
        case Commit(record=record):
            proof, step, tip, name = body.certificate, Step.SECOND, (record.round, record.previous), record_hash(record)
        case Lock(record=record) | RecordProposal(record=record) if body.proof is not None:
            proof, step, tip, name = body.proof, Step.FIRST, (record.round, record.previous), record_hash(record)
        case _:
            return None
    attempt, absent = proof.attempt, proof.absent
    vote = Vote(round=tip[0], base=tip[1], attempt=attempt, step=step, absent=absent, record_hash=name)
    return Claim(vote, proof)


class _Statement(NamedTuple):
    """One signed statement, which is decoded again when it is compared."""

    round: int
    slots: Set[Slot]
    raw: bytes


@dataclass
class _Testimony:
    """Statements that one elector has signed, and certificates that it has sent; the oldest first."""

    statements: list[_Statement] = field(default_factory=list)
    claims: BoundedDict[bytes, Claim] = field(default_factory=lambda: BoundedDict(KEPT_CERTIFICATES))

    def keep(self, statement: _Statement) -> None:
        self.statements.append(statement)
        while len(self.statements) > KEPT_STATEMENTS or sum(len(each.raw) for each in self.statements) > KEPT_BYTES:
            del self.statements[0]

    def forget_before(self, round: int) -> None:
        self.statements = [each for each in self.statements if each.round >= round]
        for name in [name for name, each in self.claims.items() if each.vote.round < round]:
            del self.claims[name]


class Witness:
    """Witness of one node."""

    def __init__(self, run: Hash, history: History) -> None:
        self._run, self._history = run, history
        self._testimonies: dict[PeerId, _Testimony] = {}
        self._oldest = 0
        """Number of the first round whose tip is watched."""

    def hear(self, sender: PeerId, body: Body, envelope: Envelope) -> list[TwoStatements]:
        """Record a statement with a verified signature; return proof of the lies that it shows."""
        tip = tip_of(body)
        base = self._history.base_at(*tip) if tip is not None else None
        oldest = max(0, self._history.length + 1 - TIPS)
        if oldest != self._oldest:
            self._oldest = oldest
            for each in self._testimonies.values():
                each.forget_before(oldest)
            self._testimonies = {peer: each for peer, each in self._testimonies.items() if each.statements or each.claims}
        if base is None or base.round < self._oldest or sender not in base.electors:
            return []
        testimony = self._testimonies.setdefault(sender, _Testimony())
        lies, filled = list[TwoStatements](), slots(body).keys()
        known = [each for each in testimony.statements if each.slots & filled]
        others = [each.raw for each in known if each.raw != envelope.raw]
        if isinstance(body, Vote):
            others += self._votes_in(self._rivals(body), sender)
        contrary = next((raw for raw in others if contradict(unpack(raw, self._run)[1], body)), None)
        if contrary is not None:
            lies.append(TwoStatements(first=contrary, second=envelope.raw))
        elif filled and all(each.slots != filled for each in known):
            testimony.keep(_Statement(base.round, frozenset(filled), envelope.raw))
        claim = certified(body)
        if claim is not None and claim.vote.encode() not in testimony.claims:
            testimony.claims[claim.vote.encode()] = claim
            lies += self._on_claim(claim)
        return lies

    def _rivals(self, vote: Vote) -> list[Claim]:
        """Return the certificates of other votes in the slot of `vote`."""
        claims = [claim for testimony in self._testimonies.values() for claim in testimony.claims.values()]
        return [claim for claim in claims if claim.vote != vote and contradict(claim.vote, vote)]

    def _on_claim(self, claim: Claim) -> list[TwoStatements]:
        """Return proof against the signers of a certificate that voted otherwise in the same slot."""
        lies, rivals, filled = list[TwoStatements](), self._rivals(claim.vote), slots(claim.vote).keys()
        for each in claim.certificate.votes:
            voter = PeerId(each.peer)
            kept = self._testimonies[voter].statements if voter in self._testimonies else []
            own = [each.raw for each in kept if each.slots == filled and unpack(each.raw, self._run)[1] != claim.vote]
            if not own and not rivals:
                continue
            ours = self._votes_in([claim], voter)
            if not ours:
                break  # the certificate is forged
            others = own or self._votes_in(rivals, voter)
            if others:
                lies.append(TwoStatements(first=others[0], second=ours[0]))
        return lies

    def _votes_in(self, claims: Sequence[Claim], voter: PeerId) -> list[bytes]:
        """Return the envelopes of the votes that `voter` signed in certificates, without the forged ones."""
        signed = [(claim.vote, each) for claim in claims for each in claim.certificate.votes if each.peer == voter]
        votes = [rebuild(self._run, Vote.KIND, voter, vote.encode(), each.signature) for vote, each in signed]
        return [vote.raw for vote in votes if is_authentic(vote)]
