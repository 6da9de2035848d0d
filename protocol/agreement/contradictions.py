"""Statements that no honest peer signs, alone or together with another statement of the same peer.

Pure.  Two rules cover pairs of statements:

* For each slot (`slot`) an honest peer signs one statement: one READY for each serial, one average for each chunk of a plan,
  one batch of rollouts for each number; and in each attempt on a tip one vote in each step, one proposal and one record
  proposal.  Its votes are on disk before they are sent, and after a restart it leads no attempt in which it took part
  before.
* The view change of an honest elector names the lock of its last second vote before that attempt (`hides_lock`).

A voter also breaks the rules if it votes in an attempt that is lower than one that it has entered, but a vote does not show
the time at which it was cast.  A second vote of this kind contradicts the view changes for later attempts, which do not name
its lock; a first vote contradicts nothing.

If members vote in place of electors, the rules about locks and proposers do not hold, because peers do not agree on the
members.  So these rules apply only to electors of the tip.
"""

from __future__ import annotations

from protocol.agreement.ballot import Ballot, carries_lock, flaw_of_locks, justify, plan_of
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import Hash
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
)
from protocol.wire.rollouts import RolloutBatch

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
            return ("motion", tip_of(body), body.attempt)
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
    return any(
        _is_of_another_plan(first, second) or hides_lock(first, second) for first, second in ((one, other), (other, one))
    )


def _is_of_another_plan(proposal: Body, motion: Body) -> bool:
    """Return True if both are of one attempt, but the proposed record was made by another plan than the proposal's."""
    if not isinstance(proposal, Proposal) or not isinstance(motion, RecordProposal) or proposal.attempt != motion.attempt:
        return False
    return plan_hash(proposal.plan) != plan_hash(plan_of(motion.record, motion.provenance))


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
        return "it takes others than electors for absent, or is of an attempt that has no ballot"
    if not ballot.may_propose(sender):
        return "it was not its turn"
    try:
        justification = justify(run, ballot, body.rolls)
        if isinstance(body, RecordProposal) and carries_lock(run, justification, body.record, body.proof):
            return None
    except Malformed as error:
        return str(error)
    if justification.highest_locks():
        return "its rolls name a lock, which is to be put to the vote"
    plan: Plan = body.plan if isinstance(body, Proposal) else plan_of(body.record, body.provenance)
    return None if justification.allows_plan(plan, max_members) else "its plan leaves out an elector that was ready"


# -- votes in certificates ------------------------------------------------------------------------------------------------


def certified(body: Body) -> tuple[Vote, Certificate] | None:
    """Return (vote that all signers of the certificate in `body` cast, certificate); None if there is no certificate."""
    match body:
        case PrevoteCertificate():
            return vote_in(body.certificate, Step.FIRST, (body.round, body.base), body.record_hash), body.certificate
        case Commit():
            tip, name = (body.record.round, body.record.previous), record_hash(body.record)
            return vote_in(body.certificate, Step.SECOND, tip, name), body.certificate
        case Lock() | RecordProposal() if body.proof is not None:
            tip, name = (body.record.round, body.record.previous), record_hash(body.record)
            return vote_in(body.proof, Step.FIRST, tip, name), body.proof
    return None


def vote_in(certificate: Certificate, step: Step, tip: Tip, record: bytes) -> Vote:
    """Return the vote that all signers of a certificate cast."""
    return Vote(
        round=tip[0],
        base=tip[1],
        attempt=certificate.attempt,
        step=step,
        absent=certificate.absent,
        record_hash=record,
    )
