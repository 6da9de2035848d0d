"""A ballot: one attempt to agree on a record, with one proposer and one quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base
from protocol.chain.electorate import tolerated
from protocol.chain.records import quorum_of, record_hash, verify_votes
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_VIEW_CHANGE_BYTES
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, LockName, Plan, Record, Step, ViewChange, mask_of, unpack

RATIFYING = 1 << 40
"""Last attempt of every tip, in which electors ratify a record (`protocol.agreement.ratification`), without a ballot."""


@dataclass(frozen=True)
class Ballot:
    """One attempt to agree on a record on `base`, without the `absent` electors (sorted).

    members: the members of the plan that vote when all electors are absent or there are none.  Ballots are ordered by
    attempt.  Each has one proposer, so proposers need no order.
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
        """Number of votes of one step that certify."""
        return quorum_of(self.base, self.voters, self.absent)

    @property
    def some_honest(self) -> int:
        """Number of voters that cannot all be liars if fewer than a third are."""
        return 1 if self.members else tolerated(len(self.voters)) + 1

    @cached_property
    def proposer(self) -> PeerId:
        """The voter whose turn it is to propose."""
        voters = self.base.ranked(self.voters)
        return voters[self.attempt % len(voters)]

    def may_propose(self, peer: PeerId) -> bool:
        """Return True if this peer's proposal may be followed.

        Members that vote may see different peers ready, and so draw different proposers.  Any member may propose then, and
        the votes decide.
        """
        return peer in self.members if self.members else peer == self.proposer

    @property
    def is_sound(self) -> bool:
        """True if `absent` names electors, sorted, each once, and the attempt is below `RATIFYING`."""
        names = list(self.absent) == sorted(set(self.absent)) and set(self.absent) <= set(self.base.electors)
        return names and self.attempt < RATIFYING


def held_mask(electors: Sequence[PeerId], held: Sequence[PeerId]) -> bytes:
    """Return a mask with bit i set if the i-th elector is in `held`; it is empty if there are no electors."""
    return mask_of([number for number, peer in enumerate(electors) if peer in held], len(electors))


def held_in(electors: Sequence[PeerId], mask: bytes) -> set[PeerId] | None:
    """Return the electors of a mask; None if the mask is not for this many electors."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (len(electors) + 7) // 8 or bits >> len(electors):
        return None
    return {peer for number, peer in enumerate(electors) if bits >> number & 1}


# ------------------------------------------------------------------------------------------------------------------------
# Justification of a ballot: the signed rolls of a quorum, and the proof of the highest lock that they name.
#
# Pure.  A voter that has sent a roll for an attempt votes in no lower one.  So if a record was certified in a lower ballot,
# a quorum had locked itself on it, and an honest signer in any quorum of rolls names this lock or a higher one.  A motion
# must carry on the highest lock that its rolls name, and show its proof.  If they name none, no record was certified before,
# and any record may be put to the vote.  (PBFT's view change: Castro and Liskov 1999, section 4.4; the lock is Tendermint's:
# arXiv 1807.04938.)


@dataclass(frozen=True)
class Justification:
    """Opened rolls of a quorum for one ballot."""

    ballot: Ballot
    rolls: dict[PeerId, ViewChange]

    def highest_locks(self) -> list[LockName]:
        """Return the locks of the highest attempt, one of which is to be carried on; empty if the rolls name none.

        Locks of the whole electorate come before locks of a part, which bind only ballots of the same part.
        """
        return highest([roll.lock for roll in self.rolls.values()]) or highest(
            [
                roll.reduced
                for roll in self.rolls.values()
                if roll.reduced is not None and tuple(roll.reduced.absent) == self.ballot.absent
            ]
        )

    def held(self) -> set[PeerId]:
        """Return the electors that a plan may not leave out."""
        return demanded(self.ballot, self.rolls.values())

    def takes_up(self, plan: bytes) -> bool:
        """Return True if an honest voter took this plan up in an earlier attempt and still stands by it."""
        return sum(roll.plan == plan for roll in self.rolls.values()) >= self.ballot.some_honest

    def allows_plan(self, plan: Plan, max_members: int) -> bool:
        """Return True if the proposer left no elector out at will.

        The plan must have every elector in `held`, have all its places taken by electors, or have been taken up before.
        """
        left_out = self.held() - {PeerId(member.peer) for member in plan.members}
        full = len(plan.members) == max_members and all(m.peer in self.ballot.base.electors for m in plan.members)
        return not left_out or full or self.takes_up(plan_hash(plan))


def demanded(ballot: Ballot, rolls: Iterable[ViewChange]) -> set[PeerId]:
    """Return the electors whose READY some honest voter holds: more voters name them than can all be liars."""
    named = Counter(peer for roll in rolls for peer in held_in(ballot.base.electors, roll.held) or ())
    return {peer for peer, count in named.items() if count >= ballot.some_honest}


def highest(locks: Sequence[LockName | None]) -> list[LockName]:
    """Return the locks of the highest attempt."""
    named = [lock for lock in locks if lock is not None]
    top = max((lock.attempt for lock in named), default=0)
    return [lock for lock in named if lock.attempt == top]


def check_view_change(ballot: Ballot, roll: ViewChange) -> str | None:
    """Return the reason why this roll does not count in the ballot; None if it counts."""
    base = ballot.base
    if (roll.round, roll.base, roll.attempt) != (base.round, base.tip, ballot.attempt):
        return "a roll of another ballot"
    if tuple(roll.absent) != ballot.absent:
        return "a roll with other electors absent"
    if held_in(base.electors, roll.held) is None:
        return "a roll that holds READYs of others than electors"
    return flaw_of_locks(roll)


def flaw_of_locks(roll: ViewChange) -> str | None:
    """Return the reason why no honest elector names these locks in a roll; None if one may."""
    locks = [lock for lock in (roll.lock, roll.reduced) if lock is not None]
    if any(lock.attempt >= roll.attempt for lock in locks):
        return "a roll with a lock that is not of a lower attempt"
    if (roll.lock is not None and roll.lock.absent) or (roll.reduced is not None and not roll.reduced.absent):
        return "a roll that takes a part for the whole electorate"
    return None


def justify(run: Hash, ballot: Ballot, rolls: Sequence[bytes]) -> Justification:
    """Open the signed rolls of a proposal or a motion; raise `Malformed` if they are no quorum of this ballot."""
    if len(rolls) > len(ballot.voters):
        raise Malformed("more rolls than voters")
    opened: dict[PeerId, ViewChange] = {}
    for raw in rolls:
        sender, body, _ = unpack(raw, run, max_bytes=MAX_VIEW_CHANGE_BYTES)
        if not isinstance(body, ViewChange) or sender in opened or sender not in ballot.voters:
            raise Malformed("a quorum with a roll of somebody who does not vote, or votes twice")
        flaw = check_view_change(ballot, body)
        if flaw is not None:
            raise Malformed(flaw)
        opened[sender] = body
    if len(opened) < ballot.quorum:
        raise Malformed(f"{len(opened)} rolls of the {ballot.quorum} that it needs")
    return Justification(ballot, opened)


def check_lock(run: Hash, ballot: Ballot, record: Record, lock: LockName, proof: Certificate) -> None:
    """Raise `Malformed` unless `proof` shows that a quorum cast first votes for this record, as `lock` says."""
    if (proof.attempt, proof.absent) != (lock.attempt, lock.absent) or record_hash(record) != lock.record_hash:
        raise Malformed("a proof of another lock")
    verify_votes(run, ballot.base, record, proof, Step.FIRST)


def carries_lock(run: Hash, justification: Justification, record: Record, proof: Certificate | None) -> bool:
    """Return True if a motion for `record` carries on a lock; raise `Malformed` if its rolls name one and it does not.

    proof: the proof of the lock, as the motion shows it.
    """
    locks, name = justification.highest_locks(), record_hash(record)
    if not locks:
        if proof is not None:
            raise Malformed("a proof of a lock that its rolls do not name")
        return False
    lock = next((lock for lock in locks if lock.record_hash == name), None)
    if lock is None or proof is None:
        raise Malformed("it does not carry on the highest lock that its rolls name")
    check_lock(run, justification.ballot, record, lock, proof)
    return True
