"""Ballots, and the rules that make them safe: pure functions with the same results at every peer.

A ballot is one attempt to agree on a record, with one proposer and one quorum.  The first part of the module defines
ballots, the second the justification of a proposal, the third the obligations of a voter, and the fourth the checks of plans
and records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base, RoundSettings
from protocol.chain.electorate import tolerated
from protocol.chain.records import quorum_of, record_hash, verify_members, verify_record, verify_votes
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_VIEW_CHANGE_BYTES, Envelope, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    ChunkResult,
    Lock,
    LockName,
    Member,
    Plan,
    Provenance,
    Ready,
    Record,
    RecordProposal,
    Step,
    ViewChange,
    Vote,
    VoterState,
    mask_of,
    unpack,
)

MAX_ATTEMPT = 1 << 40
"""Exclusive upper bound on the number of an attempt."""


@dataclass(frozen=True)
class Ballot:
    """One attempt to agree on a record on `base`, without the `absent` electors (sorted).

    members: the members of the plan, which vote if all electors are absent or there are none.  Ballots are ordered by
    attempt.  Each ballot has one proposer, so proposers need no order.
    """

    base: Base
    attempt: int
    absent: tuple[PeerId, ...] = ()
    members: tuple[PeerId, ...] = ()

    @cached_property
    def voters(self) -> tuple[PeerId, ...]:
        """The electors that are not absent; the members if no elector is left."""
        stay = tuple(peer for peer in self.base.electors if peer not in self.absent)
        return stay or self.members

    @property
    def quorum(self) -> int:
        """Number of votes of one step that certify a record."""
        return quorum_of(self.base, self.voters, self.absent)

    @property
    def some_honest(self) -> int:
        """Smallest number of voters that must include an honest one if fewer than a third of the voters are liars."""
        return 1 if self.members else tolerated(len(self.voters)) + 1

    @cached_property
    def proposer(self) -> PeerId:
        """The voter that may propose in this ballot."""
        voters = self.base.in_turn(self.voters)
        return voters[self.attempt % len(voters)]

    def may_propose(self, peer: PeerId) -> bool:
        """Return True if we may accept a proposal from this peer.

        Members that vote may see different peers ready, and so draw different proposers.  So any member may propose in that
        case, and the votes decide.
        """
        return peer in self.members if self.members else peer == self.proposer

    @property
    def is_sound(self) -> bool:
        """True if `absent` names electors, sorted, each once, and the attempt is below `MAX_ATTEMPT`."""
        names = list(self.absent) == sorted(set(self.absent)) and set(self.absent) <= set(self.base.electors)
        return names and self.attempt < MAX_ATTEMPT


def held_mask(electors: Sequence[PeerId], held: Sequence[PeerId]) -> bytes:
    """Return a mask with bit i set if the i-th elector is in `held`; it is empty if there are no electors."""
    return mask_of([number for number, peer in enumerate(electors) if peer in held], len(electors))


def held_in(electors: Sequence[PeerId], mask: bytes) -> set[PeerId] | None:
    """Return the electors in a mask; None if the mask is not for this number of electors."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (len(electors) + 7) // 8 or bits >> len(electors):
        return None
    return {peer for number, peer in enumerate(electors) if bits >> number & 1}


# ------------------------------------------------------------------------------------------------------------------------
# Justification of a ballot: the signed view changes of a quorum, and the proof of the highest lock that they name.
#
# A voter that has sent a view change for an attempt does not vote in lower attempts.  So if a record was certified in a
# lower ballot, a quorum had locked itself on it, and an honest signer in any quorum of view changes names this lock or a
# higher one.  A record proposal must carry on the highest lock that its view changes name, and show the proof of this lock.
# If the view changes name no lock, no record was certified before, and any record may be proposed.  (PBFT's view change:
# Castro and Liskov 1999, section 4.4; the lock is Tendermint's: arXiv 1807.04938.)


@dataclass(frozen=True)
class Justification:
    """Decoded view changes of a quorum for one ballot."""

    ballot: Ballot
    view_changes: dict[PeerId, ViewChange]

    def highest_locks(self) -> list[LockName]:
        """Return the locks of the highest attempt, one of which must be carried on; empty if the view changes name none.

        Locks of the whole electorate take precedence over locks of a part, which bind only ballots of the same part.
        """
        return highest([view_change.lock for view_change in self.view_changes.values()]) or highest(
            [
                view_change.reduced
                for view_change in self.view_changes.values()
                if view_change.reduced is not None and tuple(view_change.reduced.absent) == self.ballot.absent
            ]
        )

    def held(self) -> set[PeerId]:
        """Return the electors that a plan must not leave out."""
        return demanded(self.ballot, self.view_changes.values())

    def takes_up(self, plan: bytes) -> bool:
        """Return True if an honest voter accepted this plan in an earlier attempt and still keeps it."""
        return sum(view_change.plan == plan for view_change in self.view_changes.values()) >= self.ballot.some_honest

    def allows_plan(self, plan: Plan, max_members: int) -> bool:
        """Return True if the proposer did not leave out an elector arbitrarily.

        The plan must include every elector in `held`, be full of electors, or have been accepted before.
        """
        left_out = self.held() - {PeerId(member.peer) for member in plan.members}
        full = len(plan.members) == max_members and all(m.peer in self.ballot.base.electors for m in plan.members)
        return not left_out or full or self.takes_up(plan_hash(plan))


def demanded(ballot: Ballot, view_changes: Iterable[ViewChange]) -> set[PeerId]:
    """Return the electors whose READY some honest voter holds: too many voters name them for all to be liars."""
    named = Counter(peer for view_change in view_changes for peer in held_in(ballot.base.electors, view_change.held) or ())
    return {peer for peer, count in named.items() if count >= ballot.some_honest}


def highest(locks: Sequence[LockName | None]) -> list[LockName]:
    """Return the locks of the highest attempt."""
    named = [lock for lock in locks if lock is not None]
    top = max((lock.attempt for lock in named), default=0)
    return [lock for lock in named if lock.attempt == top]


def check_view_change(ballot: Ballot, view_change: ViewChange) -> str | None:
    """Return the reason why this view change does not count in the ballot; None if it counts."""
    base = ballot.base
    if (view_change.round, view_change.base, view_change.attempt) != (base.round, base.tip, ballot.attempt):
        return "a view change of another ballot"
    if tuple(view_change.absent) != ballot.absent:
        return "a view change with other absent electors"
    if held_in(base.electors, view_change.held) is None:
        return "a view change that holds READYs of non-electors"
    return flaw_of_locks(view_change)


def flaw_of_locks(view_change: ViewChange) -> str | None:
    """Return the reason why no honest elector names these locks in a view change; None if an honest elector may."""
    locks = [lock for lock in (view_change.lock, view_change.reduced) if lock is not None]
    if any(lock.attempt >= view_change.attempt for lock in locks):
        return "a view change with a lock that is not of a lower attempt"
    if (view_change.lock is not None and view_change.lock.absent) or (
        view_change.reduced is not None and not view_change.reduced.absent
    ):
        return "a view change that confuses a lock of the whole electorate with one of a part"
    return None


def justify(run: Hash, ballot: Ballot, view_changes: Sequence[bytes]) -> Justification:
    """Decode the view changes of a proposal or record proposal; raise `Malformed` unless they are a quorum of the ballot."""
    if len(view_changes) > len(ballot.voters):
        raise Malformed("more view changes than voters")
    opened: dict[PeerId, ViewChange] = {}
    for raw in view_changes:
        sender, body, _ = unpack(raw, run, max_bytes=MAX_VIEW_CHANGE_BYTES)
        if not isinstance(body, ViewChange) or sender in opened or sender not in ballot.voters:
            raise Malformed("a quorum with a view change from a non-voter, or with two from one voter")
        flaw = check_view_change(ballot, body)
        if flaw is not None:
            raise Malformed(flaw)
        opened[sender] = body
    if len(opened) < ballot.quorum:
        raise Malformed(f"{len(opened)} of the {ballot.quorum} view changes that it needs")
    return Justification(ballot, opened)


def check_lock(run: Hash, ballot: Ballot, record: Record, lock: LockName, proof: Certificate) -> None:
    """Raise `Malformed` unless `proof` proves `lock`: a quorum of first votes for this record."""
    if (proof.attempt, proof.absent) != (lock.attempt, lock.absent) or record_hash(record) != lock.record_hash:
        raise Malformed("a proof of another lock")
    verify_votes(run, ballot.base, record, proof, Step.FIRST)


def carries_lock(run: Hash, justification: Justification, record: Record, proof: Certificate | None) -> bool:
    """Return True if the proposal of `record` carries on a lock; raise `Malformed` if a required lock is missing.

    A lock is required if the view changes name one.  proof: the proof of the lock in the record proposal.
    """
    locks, name = justification.highest_locks(), record_hash(record)
    if not locks:
        if proof is not None:
            raise Malformed("a proof of a lock that its view changes do not name")
        return False
    lock = next((lock for lock in locks if lock.record_hash == name), None)
    if lock is None or proof is None:
        raise Malformed("it does not carry on the highest lock that its view changes name")
    check_lock(run, justification.ballot, record, lock, proof)
    return True


# ------------------------------------------------------------------------------------------------------------------------
# Rules that bind an elector at one tip: pure functions over `VoterState`, its voter state on disk.
#
# * The attempts of an elector only increase.  A view change for an attempt, or a vote in it, ends all lower attempts.
# * In an attempt an elector casts one first vote and one second vote, for one record, with one list of absent electors.
# * A second vote needs a prevote certificate, which is a quorum of first votes, and locks the voter on the record.  Every
#   later view change names the lock, until a lock of a higher attempt replaces it.
# * A lock of a part never replaces a lock of the whole electorate; a lock of a part binds only ballots of the same part.


def blank(base: Base) -> VoterState:
    """Return the voter state of an elector that has signed nothing yet."""
    return VoterState(
        round=base.round, base=base.tip, attempt=0, absent=[], first=None, second=None, lock=None, reduced=None
    )


def enter(kept: VoterState, attempt: int) -> VoterState:
    """Return the voter state after entering `attempt`, which must not be lower than the last attempt."""
    assert attempt >= kept.attempt, "attempts only grow"
    if attempt == kept.attempt:
        return kept
    return kept.model_copy(update={"attempt": attempt, "absent": [], "first": None, "second": None})


def name_of(lock: Lock | None) -> LockName | None:
    """Return the name of a lock, for use in a view change."""
    if lock is None:
        return None
    return LockName(attempt=lock.proof.attempt, absent=lock.proof.absent, record_hash=record_hash(lock.record))


def view_change_of(kept: VoterState, ballot: Ballot, held: list[PeerId], plan: Hash | None) -> ViewChange | None:
    """Return our view change for `ballot`, which we have entered; None if we hold a lock of its attempt already."""
    assert ballot.attempt == kept.attempt, "a view change follows the stored state"
    lock, reduced = name_of(kept.lock), name_of(kept.reduced)
    if any(name is not None and name.attempt >= ballot.attempt for name in (lock, reduced)):
        return None
    return ViewChange(
        round=kept.round,
        base=kept.base,
        attempt=ballot.attempt,
        absent=list(ballot.absent),
        held=held_mask(ballot.base.electors, held),
        plan=plan,
        lock=lock,
        reduced=reduced,
    )


def objection_to_vote(kept: VoterState, step: Step, attempt: int, absent: list[str], record: Hash) -> str | None:
    """Return the reason why our earlier statements forbid this vote; None if they do not.

    The same vote may be cast again.
    """
    if attempt < kept.attempt:
        return f"attempt {kept.attempt} was entered"
    if attempt > kept.attempt:
        return None
    cast = [vote for vote in (kept.first, kept.second) if vote is not None]
    if cast and list(kept.absent) != absent:
        return "we voted with other electors absent"
    own = kept.first if step is Step.FIRST else kept.second
    if own is not None and own != record:
        return "we voted for another record in this attempt"
    return None


def objection_of_lock(kept: VoterState, proposal: RecordProposal) -> str | None:
    """Return the reason why our lock forbids a first vote for this justified record proposal; None if it does not.

    In a ballot of the whole electorate, the view changes of a quorum suffice: if none names our lock, the locked record was
    not certified.  A ballot of a part has no such quorum.
    """
    if proposal.absent and kept.lock is not None and kept.lock.record != proposal.record:
        return "we are locked on another record by the whole electorate"
    return None


def cast_first(kept: VoterState, proposal: RecordProposal) -> tuple[VoterState, Vote]:
    """Cast the first vote for a record proposal that nothing forbids; return the new voter state and the vote."""
    name = record_hash(proposal.record)
    assert objection_to_vote(kept, Step.FIRST, proposal.attempt, list(proposal.absent), name) is None
    kept = enter(kept, proposal.attempt).model_copy(update={"absent": proposal.absent, "first": name})
    return kept, _vote(kept, Step.FIRST, name)


def cast_second(kept: VoterState, proposal: RecordProposal, proof: Certificate) -> tuple[VoterState, Vote]:
    """Cast the second vote for a record proposal; return the new voter state, which is locked on the record, and the vote.

    proof: a quorum of first votes for the record.
    """
    name = record_hash(proposal.record)
    assert objection_to_vote(kept, Step.SECOND, proposal.attempt, list(proposal.absent), name) is None
    assert (proof.attempt, proof.absent) == (proposal.attempt, proposal.absent)
    lock = Lock(record=proposal.record, index=proposal.index, provenance=proposal.provenance, proof=proof)
    update = {"absent": proposal.absent, "second": name, "reduced" if proposal.absent else "lock": lock}
    kept = enter(kept, proposal.attempt).model_copy(update=update)
    return kept, _vote(kept, Step.SECOND, name)


def _vote(kept: VoterState, step: Step, record: Hash) -> Vote:
    return Vote(round=kept.round, base=kept.base, attempt=kept.attempt, step=step, absent=kept.absent, record_hash=record)


# ------------------------------------------------------------------------------------------------------------------------
# Checks of plans, records and record proposals that need only the statement, the base and the settings of the round.
#
# A flaw is a phrase for the log.  `protocol.agreement.voter` checks whether the ballot permits the statement.


UNEQUAL = 1.5
"""Largest share of the chunks that one member may own if liars are tolerated, as a multiple of its equal share."""
FEWEST = 4
"""Smallest number of electors that tolerates a liar; with fewer, a member may own all chunks."""


def flaw_of_plan(settings: RoundSettings, base: Base, plan: Plan) -> str | None:
    """Return the reason why this cannot be a plan of the round on `base`; None if it can."""
    if plan.round != base.round or plan.base != base.tip:
        return "its plan is for another round"
    if plan.fragment != base.fragment:
        return f"its plan is for fragment {plan.fragment}, not {base.fragment}"
    if len(plan.owners) != settings.chunks:
        return f"its plan has {len(plan.owners)} chunks, not {settings.chunks}"
    if max(plan.owners) >= len(plan.members):
        return "a chunk of its plan has an owner that is not a member"
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
    """Return the reason why this record, with its provenance, cannot be the next one; None if it can.

    The signatures of the provenance are not checked (`average_statement`).
    """
    try:
        verify_record(settings, record, index, base)
    except Malformed as error:
        return str(error)
    sizes = (provenance.owners, provenance.signers, provenance.signatures)
    if any(len(size) != settings.chunks for size in sizes):
        return "its provenance is not of this many chunks"
    if max(max(provenance.owners), max(provenance.signers)) >= len(record.members):
        return "its provenance names an owner or a signer that is not a member"
    if _is_unfair(settings, base, record.members, provenance.owners):
        return "a member of its plan owns more than its share of the chunks"
    return None


def _is_unfair(settings: RoundSettings, base: Base, members: Sequence[Member], owners: bytes) -> bool:
    """Return True if one of these members owns more chunks than one member may."""
    electors = sum(member.peer in base.electors for member in members)
    return max(Counter(owners).values()) > most_chunks(settings.chunks, len(base.electors), electors)


def most_chunks(chunks: int, electors: int, members: int) -> int:
    """Return the number of chunks that one member may own.

    electors: the number of electors of the tip.  members: the number of these electors in the plan.

    The result is `UNEQUAL` times the equal share of an elector, so that the liars tolerated among four or more electors own
    less than half of the chunks, whichever electors are missing.  The result is larger only if the electors in the plan are
    too few to own all chunks, or if there are at most twice as many chunks as tolerated liars.
    """
    if electors < FEWEST or not members:
        return chunks
    return min(chunks, max(ceil(UNEQUAL * chunks / electors), ceil(chunks / members)))


def plan_of(record: Record, provenance: Provenance) -> Plan:
    """Return the plan of the exchange that produced this record."""
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


def average_statement(
    run: Hash, plan: Hash, members: Sequence[Member], chunk: int, entry: ChunkEntry, provenance: Provenance
) -> Envelope:
    """Return the signed `ChunkResult` of a chunk; the signature is not checked.  plan: the hash of the plan."""
    body = ChunkResult(plan=plan, chunk=chunk, entry=entry)
    signer = PeerId(members[provenance.signers[chunk]].peer)
    return rebuild(run, ChunkResult.KIND, signer, body.encode(), provenance.signatures[chunk])


def is_in(plan: Plan, peer: PeerId, ready: Ready | None) -> bool:
    """Return True if the plan has exactly the contribution that `peer` committed to in this READY.

    A contribution from before a restart does not count, even if it is the same: before the restart the peer may have signed
    averages of this plan that it does not remember.
    """
    said = (ready.incarnation, ready.serial, ready.root, ready.tokens) if ready is not None else None
    return any(
        member.peer == peer and (member.incarnation, member.serial, member.root, member.tokens) == said
        for member in plan.members
    )
