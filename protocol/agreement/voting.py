"""Rules that bind an elector at one tip: pure functions over `VoterState`, the voter state on disk.

* An elector's attempts only grow.  A roll for an attempt, or a vote in it, ends all lower ones.
* In an attempt it casts one first vote and one second vote, for one record and with one list of absent electors.
* A second vote needs a proof of lock, which is a quorum of first votes, and locks the voter on the record.  Every later roll
  names the lock, until a lock of a higher attempt takes its place.
* A lock of a part never replaces a lock of the whole electorate; a lock of a part binds only ballots of the same part.
"""

from __future__ import annotations

from protocol.agreement.ballot import Ballot, held_mask
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Lock, LockName, RecordProposal, Step, ViewChange, Vote, VoterState


def blank(base: Base) -> VoterState:
    """Return the voter state of an elector that has said nothing yet."""
    return VoterState(
        round=base.round, base=base.tip, attempt=0, absent=[], first=None, second=None, lock=None, reduced=None
    )


def enter(kept: VoterState, attempt: int) -> VoterState:
    """Take part in `attempt`, which is no lower than the last one."""
    assert attempt >= kept.attempt, "attempts only grow"
    if attempt == kept.attempt:
        return kept
    return kept.model_copy(update={"attempt": attempt, "absent": [], "first": None, "second": None})


def name_of(lock: Lock | None) -> LockName | None:
    """Return the name of a lock, as a roll gives it."""
    if lock is None:
        return None
    return LockName(attempt=lock.proof.attempt, absent=lock.proof.absent, record_hash=record_hash(lock.record))


def view_change_of(kept: VoterState, ballot: Ballot, held: list[PeerId], plan: Hash | None) -> ViewChange | None:
    """Return our roll for `ballot`, which has been entered; None if we are locked in it, for it has moved on then."""
    assert ballot.attempt == kept.attempt, "a roll follows what is kept"
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


def objection_of_lock(kept: VoterState, motion: RecordProposal) -> str | None:
    """Return the reason why our lock forbids a first vote for this motion, whose justification holds; None if it does not.

    In a ballot of the whole electorate the rolls speak for us: if none names our lock, the lock certified nothing.  A ballot
    of a part has no such quorum.
    """
    if motion.absent and kept.lock is not None and kept.lock.record != motion.record:
        return "we are locked on another record by the whole electorate"
    return None


def cast_first(kept: VoterState, motion: RecordProposal) -> tuple[VoterState, Vote]:
    """Cast the first vote for a motion that nothing forbids; return the new voter state and the vote."""
    name = record_hash(motion.record)
    assert objection_to_vote(kept, Step.FIRST, motion.attempt, list(motion.absent), name) is None
    kept = enter(kept, motion.attempt).model_copy(update={"absent": motion.absent, "first": name})
    return kept, _vote(kept, Step.FIRST, name)


def cast_second(kept: VoterState, motion: RecordProposal, proof: Certificate) -> tuple[VoterState, Vote]:
    """Cast the second vote for a motion; return the new voter state, which is locked on it, and the vote.

    proof: a quorum of first votes for the motion.
    """
    name = record_hash(motion.record)
    assert objection_to_vote(kept, Step.SECOND, motion.attempt, list(motion.absent), name) is None
    assert (proof.attempt, proof.absent) == (motion.attempt, motion.absent)
    lock = Lock(record=motion.record, index=motion.index, provenance=motion.provenance, proof=proof)
    update = {"absent": motion.absent, "second": name, "reduced" if motion.absent else "lock": lock}
    kept = enter(kept, motion.attempt).model_copy(update=update)
    return kept, _vote(kept, Step.SECOND, name)


def _vote(kept: VoterState, step: Step, record: Hash) -> Vote:
    return Vote(round=kept.round, base=kept.base, attempt=kept.attempt, step=step, absent=kept.absent, record_hash=record)
