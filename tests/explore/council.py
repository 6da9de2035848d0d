"""Four electors, some of them liars, one round and two records: names for everything that can be said, and the signed
statements themselves.

A seat is an elector's rank as a proposer in the ballots of the whole electorate, so seat `a` proposes in attempt `a`.  What
is said is known by short tuples, from which the real, signed statement is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from protocol.agreement.ballot import Ballot
from protocol.agreement.events import PeerView, View
from protocol.agreement.round_state import RoundState
from protocol.allreduce.assignment import assign_owners
from protocol.allreduce.lateness import LatenessMemory
from protocol.chain.base import round_settings
from protocol.chain.records import index_root, record_hash
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import PeerId
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
    VoterState,
    mask_of,
    member_of,
)
from tests.protocol.council import (
    RUN,
    SETTINGS,
    TIP,
    a_plan,
    a_ready,
    a_record,
    a_view_change,
    a_vote,
    base_of,
    peers,
    signature_of,
    signed,
)

SEATS = 4
CHUNKS = 1
NAMES = "AB"
"""Of the two records: results of one exchange that differ in their chunks."""

Seats = tuple[int, ...]
"""Sorted seats."""


class LockKey(NamedTuple):
    """A lock, as a view change names it.  record: 0 or 1."""

    attempt: int
    absent: Seats
    record: int


class ViewChangeKey(NamedTuple):
    """What a view change says."""

    attempt: int
    absent: Seats
    lock: LockKey | None
    reduced: LockKey | None


class VoteKey(NamedTuple):
    """What a vote says."""

    step: Step
    attempt: int
    absent: Seats
    record: int


class BallotKey(NamedTuple):
    """An attempt without the absent seats."""

    attempt: int
    absent: Seats


AT_WORK = PeerView(live=True, on_tip=True, left=False, silent_s=0.0)
SILENT = PeerView(live=False, on_tip=False, left=False, silent_s=1e6)
LEFT = PeerView(live=False, on_tip=False, left=True, silent_s=1e6)


class Council:
    """The electors with their keys, the base that they stand on and the two records that can be put to the vote."""

    def __init__(self) -> None:
        self.settings = replace(round_settings(RUN, SETTINGS.manifest), chunks=CHUNKS)
        self.base = base_of(peers(SEATS))
        self.peers = tuple(self.base.in_turn(self.base.electors))
        self._view_changes: dict[tuple[int, ViewChangeKey], bytes] = {}
        self._votes: dict[tuple[int, VoteKey], bytes] = {}

    # -- the round ----------------------------------------------------------------------------------------------------

    @cached_property
    def readys(self) -> dict[PeerId, tuple[Ready, bytes]]:
        """A signed READY of each elector."""
        readys = {peer: a_ready(state_digest=ZERO_HASH, root=chunk_hash(peer.encode())) for peer in self.peers}
        return {peer: (ready, signature_of(peer, ready)) for peer, ready in readys.items()}

    @cached_property
    def plan(self) -> Plan:
        """The one plan: all electors are members."""
        members: list[Member] = [member_of(peer, *self.readys[peer]) for peer in self.base.electors]
        owners = assign_owners(TIP, list(self.base.electors), CHUNKS, [0.0] * SEATS)
        return a_plan(members=members, owners=owners, state_digest=ZERO_HASH)

    @cached_property
    def indices(self) -> list[list[ChunkEntry]]:
        """The index of the result of each record."""
        mask = mask_of(range(SEATS), SEATS)
        return [
            [ChunkEntry(hash=chunk_hash(name.encode() + bytes([chunk])), mask=mask) for chunk in range(CHUNKS)]
            for name in NAMES
        ]

    @cached_property
    def provenance(self) -> Provenance:
        """Of both results.  Its signatures are the auditor's matter."""
        return Provenance(owners=self.plan.owners, signers=self.plan.owners, signatures=[bytes(64)] * CHUNKS)

    @cached_property
    def records(self) -> list[Record]:
        """The records that can be put to the vote."""
        return [
            a_record(members=self.plan.members, result_root=index_root(index), state_digest=ZERO_HASH)
            for index in self.indices
        ]

    @cached_property
    def names(self) -> dict[bytes, int]:
        """The number of a record, by its hash."""
        return {record_hash(record): number for number, record in enumerate(self.records)}

    def hash(self, record: int) -> Hash:
        """The hash of a record."""
        return record_hash(self.records[record])

    def state(self, seat: int, kept: VoterState | None) -> RoundState:
        """What a peer knows that has begun the round with `kept` on its disk, heard all READYs and holds both results."""
        state = RoundState(self.peers[seat], self.settings, self.base, 0.0, kept, LatenessMemory(), abstains=False)
        state.outer = ZERO_HASH
        state.obtained = {record.result_root for record in self.records}
        for peer, (ready, signature) in self.readys.items():
            state.closing.add(peer, ready, signature)
        return state

    # -- seats and peers ----------------------------------------------------------------------------------------------

    def ballot(self, key: BallotKey) -> Ballot:
        """The ballot, whose members are those of the plan."""
        return self.state(0, None).ballot(key.attempt, self.absent(key.absent), self.plan.members)

    def voters(self, absent: Seats) -> Seats:
        """Who votes without these."""
        stay = tuple(seat for seat in range(SEATS) if seat not in absent)
        return stay or tuple(range(SEATS))

    def away(self, seats: Seats) -> list[PeerId]:
        """The peers in these seats, sorted."""
        return sorted(self.peers[seat] for seat in seats)

    def absent(self, seats: Seats) -> list[str]:
        """The peers in these seats, as statements list them."""
        return [*self.away(seats)]

    def seats(self, peers: Sequence[str]) -> Seats:
        """The seats of these peers."""
        return tuple(sorted(self.peers.index(PeerId(peer)) for peer in peers))

    def view(self, absent: Seats) -> View:
        """How everybody looks to a peer that takes those in `absent` for gone."""
        return {peer: SILENT if seat in absent else AT_WORK for seat, peer in enumerate(self.peers)}

    # -- statements ---------------------------------------------------------------------------------------------------

    def lock_name(self, key: LockKey | None) -> LockName | None:
        """The name of a lock in a view change."""
        if key is None:
            return None
        return LockName(attempt=key.attempt, absent=self.absent(key.absent), record_hash=self.hash(key.record))

    def lock_key(self, name: LockName | None) -> LockKey | None:
        """The key of a lock that a view change names."""
        return None if name is None else LockKey(name.attempt, self.seats(name.absent), self.names[name.record_hash])

    def key_of_view_change(self, view_change: ViewChange) -> ViewChangeKey:
        """What a view change says, in short."""
        return ViewChangeKey(
            view_change.attempt,
            self.seats(view_change.absent),
            self.lock_key(view_change.lock),
            self.lock_key(view_change.reduced),
        )

    def key_of_vote(self, vote: Vote) -> VoteKey:
        """What a vote says, in short."""
        return VoteKey(vote.step, vote.attempt, self.seats(vote.absent), self.names[vote.record_hash])

    def view_change_body(self, key: ViewChangeKey) -> ViewChange:
        """The view change of a peer that holds all READYs."""
        lock, reduced = self.lock_name(key.lock), self.lock_name(key.reduced)
        return a_view_change(key.attempt, *self.away(key.absent), on=self.base, held=self.peers, lock=lock, reduced=reduced)

    def view_change(self, seat: int, key: ViewChangeKey) -> bytes:
        """A signed view change as it travels."""
        raw = self._view_changes.get((seat, key))
        if raw is None:
            raw = self._view_changes[seat, key] = signed(self.peers[seat], self.view_change_body(key))
        return raw

    def signature(self, seat: int, key: VoteKey) -> bytes:
        """The signature of a vote."""
        signature = self._votes.get((seat, key))
        if signature is None:
            vote = a_vote(key.attempt, *self.away(key.absent), record=self.hash(key.record), step=key.step)
            signature = self._votes[seat, key] = signature_of(self.peers[seat], vote)
        return signature

    def certificate(self, key: VoteKey, votes: dict[int, VoteKey]) -> Certificate:
        """A certificate that claims `key` of these votes, by seat, which may say something else."""
        signatures = [
            Signature(peer=self.peers[seat], signature=self.signature(seat, votes[seat]))
            for seat in sorted(votes, key=lambda seat: self.peers[seat])
        ]
        return Certificate(attempt=key.attempt, absent=self.absent(key.absent), votes=signatures)

    def forged(self, key: VoteKey) -> Certificate:
        """A certificate of all voters, none of whose signatures holds."""
        peers = sorted(self.peers[seat] for seat in self.voters(key.absent))
        signatures = [Signature(peer=peer, signature=bytes(64)) for peer in peers]
        return Certificate(attempt=key.attempt, absent=self.absent(key.absent), votes=signatures)

    def lock(self, record: int, proof: Certificate) -> Lock:
        """The lock on a record that this proves."""
        return Lock(record=self.records[record], index=self.indices[record], provenance=self.provenance, proof=proof)

    def record_proposal(
        self, ballot: BallotKey, record: int, view_changes: list[bytes], proof: Certificate | None
    ) -> RecordProposal:
        """A record, put to the vote."""
        return RecordProposal(
            attempt=ballot.attempt,
            absent=self.absent(ballot.absent),
            record=self.records[record],
            index=self.indices[record],
            provenance=self.provenance,
            view_changes=view_changes,
            proof=proof,
        )
