"""Events about rollouts; `protocol.events` has them, too."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.event import Event


@dataclass(frozen=True)
class RolloutsGenerated(Event):
    """This peer has made a batch of rollouts with the weights of `version`, and says so.

    number: of the batch at that version.  root: its name.  tokens: that the model made.  seconds: that it took.
    """

    version: int
    number: int
    root: str
    rollouts: int
    tokens: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class BatchJudged(Event):
    """A validator has judged a batch of rollouts: this peer itself, or another one a batch of ours.

    accepted, rejected, inconclusive: rollouts.  reasons: of those that were rejected, each once.
    """

    author: str
    version: int
    number: int
    root: str
    validator: str
    accepted: int
    rejected: int
    inconclusive: int
    reasons: list[str]


@dataclass(frozen=True)
class BatchDecided(Event):
    """The final verdict of this trainer on a batch that is for it: accepted, rejected, or stale.

    Also of a batch of this peer's own that got stale before anybody had judged it.
    reason: of a rejection.  checked: whether this peer verified it itself.
    """

    author: str
    version: int
    number: int
    root: str
    verdict: str
    reason: str
    rollouts: int
    checked: bool


@dataclass(frozen=True)
class RolloutsUsed(Event):
    """This trainer has learned from these batches in a round.  root: over their names, as its READY says.

    reward: the mean of the rollouts, 0 to 1, as computed here.  kl: how far the policy was from the reference weights, nats
    a token; None where the loss has no KL term, or nothing moved the policy.
    """

    round: int
    batches: list[str]
    rollouts: int
    reward: float | None
    root: str
    kl: float | None = None


@dataclass(frozen=True)
class TaskSetOffered(Event):
    """A peer, or this one, offers a set of tasks.  root: its ID."""

    publisher: str
    root: str
    name: str
    tasks: int
    size_bytes: int


@dataclass(frozen=True)
class TasksAmended(Event):
    """From the version `version` on these sets of tasks are in force, and `percent` of the problems are of them.

    number: of the organiser's amendment.  sets: their IDs.
    """

    number: int
    version: int
    sets: list[str]
    percent: int


@dataclass(frozen=True)
class TaskSetFellOut(Event):
    """By what the trainers counted no more problems are of this set, from the version `version` on."""

    root: str
    name: str
    version: int


@dataclass(frozen=True)
class RolloutsCounted(Event):
    """A record is on disk whose members learned from rollouts: as they say, with this mean reward.

    Told again for a round whose record another branch has replaced: what was told of it, and of later ones, counts no more.
    batches: of them, those that no earlier record names.  tokens: of their outputs.  authors: accepted tokens of each
    rollout peer: of this one if it is one, then of those with the most, 64 at most.  others: rollout peers that are not
    told.  mine: the roots of this peer's batches.
    """

    round: int
    reward: float | None
    batches: int
    tokens: int
    authors: dict[str, int]
    others: int
    mine: list[str]


@dataclass(frozen=True)
class RolloutPeerSetAside(Event):
    """Nothing that this peer generates is used any more; `reason` is a phrase."""

    peer: str
    reason: str


@dataclass(frozen=True)
class ValidatorSetAside(Event):
    """Verdicts of this peer do not count any more; `reason` is a phrase."""

    peer: str
    reason: str
