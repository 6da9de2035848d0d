"""Proof that a peer lied: self-contained, and the same for everybody who looks at it.

Two kinds.  A wrong average: the owner's signed `ChunkResult`, the plan it names, and the parts it says it averaged, each
with its proof against the root that the plan gives its member; whoever averages them gets other bytes.  Two statements:
two different envelopes signed by one peer where an honest one signs one.

Pure.  `judge` believes nothing that the signatures and hashes do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kernels.aggregate import Rule, aggregate
from kernels.codec import is_sane
from kernels.layout import ChunkSpan
from protocol.exchange.assignment import plan_hash
from protocol.state.base import fragment_of
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, verify_proof
from protocol.wire.identity import PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import MAX_MEMBERS, Body, ChunkResult, HashField, Plan, Ready, decode_body, unpack

MAX_EVIDENCE_BYTES = 64 << 20
"""Larger evidence does not travel: with chunks of 1 MiB, 60 members."""


class AveragedPart(Body):
    """A member's part of the chunk.  member: its index in the plan."""

    member: Annotated[int, Field(ge=0, lt=MAX_MEMBERS)]
    proof: Annotated[list[HashField], Field(max_length=16)]
    data: bytes


class WrongAverage(Body):
    """The owner signed `statement` (a `ChunkResult` envelope) about `plan`; these are all the parts in its mask."""

    KIND: ClassVar[str] = "wrong average"
    plan: Plan
    statement: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    parts: Annotated[list[AveragedPart], Field(min_length=1, max_length=MAX_MEMBERS)]


class TwoStatements(Body):
    """Two envelopes of one peer for one slot."""

    KIND: ClassVar[str] = "two statements"
    first: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]
    second: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]


Evidence = WrongAverage | TwoStatements


@dataclass(frozen=True)
class Verdict:
    """Who lied, and how, as a sentence.  false_chunk: (chunk, hash) of a result proven wrong."""

    peer: PeerId
    reason: str
    false_chunk: tuple[int, bytes] | None = None


@dataclass(frozen=True)
class Law:
    """What the manifest fixes about averaging.  layout: the chunks of a contribution, alike in all fragments."""

    run: Hash
    fragments: int
    layout: Sequence[ChunkSpan]
    rule: Rule


def encode_evidence(evidence: Evidence) -> bytes:
    """The bytes of a proof, as it is kept and sent."""
    return canonical.encode({"kind": evidence.KIND, "case": evidence.encode()})


def evidence_hash(raw: bytes) -> Hash:
    """The name under which evidence is announced and kept."""
    return hash_bytes("evidence", raw)


def decode_evidence(raw: bytes) -> Evidence:
    """Raises `Malformed`."""
    fields = canonical.decode(raw, max_bytes=MAX_EVIDENCE_BYTES, max_values=4)
    if not isinstance(fields, dict) or set(fields) != {"kind", "case"} or not isinstance(fields["case"], bytes):
        raise Malformed("not evidence")
    if fields["kind"] == WrongAverage.KIND:
        return decode_body(WrongAverage, fields["case"], max_bytes=MAX_EVIDENCE_BYTES)
    if fields["kind"] == TwoStatements.KIND:
        return decode_body(TwoStatements, fields["case"], max_bytes=MAX_EVIDENCE_BYTES)
    raise Malformed("evidence of an unknown kind")


def judge(law: Law, evidence: Evidence) -> Verdict:
    """Whom the evidence proves to have lied; raises `Malformed` when it proves nothing."""
    return _wrong_average(law, evidence) if isinstance(evidence, WrongAverage) else _two_statements(law, evidence)


def _wrong_average(law: Law, case: WrongAverage) -> Verdict:
    signer, body, _ = unpack(case.statement, law.run)
    plan, chunk = case.plan, -1
    if isinstance(body, ChunkResult):
        chunk = body.chunk
    if not isinstance(body, ChunkResult) or body.plan != plan_hash(plan) or not 0 <= chunk < len(law.layout):
        raise Malformed("a statement about another plan")
    if plan.fragment != fragment_of(plan.round, law.fragments):
        raise Malformed("a statement about a plan of another fragment than the round's")
    if len(plan.owners) != len(law.layout) or signer not in [member.peer for member in plan.members]:
        raise Malformed("a statement of somebody who had nothing to average")
    averaged = members_in(body.entry.mask, len(plan.members))
    if [part.member for part in case.parts] != averaged:
        raise Malformed("other parts than the mask names")
    span = law.layout[chunk]
    for part in case.parts:
        proof = [Hash(node) for node in part.proof]
        root = Hash(plan.members[part.member].root)
        if len(part.data) != span.size or not verify_proof(root, len(law.layout), chunk, chunk_hash(part.data), proof):
            raise Malformed("a part that its member did not commit to")
    verdict = Verdict(signer, f"signed a wrong average of chunk {chunk} in round {plan.round}", (chunk, body.entry.hash))
    if not all(is_sane(part.data, span.count) for part in case.parts):
        return verdict  # it had to refuse that part
    tokens = [plan.members[index].tokens for index in averaged]
    if right_hash(law.rule, span, [part.data for part in case.parts], tokens) == body.entry.hash:
        raise Malformed("the average is right")
    return verdict


def right_hash(rule: Rule, span: ChunkSpan, parts: Sequence[bytes | memoryview], tokens: Sequence[int]) -> Hash:
    """The hash of what `rule` makes of these parts (sane, in canonical order)."""
    mean = bytearray(span.size)
    aggregate(rule, parts, tokens, span.count, mean)
    return chunk_hash(mean)


def _two_statements(law: Law, case: TwoStatements) -> Verdict:
    one, first, _ = unpack(case.first, law.run)
    other, second, _ = unpack(case.second, law.run)
    if one != other or first == second or slot(first) is None or slot(first) != slot(second):
        raise Malformed("two statements that do not contradict each other")
    return Verdict(one, f"signed two different statements ({first.KIND}) where there is one")


def slot(body: Body) -> tuple[object, ...] | None:
    """What an honest peer says one thing about; None for statements that may change."""
    if isinstance(body, Ready):
        return ("ready", body.incarnation, body.serial)
    if isinstance(body, ChunkResult):
        return ("chunk", body.plan, body.chunk)
    return None
