"""Proof that a peer lied: self-contained, and the same for every judge.

There are four kinds:

* A wrong average: the signed `ChunkResult` of the owner, the plan named in it, and the parts that the owner claims to have
  averaged.  Each part has a tree proof against its member's root in the plan.  The average of these parts differs from the
  signed one.
* One statement that no honest peer signs.
* Two statements of one peer that contradict each other.
* A certificate that contradicts a record proposal: its signers voted in the proposer's ballot, but for another record.

Some evidence can be judged only by a peer that knows the electors of the evidence's tip (`tip_needed`); every peer that has
the chain up to this tip knows them.

Pure.  `judge` relies only on signatures and hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from kernels.aggregate import Rule, aggregate
from kernels.layout import Layouts
from protocol.agreement.ballot import Ballot, carries_lock, flaw_of_locks, justify, plan_of
from protocol.allreduce.assignment import is_committed, plan_hash
from protocol.chain.base import Base, fragment_of
from protocol.chain.records import record_hash, verify_quorum
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, MAX_MEMBERS, Body, HashField, decode_body
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkResult,
    Commit,
    Lock,
    LockName,
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
# Statements that no honest peer signs, alone or together with another statement of the same peer.
#
# Two rules cover pairs of statements:
#
# * For each slot (`slot`) an honest peer signs one statement: one READY for each serial, one average for each chunk of a
#   plan, one batch of rollouts for each number; and in each attempt on a tip one vote in each step, one proposal and one
#   record proposal.  Its votes are on disk before they are sent, and after a restart it leads no attempt in which it took
#   part before.
# * The view change of an honest elector names the lock of its last second vote before that attempt (`hides_lock`).
#
# A voter also breaks the rules if it votes in an attempt that is lower than one that it has entered, but a vote does not
# show the time at which it was cast.  A second vote of this kind contradicts the view changes for later attempts, which do
# not name its lock; a first vote contradicts nothing.
#
# If members vote in place of electors, the rules about locks and proposers do not hold, because peers do not agree on the
# members.  So these rules apply only to electors of the tip.


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


def slot(body: Body) -> tuple[object, ...] | None:
    """Return the slot of a statement, for which an honest peer signs only one statement; None for other statements."""
    match body:
        case Ready():
            return ("ready", body.incarnation, body.serial)
        case ChunkResult():
            return ("chunk", body.plan, body.chunk)
        case RolloutBatch():
            return ("rollouts", body.tip, body.incarnation, body.number)
        case Vote():
            return ("vote", tip_of(body), body.attempt, body.step)
        case Proposal():
            return ("proposal", tip_of(body), body.attempt)
        case RecordProposal():
            return ("record proposal", tip_of(body), body.attempt)
    return None


# -- two statements -------------------------------------------------------------------------------------------------------


def need_electors(one: Body, other: Body) -> bool:
    """Return True if two statements can contradict each other only if their signer is an elector of their tip."""
    if slot(one) is not None and slot(one) == slot(other):
        return False
    return tip_of(one) is not None and tip_of(one) == tip_of(other)


def contradict(sender: PeerId, one: Body, other: Body, base: Base | None) -> bool:
    """Return True if no honest peer signs both statements.

    base: the base with the tip of both statements; None if it is not known.
    """
    if slot(one) is not None and slot(one) == slot(other):
        return one != other
    if base is None or sender not in base.electors or not tip_of(one) == tip_of(other) == (base.round, base.tip):
        return False
    for first, second in ((one, other), (other, one)):
        if hides_lock(first, second):
            return True
        if isinstance(first, Proposal) and isinstance(second, RecordProposal) and first.attempt == second.attempt:
            return plan_hash(first.plan) != plan_hash(plan_of(second.record, second.provenance))
    return False


def hides_lock(earlier: Body, roll: Body) -> bool:
    """Return True if `roll` omits a lock that an earlier view change or second vote of its signer on this tip implies."""
    if not isinstance(roll, ViewChange):
        return False
    if isinstance(earlier, Vote):
        if earlier.step is not Step.SECOND or earlier.attempt >= roll.attempt:
            return False
        made = LockName(attempt=earlier.attempt, absent=earlier.absent, record_hash=earlier.record_hash)
        return _is_lost(made, earlier.attempt + 1, roll.reduced if earlier.absent else roll.lock)
    if not isinstance(earlier, ViewChange) or earlier.attempt > roll.attempt:
        return False
    pairs = ((earlier.lock, roll.lock), (earlier.reduced, roll.reduced))
    return any(_is_lost(before, earlier.attempt, after) for before, after in pairs)


def _is_lost(before: LockName | None, attempt: int, after: LockName | None) -> bool:
    """Return True if `after` is neither `before`, the last lock below `attempt`, nor a later lock."""
    return after != before and (after is None or after.attempt < attempt)


# -- one statement --------------------------------------------------------------------------------------------------------


def lie_of(run: Hash, sender: PeerId, body: Body, base: Base | None, max_members: int) -> str | None:
    """Return the reason why no honest peer signs this statement, as a phrase; None if an honest peer may.

    base: the base with the tip of the statement; None if it is not known, in which case fewer lies are found.
    """
    if isinstance(body, ViewChange | Vote | Proposal | RecordProposal) and sender in body.absent:
        return f"signed a {body.KIND} that names its own signer absent"
    if isinstance(body, ViewChange):
        flaw = flaw_of_locks(body)
        return f"signed {flaw}" if flaw is not None else None
    if isinstance(body, Proposal | RecordProposal) and base is not None and tip_of(body) == (base.round, base.tip):
        flaw = _unjustified(run, sender, body, base, max_members)
        return f"signed a {body.KIND} that nothing justifies: {flaw}" if flaw is not None else None
    return None


def _unjustified(run: Hash, sender: PeerId, body: Proposal | RecordProposal, base: Base, max_members: int) -> str | None:
    """Return the reason why the view changes in this statement of an elector do not justify it; None if they do."""
    ballot = Ballot(base, body.attempt, tuple(map(PeerId, body.absent)))
    if sender not in base.electors:
        return None
    if not ballot.is_sound:
        return "it lists a non-elector as absent, or is of an attempt without a ballot"
    if not ballot.may_propose(sender):
        return "it was not its turn"
    try:
        justification = justify(run, ballot, body.rolls)
        if isinstance(body, RecordProposal) and carries_lock(run, justification, body.record, body.proof):
            return None
    except Malformed as error:
        return str(error)
    if justification.highest_locks():
        return "its view changes name a lock, whose record must be put to the vote"
    plan: Plan = body.plan if isinstance(body, Proposal) else plan_of(body.record, body.provenance)
    return None if justification.allows_plan(plan, max_members) else "its plan leaves out an elector that was ready"


# -- votes in certificates ------------------------------------------------------------------------------------------------


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
    return Claim(vote_in(proof, step, tip, name), proof)


def vote_in(certificate: Certificate, step: Step, tip: Tip, record: bytes) -> Vote:
    """Return the vote that all signers of a certificate cast."""
    attempt, absent = certificate.attempt, certificate.absent
    return Vote(round=tip[0], base=tip[1], attempt=attempt, step=step, absent=absent, record_hash=record)


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


class OneStatement(Body):
    """An envelope that no honest peer signs."""

    KIND: ClassVar[str] = "one statement"
    statement: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]


class TwoStatements(Body):
    """Two envelopes of one peer that contradict each other."""

    KIND: ClassVar[str] = "two statements"
    first: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    second: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]


class ContraryRecordProposal(Body):
    """A record proposal in a ballot of the whole electorate, and a certificate of that ballot for another record.

    Only the signer of the record proposal may propose in that ballot, and at least one voter in a quorum is honest: so the
    signer signed two record proposals.  (A quorum of a part of the electorate may include no honest voter.)
    """

    KIND: ClassVar[str] = "contrary motion"
    motion: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    record_hash: HashField
    step: Annotated[Step, Field(strict=False)]
    certificate: Certificate


Evidence = WrongAverage | OneStatement | TwoStatements | ContraryRecordProposal
KINDS: dict[str, type[Evidence]] = {
    cls.KIND: cls for cls in (WrongAverage, OneStatement, TwoStatements, ContraryRecordProposal)
}


class UnknownTip(Exception):
    """Failure to judge evidence against `signer`, because the electors of its tip are not known here."""

    def __init__(self, signer: PeerId, tip: Tip) -> None:
        super().__init__(f"round {tip[0]} on {tip[1].hex():.16}")
        self.signer, self.tip = signer, tip


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
    """Rules fixed by the manifest.

    layouts: the chunks of contributions and results, the same in all fragments.  max_members: the most members of a round.
    """

    run: Hash
    fragments: int
    layouts: Layouts
    rule: Rule
    max_members: int


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


def tip_needed(law: Law, evidence: Evidence) -> tuple[PeerId, Tip] | None:
    """Return the accused peer, and the tip whose electors the judge must know; None if the evidence needs no tip.

    Raise `Malformed` if a statement in the evidence is malformed.
    """
    tip: Tip | None = None
    match evidence:
        case WrongAverage():
            return None
        case OneStatement():
            signer, body, _ = unpack(evidence.statement, law.run)
            tip = tip_of(body) if isinstance(body, Proposal | RecordProposal) else None
        case TwoStatements():
            signer, body, _ = unpack(evidence.first, law.run)
            _, second, _ = unpack(evidence.second, law.run)
            tip = tip_of(body) if need_electors(body, second) else None
        case ContraryRecordProposal():
            signer, body, _ = unpack(evidence.motion, law.run)
            tip = tip_of(body)
    return (signer, tip) if tip is not None else None


def judge(law: Law, evidence: Evidence, base: Base | None = None) -> ProvenLie:
    """Return the verdict that the evidence proves; raise `Malformed` if it proves nothing.

    base: the tip that `tip_needed` names, with its electors; raise `UnknownTip` if it is needed and not given.
    """
    needed = tip_needed(law, evidence)
    if needed is not None and (base is None or (base.round, base.tip) != needed[1]):
        raise UnknownTip(*needed)
    match evidence:
        case WrongAverage():
            return _wrong_average(law, evidence)
        case OneStatement():
            signer, body, _ = unpack(evidence.statement, law.run)
            lie = lie_of(law.run, signer, body, base, law.max_members)
            if lie is None:
                raise Malformed("a statement that an honest peer may sign")
            return ProvenLie(signer, lie)
        case TwoStatements():
            return _two_statements(law, evidence, base)
        case ContraryRecordProposal():
            if base is None:
                raise Malformed("not a record proposal")
            return _contrary_record_proposal(law, evidence, base)


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


def _two_statements(law: Law, case: TwoStatements, base: Base | None) -> ProvenLie:
    sender, first, _ = unpack(case.first, law.run)
    other, second, _ = unpack(case.second, law.run)
    if sender != other or not contradict(sender, first, second, base):
        raise Malformed("two statements that do not contradict each other")
    if isinstance(first, ChunkResult) and isinstance(second, ChunkResult):
        averages = ((first.chunk, first.entry.hash), (second.chunk, second.entry.hash))
        return ProvenLie(sender, f"signed two averages of chunk {first.chunk}", averages)
    if first.KIND == second.KIND:
        return ProvenLie(sender, f"signed two {first.KIND} statements that contradict each other")
    return ProvenLie(sender, f"signed a {first.KIND} and a {second.KIND} that contradict each other")


def _contrary_record_proposal(law: Law, case: ContraryRecordProposal, base: Base) -> ProvenLie:
    sender, proposal, _ = unpack(case.motion, law.run)
    certificate = case.certificate
    if (
        not isinstance(proposal, RecordProposal)
        or certificate.attempt != proposal.attempt
        or certificate.absent
        or proposal.absent
    ):
        raise Malformed("a certificate that is not of the record proposal's ballot, or is of a part of the electorate")
    if record_hash(proposal.record) == case.record_hash:
        raise Malformed("a certificate for the record that was put to the vote")
    ballot = Ballot(base, proposal.attempt)
    if not base.electors or not ballot.may_propose(sender):
        raise Malformed("a record proposal whose sender is not the proposer")
    vote = vote_in(certificate, case.step, (base.round, base.tip), case.record_hash)
    verify_quorum(law.run, base, ballot.voters, vote, certificate.votes)
    return ProvenLie(sender, f"put two records to the vote in attempt {proposal.attempt} of round {base.round}")
