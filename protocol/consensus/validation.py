"""What makes sense in a round: checks of plans, records and motions that need nothing but the statement and its base.

Pure.  Who may propose, and who is promised to, is `protocol.consensus.machine`' matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.state.base import Base, RoundSettings
from protocol.state.chain import verify_record
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan, Provenance, Ready, Record


def plan_fits(settings: RoundSettings, base: Base, plan: Plan) -> bool:
    """A plan for this round, with sorted members of a lawful number, and an owner for each chunk."""
    peers = [member.peer for member in plan.members]
    if plan.round != base.round or plan.base != base.tip:
        return False
    if peers != sorted(set(peers)) or not settings.min_members <= len(peers) <= settings.max_members:
        return False
    if any(member.tokens > settings.max_tokens for member in plan.members):
        return False
    return len(plan.owners) == settings.chunks and max(plan.owners) < len(peers)


def motion_fits(settings: RoundSettings, base: Base, record: Record, index: Sequence[ChunkEntry],
                provenance: Provenance) -> bool:
    """A record that could be the next one, and a provenance of its shape.  Signatures are the auditor's to check."""
    try:
        verify_record(settings, record, index, base)
    except Malformed:
        return False
    members, sizes = len(record.members), (provenance.owners, provenance.signers, provenance.signatures)
    return (all(len(size) == settings.chunks for size in sizes)
            and max(provenance.owners) < members and max(provenance.signers) < members)


def plan_of(record: Record, provenance: Provenance) -> Plan:
    """The plan whose exchange made this record."""
    return Plan(round=record.round, base=record.previous, members=record.members, owners=provenance.owners,
                state_digest=record.state_digest, loss=record.loss)


def is_in(plan: Plan, peer: PeerId, ready: Ready | None) -> bool:
    """The plan has this contribution: not one of an earlier life, and not somebody's invention."""
    return ready is not None and any(
        member.peer == peer and (member.root, member.tokens) == (ready.root, ready.tokens) for member in plan.members)


def leaves_out(plan: Plan, peers: Sequence[PeerId], readys: Mapping[PeerId, Ready]) -> int:
    """How many of these ready peers have no place in the plan, or one for a contribution that they no longer have: who
    was restarted has made another."""
    return sum(not is_in(plan, peer, readys.get(peer)) for peer in peers)
