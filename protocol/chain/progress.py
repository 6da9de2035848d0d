"""Progress of a run towards its total: a function of the chain, and so the same for everybody.

The total is a number of rounds or of tokens.  Rounds are counted.  The tokens of each member of a record are weighted by the
share of its chunks that were averaged.  A member counts for no more than its bounded weight in the average
(`kernels.aggregate.weights_of`), so nobody ends a run much earlier by claiming more than it did.

The first record that reaches the total is the last one: no record stands on it except one that carries the organiser's
`Extension` to a larger total.  The learning rate follows from the share of the total that is done; an extension that comes
while the rate cools down, or after the end, begins a new stage: the rate warms up again, stays, and cools down in the last
share of the added rounds or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.aggregate import weights_of
from protocol.run.sections import Goal, Unit
from protocol.wire.canonical import Malformed
from protocol.wire.messages import MAX_TOTAL, Commit, Extension, members_in

ENDLESS = Goal(Unit.ROUNDS, MAX_TOTAL, 0.0)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run after some of its records.

    goal: set by the manifest and the extensions so far.  rounds, tokens: done.  added: tokens of the last record.
    begun: amount done, in the goal's unit, when the present stage began.  first: the round with which that stage began.
    """

    goal: Goal = ENDLESS
    rounds: int = 0
    tokens: int = 0
    added: int = 0
    begun: int = 0
    first: int = 0

    @property
    def done(self) -> int:
        """Amount done, in the goal's unit."""
        return self.tokens if self.goal.unit is Unit.TOKENS else self.rounds

    @property
    def is_over(self) -> bool:
        """True if the run has ended: its total is reached."""
        return self.done >= self.goal.total

    @property
    def share(self) -> float:
        """Share of the present stage that is done, 0 to 1."""
        return self._share(self.done)

    @property
    def next_share(self) -> float:
        """Share after the next round, if that counts as much as the last one."""
        return self._share(self.done + (self.added if self.goal.unit is Unit.TOKENS else 1))

    def _share(self, done: int) -> float:
        return min(1.0, max(0, done - self.begun) / (self.goal.total - self.begun))

    def check(self, extension: Extension | None) -> None:
        """Check that the next record may carry this extension, or none; raises `Malformed` otherwise."""
        if extension is None:
            if self.is_over:
                raise Malformed("a record after the end of the run")
        elif extension.total <= self.goal.total:
            raise Malformed(f"an extension to {extension.total} {self.goal.unit}, and the total is {self.goal.total}")
        elif extension.total <= self.done:
            raise Malformed(f"an extension to {extension.total} {self.goal.unit}, and {self.done} are done")

    def extended(self, extension: Extension) -> RunProgress:
        """Return the progress with the total of an extension that `check` accepted, from the next round on."""
        goal = replace(self.goal, total=extension.total)
        if self.share < 1 - self.goal.cooldown:
            return replace(self, goal=goal)
        return replace(self, goal=goal, begun=self.done, first=self.rounds)

    def after(self, commit: Commit, extension: Extension | None) -> RunProgress:
        """Return the progress after one more record, which has been verified.  extension: the one that it carries."""
        before = self if extension is None else self.extended(extension)
        added = counted_tokens(commit)
        return replace(before, rounds=self.rounds + 1, tokens=self.tokens + added, added=added)


class RunPace:
    """Speed of the run as this peer sees it: the time between the last two records that were made here."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._seconds, self._tokens = 0.0, 0

    def note(self, tokens: int, now: float) -> None:
        """Note a new record, which counts `tokens` tokens."""
        if self._at is not None:
            self._seconds, self._tokens = now - self._at, tokens
        self._at = now

    def pause(self) -> None:
        """Discount the time until the next record: it will not follow at once, so the time says nothing about the speed."""
        self._at = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all members; None before two records in a row were made here."""
        return self._tokens / self._seconds if self._seconds > 0 else None

    def left_s(self, progress: RunProgress) -> float | None:
        """Return the seconds until the total is reached, at the speed of the last round; None if that is unknown."""
        added = self._tokens if progress.goal.unit is Unit.TOKENS else 1
        if self._seconds <= 0 or not added:
            return None
        return max(0, progress.goal.total - progress.done) / added * self._seconds


def counted_tokens(commit: Commit) -> int:
    """Return the tokens of a record that count towards the run's total."""
    members, chunks = commit.record.members, len(commit.index)
    included = [0] * len(members)
    for entry in commit.index:
        for member in members_in(entry.mask, len(members)):
            included[member] += 1
    bounded = weights_of("clip", [member.tokens for member in members])
    return sum(tokens * share // chunks for tokens, share in zip(bounded, included, strict=True))
