"""Checks of plans, records and motions that need only the statement, the base and the settings of the round.

Pure.  A flaw is a phrase for the log.  `protocol.agreement.voter` checks if the ballot permits the statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from protocol.agreement.policy import most_chunks
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import verify_members, verify_record
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Member, Plan, Provenance, Ready, Record


def flaw_of_plan(settings: RoundSettings, base: Base, plan: Plan) -> str | None:
    """Return the reason why this cannot be a plan of the round on `base`; None if it can."""
    if plan.round != base.round or plan.base != base.tip:
        return "its plan is for another round"
    if plan.fragment != base.fragment:
        return f"its plan is for fragment {plan.fragment}, not {base.fragment}"
    if len(plan.owners) != settings.chunks:
        return f"its plan has {len(plan.owners)} chunks, not {settings.chunks}"
    if max(plan.owners) >= len(plan.members):
        return "a chunk of its plan has an owner that is no member"
    if _is_unfair(settings, base, plan.members, plan.owners):
        return "a member of its plan owns more than its share of the chunks"
    try:
        verify_members(settings, plan.members, base, plan.state)
        base.check_amendment(settings.run, settings.manifest, plan.amendment)
    except Malformed as error:
        return f"its plan has {error}"
    return None


def flaw_of_record_proposal(
    settings: RoundSettings, base: Base, record: Record, index: Sequence[ChunkEntry], provenance: Provenance
) -> str | None:
    """Return the reason why this cannot be the next record with its provenance; None if it can.

    The signatures of the provenance are left to the auditor.
    """
    try:
        verify_record(settings, record, index, base)
    except Malformed as error:
        return str(error)
    sizes = (provenance.owners, provenance.signers, provenance.signatures)
    if any(len(size) != settings.chunks for size in sizes):
        return "its provenance is not of this many chunks"
    if max(max(provenance.owners), max(provenance.signers)) >= len(record.members):
        return "its provenance names an owner or a signer that is no member"
    if _is_unfair(settings, base, record.members, provenance.owners):
        return "a member of its plan owns more than its share of the chunks"
    return None


def _is_unfair(settings: RoundSettings, base: Base, members: Sequence[Member], owners: bytes) -> bool:
    """Return True if one of these members owns more chunks than one member may."""
    electors = sum(member.peer in base.electors for member in members)
    return max(Counter(owners).values()) > most_chunks(settings.chunks, len(base.electors), electors)


def plan_of(record: Record, provenance: Provenance) -> Plan:
    """Return the plan whose exchange made this record."""
    return Plan(
        round=record.round,
        fragment=record.fragment,
        base=record.previous,
        members=record.members,
        owners=provenance.owners,
        state_digest=record.state_digest,
        weights=record.weights,
        amendment=record.amendment,
    )


def is_in(plan: Plan, peer: PeerId, ready: Ready | None) -> bool:
    """Return True if the plan has the contribution for which `peer` said READY, none of an earlier life and none invented.

    An earlier life may have made the same contribution, and signed averages of this plan that we do not remember.
    """
    said = (ready.incarnation, ready.serial, ready.root, ready.tokens) if ready is not None else None
    return any(
        member.peer == peer and (member.incarnation, member.serial, member.root, member.tokens) == said
        for member in plan.members
    )
