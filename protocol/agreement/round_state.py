"""State of a round that the proposer and the voter of one peer share."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.agreement.ballot import Ballot, blank, is_in
from protocol.agreement.events import View
from protocol.agreement.policy import ClosingPolicy
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.lateness import SPREAD, Patience
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import voters_of
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Member, Plan, Provenance, VoterState

PATIENCE_S = 3.0
"""Seconds that a proposer gets for each step; doubled, `MAX_DOUBLINGS` times at most, each time that we lost patience."""
MAX_DOUBLINGS = 2
MAX_LEAD = 16
"""Attempts by which a single voter may take us ahead."""


class RoundState:
    """One peer's knowledge of the running round.  `now` is trio time.

    attempt: the attempt that we think is due; after a restart it is above all attempts that we took part in, for a proposer
    forgets its proposals.  entered: the last attempt that is on disk, -1 for none.  losses: how often we lost patience.
    plan: the plan taken up last.  planner: its proposer.  outer: the name of our outer state, None until it is hashed.
    kept: our voter state, which binds us, as it is on disk.  results: the results of our exchanges, by plan.  obtained: the
    roots of the results that are on disk.  decided: the certified record once its result is on disk.  abstains: True if we
    have lost our voter state at this tip; we say nothing as a voter then.
    """

    def __init__(
        self,
        me: PeerId,
        settings: RoundSettings,
        base: Base,
        now: float,
        kept: VoterState | None,
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
        """Return a ballot of this round.  members: the members of its plan, who vote if no elector is left."""
        voters = () if set(self.base.electors) - set(absent) else voters_of(self.base, members, absent)
        return Ballot(self.base, attempt, tuple(map(PeerId, absent)), voters)

    # -- patience -----------------------------------------------------------------------------------------------------

    def move(self, now: float) -> None:
        """Note progress: patience begins anew."""
        self._moved_at = max(self._moved_at, now)

    def go_to_attempt(self, attempt: int, now: float) -> None:
        """Make this attempt the due one, unless a later attempt is; patience begins anew with it."""
        if attempt > self.attempt:
            self.attempt = attempt
            self.move(now)

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last progress."""
        return now - self._moved_at

    def has_patience(self, now: float, *, voting: bool) -> bool:
        """Return True if the last progress is no longer ago than this attempt is given.

        voting: True if a record is put to the vote: others are given as long to obtain its result as our exchange took.  A
        proposer that still waits in its own exchange when ours is over is told the result (`Report`); its line may be slower
        than ours.
        """
        more_s = self.settings.stall_s if self.plan is not None else 0.0
        if self._exchange_s is not None:
            is_its = self.attempt <= self._taken_in  # the proposer of a later attempt has no exchange to end
            more_s = self._exchange_s * (1.0 if voting else SPREAD * is_its)
        return self.idle_s(now) <= more_s + PATIENCE_S * 2.0 ** min(self.losses, MAX_DOUBLINGS)

    def take_up(self, plan: Plan, attempt: int, now: float) -> None:
        """Follow this plan, of this attempt, from now on."""
        self._taken_in = attempt
        if plan != self.plan:
            self.plan, self._taken_at, self._exchange_s = plan, now, None
        self.move(now)

    def note_result(self, plan: Hash, entries: tuple[ChunkEntry, ...], provenance: Provenance, now: float) -> None:
        """Keep the result of the exchange of the plan with this hash."""
        self.results[plan] = (entries, provenance)
        if self.plan is not None and plan == plan_hash(self.plan):
            self._exchange_s = now - self._taken_at
        self.move(now)

    # -- judging ------------------------------------------------------------------------------------------------------

    def is_for_this_round(self, round: int, base: bytes) -> bool:
        """Return True if a statement about round `round` on the tip `base` is about our round."""
        return round == self.base.round and base == self.base.tip

    def standing_plan(self) -> Hash | None:
        """Return the plan that we took up, while our contribution to it is alive and its result is not in doubt."""
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
        """Return the electors whose READY for our state we hold."""
        return self.closing.held(view, self.outer)


class Doubts:
    """Results with an average that was disproved, for which we do not vote, and results that could not be accounted for.

    A result that could not be accounted for is checked again when it is put to the vote again.  Averages that cannot be
    checked because their members are gone are accepted then: else a death could keep a round from ending.
    """

    def __init__(self) -> None:
        self._disproved: dict[tuple[int, bytes], None] = {}
        self._unaccountable: dict[bytes, None] = {}

    def disprove(self, chunk: int, hash: bytes) -> None:
        """Record that this average of this chunk is proven wrong."""
        self._disproved[chunk, hash] = None

    def suspect(self, root: bytes) -> None:
        """Record that the result with this root could not be accounted for."""
        self._unaccountable[root] = None

    def is_false(self, index: Sequence[ChunkEntry]) -> bool:
        """Return True if a result with this index has an average that is proven wrong."""
        return bool(self._disproved) and any((chunk, entry.hash) in self._disproved for chunk, entry in enumerate(index))

    def has_suspected(self, root: bytes) -> bool:
        """Return True if the result with this root could not be accounted for before."""
        return root in self._unaccountable


# ------------------------------------------------------------------------------------------------------------------------
# Lock, plan and certified record: a round carries each of them on while the peers that it needs are here.  Pure.
#
# If members vote, only crashes are tolerated, and so many members may be gone that no quorum of them can carry on a lock or
# a plan.  The lock or plan is let go then: else their deaths would end a run that has just begun.


def carried_lock(state: RoundState, ballot: Ballot, view: View) -> VoterState:
    """Return our voter state, without a lock that cannot be carried on."""
    kept = state.kept
    lock = kept.reduced if ballot.absent else kept.lock
    if lock is None or _are_here(state, lock.record.members, ballot, view):
        return kept
    return kept.model_copy(update={"lock": None, "reduced": None})


def carried_plan(state: RoundState, ballot: Ballot, view: View) -> Hash | None:
    """Return the plan that we took up, if it stands and can be carried on."""
    plan = state.plan
    return state.standing_plan() if plan is not None and _are_here(state, plan.members, ballot, view) else None


def is_result_lost(state: RoundState, commit: Commit, view: View) -> bool:
    """Return True if all peers that may have the result of a certified record are gone.

    Then it is as if we had not heard of the record; if one of them comes back, it shows the record again.
    """
    members = (PeerId(member.peer) for member in commit.record.members)
    holders = {*state.base.electors, *members} - {state.me}
    return bool(holders) and all(state.closing.is_gone(peer, view) for peer in holders)


def _are_here(state: RoundState, members: Sequence[Member], ballot: Ballot, view: View) -> bool:
    """Return True if a quorum of these members is here, or members do not vote."""
    here = sum(not state.closing.is_gone(PeerId(member.peer), view) for member in members)
    return not ballot.members or here > len(members) // 2
