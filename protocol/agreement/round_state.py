"""Round state shared by the proposer and the voter of one peer."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.agreement.ballot import Ballot, blank, is_in
from protocol.agreement.policy import ClosingPolicy
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.lateness import SPREAD, LatenessMemory
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import voters_of
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Member, Plan, Provenance, VoterState

TIMEOUT_S = 3.0
"""Timeout (s) of a proposer for each step; doubled after each attempt given up, at most `MAX_DOUBLINGS` times."""
MAX_DOUBLINGS = 2
MAX_LEAD = 16
"""Number of attempts by which a single voter may advance us."""


class RoundState:
    """One peer's knowledge of the running round.  `now` is trio time.

    attempt: the attempt that is due in our view; after a restart it is above all attempts in which we took part, because a
    proposer forgets its proposals.  entered: the last attempt on disk, -1 for none.  losses: the number of attempts given up
    after a timeout.  plan: the plan accepted last.  outer: the name of our outer state,
    None until it is hashed.  kept: our voter state, which binds us, as on disk.  results: the results of our exchanges, by
    plan.  obtained: the roots of the results that are on disk.  decided: the certified record, once its result is on disk.
    abstains: True if we have lost our voter state at this tip, and so sign nothing as a voter.

    disproved: the averages, each with its chunk, that are proven wrong.  suspected: the roots of the results that failed an
    audit.  Such a result is audited again when it is proposed again; this second audit accepts averages that cannot be
    checked because their members are gone.  Otherwise a death could prevent a round from ending.
    """

    def __init__(
        self,
        me: PeerId,
        settings: RoundSettings,
        base: Base,
        now: float,
        kept: VoterState | None,
        lateness: LatenessMemory,
        *,
        abstains: bool,
    ) -> None:
        self.me, self.settings, self.base, self.abstains = me, settings, base, abstains
        self.closing = ClosingPolicy(me, settings, base, lateness, now)
        self.disproved: set[tuple[int, bytes]] = set()
        self.suspected: set[bytes] = set()
        self.kept = kept if kept is not None and self.is_for_this_round(kept.round, kept.base) else blank(base)
        was_kept = kept is not None and self.kept == kept
        self.attempt = self.kept.attempt + was_kept
        self.entered = self.kept.attempt if was_kept else -1
        self.losses = 0
        self.plan: Plan | None = None
        self.outer: bytes | None = None
        self.decided: Commit | None = None
        self.results: dict[Hash, tuple[tuple[ChunkEntry, ...], Provenance]] = {}
        self.obtained: set[bytes] = set()
        self._moved_at = self._taken_at = now
        self._exchange_s: float | None = None
        self._taken_in = -1

    def ballot(self, attempt: int, absent: Sequence[str], members: Sequence[Member] = ()) -> Ballot:
        """Return a ballot of this round.  members: the members of its plan, which vote if no elector is left."""
        voters = () if set(self.base.electors) - set(absent) else voters_of(self.base, members, absent)
        return Ballot(self.base, attempt, tuple(map(PeerId, absent)), voters)

    # -- timeouts -----------------------------------------------------------------------------------------------------

    def move(self, now: float) -> None:
        """Note progress: the timeout starts again."""
        self._moved_at = max(self._moved_at, now)

    def go_to_attempt(self, attempt: int, now: float) -> None:
        """Make this attempt the due one, unless a later one is due already; the timeout starts again."""
        if attempt > self.attempt:
            self.attempt = attempt
            self.move(now)

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last progress."""
        return now - self._moved_at

    def is_in_time(self, now: float, *, voting: bool) -> bool:
        """Return True if the timeout of this attempt, counted from the last progress, has not passed.

        voting: True if a record has been proposed: the other voters get as long to obtain its result as our exchange took.
        A proposer that still waits in its own exchange when ours is over is sent the result (`Report`); its line may be
        slower than ours.
        """
        more_s = self.settings.stall_s if self.plan is not None else 0.0
        if self._exchange_s is not None:
            is_its = self.attempt <= self._taken_in  # the proposer of a later attempt has no exchange to finish
            more_s = self._exchange_s * (1.0 if voting else SPREAD * is_its)
        return self.idle_s(now) <= more_s + TIMEOUT_S * 2.0 ** min(self.losses, MAX_DOUBLINGS)

    def take_up(self, plan: Plan, attempt: int, now: float) -> None:
        """Accept this plan of this attempt, and follow it from now on."""
        self._taken_in = attempt
        if plan != self.plan:
            self.plan, self._taken_at, self._exchange_s = plan, now, None
        self.move(now)

    def note_result(self, plan: Hash, entries: tuple[ChunkEntry, ...], provenance: Provenance, now: float) -> None:
        """Keep the result of an exchange.  plan: the hash of its plan."""
        self.results[plan] = (entries, provenance)
        if self.plan is not None and plan == plan_hash(self.plan):
            self._exchange_s = now - self._taken_at
        self.move(now)

    # -- judging ------------------------------------------------------------------------------------------------------

    def is_for_this_round(self, round: int, base: bytes) -> bool:
        """Return True if `round` on the tip `base` is our round."""
        return round == self.base.round and base == self.base.tip

    def standing_plan(self) -> Hash | None:
        """Return the hash of the plan that we accepted, unless our contribution to it is lost or its result is in doubt."""
        plan = self.plan
        if plan is None:
            return None
        result = self.results.get(plan_hash(plan))
        if result is not None:
            return None if self.is_false(result[0]) else plan_hash(plan)
        is_member = any(member.peer == self.me for member in plan.members)
        alive = not is_member or is_in(plan, self.me, self.closing.ready_of(self.me))
        return plan_hash(plan) if alive else None

    def is_false(self, index: Sequence[ChunkEntry]) -> bool:
        """Return True if a result with this index has an average that is proven wrong."""
        return bool(self.disproved) and any((chunk, entry.hash) in self.disproved for chunk, entry in enumerate(index))
