"""The council: electors with their keys on one tip of round 5, and the signed statements that they may make.

The tables of the pure modules, the parliament (`agreement/parliament.py`) and the explorer (`tests/explore/council.py`) have
theirs from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol.agreement.ballot import Ballot, held_mask
from protocol.agreement.events import PeerView
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import index_root, record_hash
from protocol.run.manifest import RunManifest
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Lock,
    LockName,
    Member,
    Plan,
    Provenance,
    Ready,
    Record,
    RecordProposal,
    Signature,
    Step,
    ViewChange,
    Vote,
    member_of,
    pack,
)

MOST_PEERS = 64
IDENTITIES = {
    identity.peer_id: identity for identity in (Identity.from_seed(bytes([number + 1]) * 32) for number in range(MOST_PEERS))
}


def peers(count: int) -> list[PeerId]:
    """The first so many peers, sorted."""
    return sorted([*IDENTITIES][:count])


PEERS = peers(5)
RUN = Hash(b"\x07" * 32)
TIP = Hash(b"\x09" * 32)
STATE = Hash(b"\x03" * 32)
CHUNKS = 3
SETTINGS = RoundSettings(
    run=RUN,
    manifest=RunManifest(name="example", organiser=PEERS[0], founders="anyone", total_rounds=10**6),
    fragments=1,
    chunks=CHUNKS,
    codec="int4",
    min_members=2,
    max_members=4,
    grace_s=4.0,
    eviction_s=20.0,
    stall_s=6.0,
    founders=None,
    is_open=True,
    seasoning_rounds=3,
    tenure_rounds=100,
    listen_s=6.0,
)


def base_of(electors: Sequence[PeerId]) -> Base:
    """Round 5 with these electors, who are the members of the record before it."""
    return Base(5, 0, TIP, tuple(electors), tuple(electors), frozenset(electors))


BASE = base_of(PEERS[:4])
INDEX = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=b"\x07") for chunk in range(CHUNKS)]
OTHER_INDEX = [ChunkEntry(hash=chunk_hash(bytes([chunk, 1])), mask=b"\x07") for chunk in range(CHUNKS)]
PROVENANCE = Provenance(owners=b"\0\1\2", signers=b"\0\1\2", signatures=[bytes(64)] * CHUNKS)

# -- contributions --------------------------------------------------------------------------------------------------------


def signature_of(peer: PeerId, body: Body) -> bytes:
    """The signature with which `peer` says `body`."""
    return pack(IDENTITIES[peer], RUN, body).signature


def a_ready(**changes: Any) -> Ready:
    """A READY for round 5."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "base": TIP,
        "incarnation": 1,
        "serial": 1,
        "tokens": 100,
        "steps": 10,
        "loss": 2.0,
        "norm": 1.0,
        "root": ZERO_HASH,
        "state_digest": STATE,
    }
    return Ready(**{**fields, **changes})


def members(*peers: PeerId, **changes: Any) -> list[Member]:
    """Members, each with the READY that it signed; changes: to all of these READYs."""
    ready = a_ready(**changes)
    return [member_of(peer, ready, signature_of(peer, ready)) for peer in peers]


def a_plan(**changes: Any) -> Plan:
    """A plan of round 5 with the first three peers."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "base": TIP,
        "members": members(*PEERS[:3]),
        "owners": b"\0\1\2",
        "state_digest": STATE,
    }
    return Plan(**{**fields, **changes})


def a_record(**changes: Any) -> Record:
    """The record of round 5 with the first three peers."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "previous": TIP,
        "members": members(*PEERS[:3]),
        "codec": "int4",
        "result_root": index_root(INDEX),
        "state_digest": STATE,
    }
    return Record(**{**fields, **changes})


RECORD = a_record()
OTHER_RECORD = a_record(result_root=index_root(OTHER_INDEX))

# -- ballots --------------------------------------------------------------------------------------------------------------


def a_ballot(attempt: int, *absent: PeerId) -> Ballot:
    """An attempt of round 5 without these electors."""
    return Ballot(BASE, attempt, tuple(sorted(absent)))


def a_view_change(attempt: int, *absent: PeerId, held: Iterable[PeerId] = (), on: Base = BASE, **changes: Any) -> ViewChange:
    """A view change that names no plan and no lock.  held: the electors whose READY its sender holds.  on: the base."""
    fields: dict[str, Any] = {
        "round": on.round,
        "base": on.tip,
        "attempt": attempt,
        "absent": sorted(absent),
        "held": held_mask(on.electors, list(held)),
        "plan": None,
        "lock": None,
        "reduced": None,
    }
    return ViewChange(**{**fields, **changes})


def signed(peer: PeerId, body: Body) -> bytes:
    """The envelope in which `peer` says `body`."""
    return pack(IDENTITIES[peer], RUN, body).raw


def name_of(attempt: int, *absent: PeerId, record: Record = RECORD) -> LockName:
    """How a view change names the lock that was made in this attempt."""
    return LockName(attempt=attempt, absent=sorted(absent), record_hash=record_hash(record))


def a_vote(
    attempt: int,
    *absent: PeerId,
    record: Record | Hash = RECORD,
    step: Step = Step.FIRST,
    on: Base = BASE,
    **changes: Any,
) -> Vote:
    """A vote for this record, or the record of this hash."""
    name = record_hash(record) if isinstance(record, Record) else record
    vote = Vote(round=on.round, base=on.tip, attempt=attempt, step=step, absent=sorted(absent), record_hash=name)
    return vote.model_copy(update=changes)


def certificate_of(attempt: int, absent: Iterable[PeerId], votes: Mapping[PeerId, Vote]) -> Certificate:
    """A certificate of this ballot with what these peers sign, whatever that is."""
    signatures = [Signature(peer=peer, signature=signature_of(peer, votes[peer])) for peer in sorted(votes)]
    return Certificate(attempt=attempt, absent=sorted(absent), votes=signatures)


def votes_for(
    record: Record, voters: Iterable[PeerId], attempt: int, *absent: PeerId, step: Step = Step.FIRST
) -> Certificate:
    """The votes of these peers for this record, as a certificate; of first votes: a proof of lock."""
    on = Base(record.round, record.fragment, Hash(record.previous), ())
    vote = a_vote(attempt, *absent, record=record, step=step, on=on)
    return certificate_of(attempt, absent, dict.fromkeys(voters, vote))


def a_lock(attempt: int, *absent: PeerId, record: Record = RECORD) -> Lock:
    """A lock on this record, with the first votes of those that stay."""
    index = INDEX if record == RECORD else OTHER_INDEX
    voters = [peer for peer in PEERS[:4] if peer not in absent]
    return Lock(record=record, index=index, provenance=PROVENANCE, proof=votes_for(record, voters, attempt, *absent))


def a_record_proposal(
    attempt: int,
    *absent: PeerId,
    view_changes: Iterable[bytes] = (),
    record: Record = RECORD,
    proof: Certificate | None = None,
) -> RecordProposal:
    """This record is put to the vote.  view_changes: without any, those of all who stay, that name nothing."""
    stay = [peer for peer in PEERS[:4] if peer not in absent]
    return RecordProposal(
        attempt=attempt,
        absent=sorted(absent),
        record=record,
        index=INDEX if record == RECORD else OTHER_INDEX,
        provenance=PROVENANCE,
        view_changes=list(view_changes) or [signed(peer, a_view_change(attempt, *absent)) for peer in stay],
        proof=proof,
    )


# -- how peers look -------------------------------------------------------------------------------------------------------

AT_WORK = PeerView(live=True, on_tip=True, left=False, silent_s=0.0, near=True)
ARRIVING = PeerView(live=True, on_tip=False, left=False, silent_s=0.0, near=True)
ELSEWHERE = PeerView(live=True, on_tip=False, left=False, silent_s=0.0)
QUIET = PeerView(live=False, on_tip=False, left=False, silent_s=7.0)
LONG_SILENT = PeerView(live=False, on_tip=False, left=False, silent_s=20.0)
GONE = PeerView(live=False, on_tip=False, left=True, silent_s=1.0)
