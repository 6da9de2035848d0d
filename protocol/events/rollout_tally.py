"""Tally of rollouts and their verdicts, from a peer's events: for its status, the interface and `peer rollouts`.

Pure, and bounded: only the last batches are kept, but the counts include all batches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace

from protocol.events import events as ev
from protocol.events.events import Event

WAITING, ACCEPTED, REJECTED, STALE, UNSURE = "waiting", "accepted", "rejected", "stale", "unsure"
VERDICTS = (WAITING, ACCEPTED, REJECTED, STALE, UNSURE)
"""Verdicts on a batch.  waiting: no validator has judged it yet.  stale: it became too old before that.  unsure: a validator
could not tell."""
KEPT_BATCHES = 1000
KEPT_REWARDS = 500
KEPT_ASIDE = 50
KEPT_LEARNED = 4096


@dataclass(frozen=True)
class BatchSeen:
    """A batch as far as this peer knows it.

    at: time of the last event about it, in seconds since 1970.  verdict: one of `VERDICTS`.  reason: reason of a rejection.
    rollouts: 0 if unknown.  tokens, seconds: known only for a batch of ours.  judges: known validators that judged it.
    round: the round in which members learned from it.
    """

    author: str
    version: int
    number: int
    root: str
    at: float
    verdict: str = WAITING
    reason: str = ""
    rollouts: int = 0
    tokens: int | None = None
    seconds: float | None = None
    judges: tuple[str, ...] = ()
    round: int | None = None


@dataclass(frozen=True)
class Aside:
    """A peer whose rollouts or verdicts are no longer used.  role: rollout or validator."""

    at: float
    peer: str
    role: str
    reason: str


@dataclass
class RolloutTally:
    """The tally of one peer, whose ID is `me`.

    generated, generated_tokens, generating_s: number of our batches, their tokens and the time that they took.  judged:
    number of batches that we verified.  rewards: rounds, each with its mean reward.  lengths: rounds, each with the mean
    number of output tokens of a rollout.  accepted_tokens: number of our tokens that records name.
    """

    me: str = ""
    batches: dict[tuple[str, str], BatchSeen] = field(default_factory=dict)
    """Batches by author and root, in the order of the last event about each."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of batches by verdict, including batches that are no longer kept."""
    rewards: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT_REWARDS))
    lengths: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT_REWARDS))
    aside: deque[Aside] = field(default_factory=lambda: deque(maxlen=KEPT_ASIDE))
    generated: int = 0
    generated_tokens: int = 0
    generating_s: float = 0.0
    judged: int = 0
    used: int = 0
    """Batches that this trainer learned from."""
    accepted_tokens: int = 0
    earned: dict[int, int] = field(default_factory=dict)
    """Number of our tokens that each round's record names, by round."""
    learned: dict[str, None] = field(default_factory=dict)
    """Names of the last batches from which this trainer learned."""
    learnt: ev.RolloutsUsed | None = None
    """Event of the last round from which this trainer learned something, with its figures on the policy."""
    left_out: int = 0
    """Batches that this trainer left out of learning, because it does not hold the weights that made them."""
    fruitless: int = 0
    """Last rounds in a row from which this trainer learned nothing, because no problem's answers had different rewards."""
    seen: bool = False
    """True once an event was about rollouts."""

    def apply(self, event: Event, at: float) -> None:
        """Count an event."""
        match event:
            case ev.RolloutsGenerated(version, number, root, rollouts, tokens, _, seconds):
                self.generated, self.generated_tokens = self.generated + 1, self.generated_tokens + tokens
                self.generating_s += seconds
                made = BatchSeen(self.me, version, number, root, at, rollouts=rollouts, tokens=tokens, seconds=seconds)
                self._put(made)
            case ev.BatchJudged():
                self._judged(event, at)
            case ev.BatchDecided(author, version, number, root, verdict, reason, rollouts):
                known = self._batch(author, version, number, root, at)
                if verdict == STALE and known.round is not None:
                    verdict = known.verdict  # a record names it: a validator that we did not hear has accepted it
                self._put(replace(known, verdict=verdict, reason=reason, rollouts=rollouts))
            case ev.RolloutsUsed(number, roots):
                self.fruitless = self.fruitless + 1 if event.informative == 0 else 0
                self.learnt = event if event.entropy is not None else self.learnt
                self.left_out += event.left_out or 0
                self._learned(roots)
                self._use(roots, number, at)
            case ev.RolloutsCounted():
                self._counted(event, at)
            case ev.RolloutPeerSetAside(peer, reason):
                self.aside.append(Aside(at, peer, "rollout", reason))
            case ev.ValidatorSetAside(peer, reason):
                self.aside.append(Aside(at, peer, "validator", reason))
            case _:
                return
        self.seen = True

    def copy(self) -> RolloutTally:
        """Return an independent copy."""
        other = copy(self)
        other.batches, other.counts = self.batches.copy(), self.counts.copy()
        other.rewards, other.lengths, other.aside = self.rewards.copy(), self.lengths.copy(), self.aside.copy()
        other.earned, other.learned = self.earned.copy(), self.learned.copy()
        return other

    def last(self, author: str | None = None, judge: str | None = None) -> list[BatchSeen]:
        """Return the batches, newest first, optionally only the batches of one author or judged by one peer."""
        return [
            batch
            for batch in reversed(self.batches.values())
            if (author is None or batch.author == author) and (judge is None or judge in batch.judges)
        ]

    def _learned(self, roots: Iterable[str]) -> None:
        """Count batches from which this trainer learned.

        Each batch counts once, even if the trainer learns from it again because its first use did not lead to a record.
        """
        for root in roots:
            self.used += root not in self.learned
            self.learned[root] = None
        for root in [*self.learned][:-KEPT_LEARNED]:
            del self.learned[root]

    def _counted(self, event: ev.RolloutsCounted, at: float) -> None:
        self._leave(event.round)
        if event.reward is not None:
            self.rewards.append((event.round, event.reward))
        if event.rollouts:
            self.lengths.append((event.round, event.tokens / event.rollouts))
        self.earned[event.round] = event.authors.get(self.me, 0)
        self.accepted_tokens += self.earned[event.round]
        if len(self.earned) > KEPT_REWARDS:
            del self.earned[min(self.earned)]
        self._use(event.mine, event.round, at)

    def _leave(self, round: int) -> None:
        """Undo the counts of this round and later rounds, because they belong to a branch that is no longer ours."""
        for later in [each for each in self.earned if each >= round]:
            self.accepted_tokens -= self.earned.pop(later)
        for series in (self.rewards, self.lengths):
            while series and series[-1][0] >= round:
                series.pop()
        for key, batch in self.batches.items():
            if batch.author == self.me and batch.round is not None and batch.round >= round:
                self.batches[key] = replace(batch, round=None)

    def _judged(self, event: ev.BatchJudged, at: float) -> None:
        rollouts = event.accepted + event.rejected + event.inconclusive
        known = self._batch(event.author, event.version, event.number, event.root, at)
        if event.validator == self.me and self.me not in known.judges:
            self.judged += 1
        judges = [judge for judge in known.judges if judge != event.validator]
        verdict = REJECTED if event.rejected else UNSURE if event.inconclusive else ACCEPTED
        if known.verdict in (REJECTED, STALE) or (known.verdict == ACCEPTED and verdict == UNSURE):
            verdict = known.verdict  # a later verdict does not change the first
        self._put(
            replace(
                known,
                verdict=verdict,
                reason=known.reason or ", ".join(event.reasons),
                rollouts=rollouts,
                judges=(*judges[-7:], event.validator),
            )
        )

    def _batch(self, author: str, version: int, number: int, root: str, at: float) -> BatchSeen:
        known = self.batches.get((author, root))
        return replace(known, at=at) if known is not None else BatchSeen(author, version, number, root, at)

    def _use(self, roots: Iterable[str], round: int, at: float) -> None:
        wanted = {*roots}
        for batch in [batch for batch in self.batches.values() if batch.root in wanted]:
            verdict = batch.verdict if batch.verdict == REJECTED else ACCEPTED  # we did not hear its validator
            self._put(replace(batch, at=at, round=round, verdict=verdict))

    def _put(self, batch: BatchSeen) -> None:
        key = (batch.author, batch.root)
        before = self.batches.pop(key, None)
        if before is not None:
            self.counts[before.verdict] -= 1
        self.counts[batch.verdict] += 1
        self.batches[key] = batch
        if len(self.batches) > KEPT_BATCHES:
            self.batches.pop(next(iter(self.batches)))
