"""The state of a round that the proposer and the voter of one peer share."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.agreement.ballot import Ballot
from protocol.agreement.events import View
from protocol.agreement.patience import Patience
from protocol.agreement.policy import ClosingPolicy
from protocol.agreement.validation import is_in
from protocol.agreement.voting import blank
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.machine import SPREAD
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import voters_of
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Kept, Member, Plan, Provenance

PATIENCE_S = 3.0
"""Seconds that a proposer gets for each step; twice as many after each time that we lost patience in this round."""
MAX_DOUBLINGS = 2


class RoundState:
    """One peer's knowledge of the running round.  `now` is trio time.

    attempt: the one that we think is due; after a restart it is above all that we took part in, for a proposer forgets
    what it proposed.  entered: the last one that is on disk, -1 for none.  losses: how often we lost patience.  plan: the
    one taken up last.  planner: who proposed it.  outer: the name of our outer state, None until it is hashed.  kept: what
    we are bound by, as it is on disk.  results: of our exchanges, by plan.  obtained: the roots of the results that are on
    disk.  decided: the certified record once its result is on disk.  abstains: we have lost what binds us at this tip, and
    say nothing as a voter.
    """

    def __init__(
        self,
        me: PeerId,
        settings: RoundSettings,
        base: Base,
        now: float,
        kept: Kept | None,
        patience: Patience,
        *,
        abstains: bool,
    ) -> None:
        self.me, self.settings, self.base, self.abstains = me, settings, base, abstains
        self.closing = ClosingPolicy(me, settings, base, patience, now)
        self.doubts = Doubts()
        self.kept = kept if kept is not None and self.is_for_this_round(kept.round, kept.base) else blank(base)
        was_kept = kept is not None and self.kept == kept
        self.attempt = self.kept.attempt + was_kept
        self.entered = self.kept.attempt if was_kept else -1
        self.losses = 0
        self.plan: Plan | None = None
        self.planner = me
        self.outer: bytes | None = None
        self.decided: Commit | None = None
        self.results: dict[Hash, tuple[tuple[ChunkEntry, ...], Provenance]] = {}
        self.obtained: set[bytes] = set()
        self._moved_at = self._taken_at = now
        self._exchange_s: float | None = None
        self._taken_in = -1

    def ballot(self, attempt: int, absent: Sequence[str], members: Sequence[Member] = ()) -> Ballot:
        """A ballot of this round.  members: of its plan; they vote where no elector is left."""
        voters = () if set(self.base.electors) - set(absent) else voters_of(self.base, members, absent)
        return Ballot(self.base, attempt, tuple(map(PeerId, absent)), voters)

    # -- patience -----------------------------------------------------------------------------------------------------

    def move(self, now: float) -> None:
        """Something got further: patience begins anew."""
        self._moved_at = max(self._moved_at, now)

    def go_to_attempt(self, attempt: int, now: float) -> None:
        """This attempt is due, unless a later one is; patience begins anew with it."""
        if attempt > self.attempt:
            self.attempt = attempt
            self.move(now)

    def idle_s(self, now: float) -> float:
        """Seconds since something moved."""
        return now - self._moved_at

    def has_patience(self, now: float, *, voting: bool) -> bool:
        """Whether what moved last is not longer ago than this attempt is given.

        voting: a record is put to the vote: others are given as long to obtain it as our exchange took.  A proposer that
        waits in its own exchange, when ours is over, is told the result (`Report`); its line may be slower than ours.
        """
        more_s = self.settings.stall_s if self.plan is not None else 0.0
        if self._exchange_s is not None:
            is_its = self.attempt <= self._taken_in  # whoever is called after it has no exchange to end
            more_s = self._exchange_s * (1.0 if voting else SPREAD * is_its)
        return self.idle_s(now) <= more_s + PATIENCE_S * 2.0 ** min(self.losses, MAX_DOUBLINGS)

    def take_up(self, plan: Plan, attempt: int, now: float) -> None:
        """Follow this plan, of this attempt, from now on."""
        self._taken_in = attempt
        if plan != self.plan:
            self.plan, self._taken_at, self._exchange_s = plan, now, None
        self.move(now)

    def note_result(self, plan: Hash, entries: tuple[ChunkEntry, ...], provenance: Provenance, now: float) -> None:
        """What came of the exchange of the plan with this hash."""
        self.results[plan] = (entries, provenance)
        if self.plan is not None and plan == plan_hash(self.plan):
            self._exchange_s = now - self._taken_at
        self.move(now)

    # -- judging ------------------------------------------------------------------------------------------------------

    def is_for_this_round(self, round: int, base: bytes) -> bool:
        """Whether a statement about round `round` on the tip `base` is about ours."""
        return round == self.base.round and base == self.base.tip

    def standing_plan(self) -> Hash | None:
        """The plan that we took up, while our contribution to it is alive and its result is not in doubt."""
        plan = self.plan
        if plan is None:
            return None
        result = self.results.get(plan_hash(plan))
        if result is not None:
            return None if self.doubts.is_false(result[0]) else plan_hash(plan)
        is_member = any(member.peer == self.me for member in plan.members)
        alive = not is_member or is_in(plan, self.me, self.closing.ready_of(self.me))
        return plan_hash(plan) if alive else None

    def held(self, view: View) -> list[PeerId]:
        """The electors whose READY for our state we hold."""
        return self.closing.held(view, self.outer)


class Doubts:
    """Results with an average that was disproved, which we do not vote for; and results that could not be accounted for.

    What could not be accounted for is looked at again when it is put to the vote again, and then what cannot be checked,
    because its members are gone, is let pass: else a death could keep a round from ending.
    """

    def __init__(self) -> None:
        self._disproved: dict[tuple[int, bytes], None] = {}
        self._unaccountable: dict[bytes, None] = {}

    def disprove(self, chunk: int, hash: bytes) -> None:
        """This average of this chunk is proven wrong."""
        self._disproved[chunk, hash] = None

    def suspect(self, root: bytes) -> None:
        """The result with this root could not be accounted for."""
        self._unaccountable[root] = None

    def is_false(self, index: Sequence[ChunkEntry]) -> bool:
        """Whether a result with this index has an average that is proven wrong."""
        return bool(self._disproved) and any((chunk, entry.hash) in self._disproved for chunk, entry in enumerate(index))

    def has_suspected(self, root: bytes) -> bool:
        """Whether the result with this root could not be accounted for before."""
        return root in self._unaccountable


# ------------------------------------------------------------------------------------------------------------------------
# What a round carries on, while those that it needs are here: a lock, a plan, a certified record.  Pure.
#
# Where members vote, only crashes are tolerated, and so many of them may be gone that no quorum of them can carry on a lock
# or a plan.  It is let go then: else their deaths would end a run that has just begun.


def carried_lock(state: RoundState, ballot: Ballot, view: View) -> Kept:
    """What is kept, without a lock that cannot be carried on."""
    kept = state.kept
    lock = kept.reduced if ballot.absent else kept.lock
    if lock is None or _are_here(state, lock.record.members, ballot, view):
        return kept
    return kept.model_copy(update={"lock": None, "reduced": None})


def carried_plan(state: RoundState, ballot: Ballot, view: View) -> Hash | None:
    """The plan that we took up, if it stands and can be carried on."""
    plan = state.plan
    return state.standing_plan() if plan is not None and _are_here(state, plan.members, ballot, view) else None


def is_result_lost(state: RoundState, commit: Commit, view: View) -> bool:
    """Whether all who may have the result of a certified record are gone.

    Then it is as if we had not heard of the record; whoever of them comes back shows it again.
    """
    members = (PeerId(member.peer) for member in commit.record.members)
    holders = {*state.base.electors, *members} - {state.me}
    return bool(holders) and all(state.closing.is_gone(peer, view) for peer in holders)


def _are_here(state: RoundState, members: Sequence[Member], ballot: Ballot, view: View) -> bool:
    """Whether a quorum of these members is, or members do not vote."""
    here = sum(not state.closing.is_gone(PeerId(member.peer), view) for member in members)
    return not ballot.members or here > len(members) // 2
