"""The interface between a peer and its trainer: a process with a GPU, or an arithmetic stand-in.

The trainer is a function and keeps no outer state.  The outer parameters lie in memory that the peer owns
(`protocol.chain.outer_state`); a trainer reads them, trains from them, and returns one contribution: the encoded difference.
So if the trainer is killed at any moment, only the work of the running round is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Protocol, runtime_checkable

import trio

from protocol.formats.bets import Growth
from protocol.formats.results import PolicyFigures, RatedAnswer, SourceLoss
from protocol.formats.rl import Precision
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import Reason, Verdict


class TrainerDied(Exception):
    """The trainer died during a request; the text gives the cause (signal, exit code, out of memory)."""


class LimitsExceeded(TrainerDied):
    """The trainer's round exceeded the limits of its task, so it ended and forgot its moments; the text says by how much."""


class TrainerGaveUp(TrainerDied):
    """The trainer failed so often in a row that it is not started again; the text gives the last cause."""


class NotMeasured(Exception):
    """Failure of an evaluation, but not of the trainer; the text gives the reason."""


@dataclass(frozen=True)
class ComputeTask:
    """A trainer's work in one round.

    round: number of the round.
    rows: half-open ranges of the run's rows to read, in this order, as many rows as the steps need; empty with rollouts.
    steps: most inner steps to take (H).
    first_step: the swarm's number of our first step, for the warm-up: H steps a round since the run's present stage began.
    shares: fractions of the run's present stage that are done before and after this round, 0 to 1, for the cooldown.
    fragment: the fragment of the state whose difference is the contribution.
    continues: True to go on from the trainer's own parameters, where the last compute has ended, in a streamed run.
    rollouts: files of accepted batches, in a run of reinforcement learning.  versions: number of the version that made each
    of them, or None if the trainer was not given that version's weights (`RolloutLink.keep_version`).
    reference: file of the reference weights of the KL term, bf16; None if the run has no such term.
    rate_factor: on the learning rate (`RunManifest.rate_factor`).
    most_loss, most_norm: a trainer whose round exceeds these ends with `LimitsExceeded` (`protocol.node.round_limits`).
    """

    round: int
    rows: tuple[tuple[int, int], ...]
    steps: int
    first_step: int
    rollouts: tuple[Path, ...] = ()
    reference: Path | None = None
    shares: tuple[float, float] = (0.0, 0.0)
    fragment: int = 0
    continues: bool = False
    most_loss: float = inf
    most_norm: float = inf
    versions: tuple[int | None, ...] = ()
    rate_factor: float = 1.0


@dataclass(frozen=True)
class AuditedRows:
    """Rows of one inner step to audit.

    share: of the way from the start of the last round to its result, at which the receipts of the rows are computed.
    rows: numbers of the rows.  claimed: their receipts, as their member claims them, one behind the other.
    """

    share: float
    rows: tuple[int, ...]
    claimed: bytes


@dataclass(frozen=True)
class ReceiptAudit:
    """Audit of receipts of the last round.  result: file of its result.  rate, momentum: of its outer step."""

    result: Path
    rate: float
    momentum: float
    points: tuple[AuditedRows, ...]


@dataclass(frozen=True)
class Progress:
    """Progress after an inner step: steps of this round, mean loss so far (nats a token), tokens read, tokens a second."""

    round: int
    steps: int
    loss: float
    tokens: int
    tokens_per_s: float


@dataclass(frozen=True)
class Tried:
    """Outcome of a problem in one batch: number of `rollouts`, of which `solved` got more than half of the reward.

    scored_twice: number of answers that were scored twice, if a program scores them; `same` of these got the same score.
    batch: the place of the batch in `ComputeTask.rollouts`.
    """

    problem: int
    rollouts: int
    solved: int
    scored_twice: int = 0
    same: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Contribution:
    """Result of a finished compute.

    data: encoded pseudo-gradient, valid until another compute ends, or begins without `ComputeTask.continues`.
    reward: mean reward of the rollouts used for training, 0 to 1; None if the trainer trained on text.  kl: distance of the
    policy from the reference weights, nats a token; None if the loss has no KL term, or if the policy did not change.
    tried: outcomes of the problems that come from a set of tasks.  losses: losses on each source that was read.  margin,
    accuracy: mean margin of the preferences, and share of those with a margin above 0; None for other rows.  answers: the
    best one by reward, then one with the median reward; none for text.  informative: number of problems whose answers had
    different rewards, from which alone something is learned; None for text.  policy: figures on the policy that learned from
    rollouts; None for text.
    receipts: receipts of the rows that were trained on, in order, valid as long as `data`; empty in a run without them.
    """

    round: int
    tokens: int
    steps: int
    loss: float
    norm: float
    data: memoryview
    reward: float | None = None
    tried: tuple[Tried, ...] = ()
    kl: float | None = None
    losses: tuple[SourceLoss, ...] = ()
    margin: float | None = None
    accuracy: float | None = None
    answers: tuple[RatedAnswer, ...] = ()
    informative: int | None = None
    receipts: memoryview = memoryview(b"")
    policy: PolicyFigures | None = None


@dataclass(frozen=True)
class EvaluatedLoss:
    """Held-out loss in nats a token; any float, including NaN.

    losses: losses on each source of the run's data, by its name.
    samples: completions of the run's prompts, in their order, as the model wrote them; none if none were asked for.
    """

    loss: float
    losses: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceFigures:
    """Facts on the device that trains.

    device: its name and the precision of its products, such as "cuda:0, bf16".  matmul_flops: measured speed of products of
    large matrices, in FLOP/s.  flops_per_token: arithmetic of a trained token, without layers that are computed again.
    """

    device: str
    matmul_flops: float
    flops_per_token: float

    def utilisation(self, tokens_per_s: float) -> float:
        """Return the model FLOPs utilisation (MFU): the share of `matmul_flops` that training at this rate reaches."""
        return tokens_per_s * self.flops_per_token / self.matmul_flops


class TrainerLink(Protocol):
    """Commands to the trainer, one at a time.

    `evaluate` may run at the same time as another command; `finish`, `pause` and `resume` may be called during a command.
    """

    @property
    def pid(self) -> int | None:
        """Process ID of the trainer; None while no process is ready for work."""

    @property
    def figures(self) -> DeviceFigures | None:
        """Facts on its device; None before it was first ready, and of a trainer that does not train."""

    @property
    def busy_share(self) -> float | None:
        """Share of the last hour in which it trained; None before it was first ready."""

    @property
    def joules_per_token(self) -> float | None:
        """Energy that the GPUs drew for each token of the last round; None if they have no counter of it."""

    @property
    def ended(self) -> str:
        """Sentence on the processes that ended since the last finished piece of work, with a reason; empty if none did."""

    async def initialise(self, theta: memoryview) -> None:
        """Write the initial parameters (fp32, little endian) of the manifest's seed into `theta`."""
        ...

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        """Train from `theta` (which must not change meanwhile) and encode the difference.

        applied: needed for a task that continues; it is set once the result of the last round is in `theta`.  The compute
        then takes over the change.  Before, it does at most as many steps as the manifest's `delay`, and it does not end.
        Cancelling abandons the work.  Raises `TrainerDied`.
        """
        ...

    def finish(self) -> None:
        """Stop the running compute at the end of its current step and contribute the result so far."""
        ...

    async def evaluate(
        self, theta: memoryview, on_progress: Callable[[int, int], None], row: int = 0, *, samples: bool = False
    ) -> EvaluatedLoss:
        """Return the held-out loss of `theta` (which must not change meanwhile).

        row: a row of the run, whose mixture weighs the sources.  samples: True to complete the run's prompts as well.
        A running or later compute continues: the evaluation takes a small share of its time.  on_progress(done, total) is
        called after each part.  Cancelling abandons the work.  Raises `NotMeasured`, `TrainerDied`.
        """
        ...

    @property
    def audits(self) -> bool:
        """True if it can audit receipts; False before it was first ready."""

    async def audit(self, task: ReceiptAudit, state: memoryview) -> list[float]:
        """Return the cosine of each row's claimed receipt with the one computed here, nan for a row that says nothing.

        state: the outer state (theta, then momentum) after the last round, which must not change meanwhile.  Cancelling
        abandons the work.  Raises `NotMeasured` and `TrainerDied`.
        """
        ...

    def report_missing(self, report: Callable[[Hash, int], None]) -> None:
        """Call `report` with the shard and the number of each block of the corpora that a command waits for, repeatedly."""

    def pause(self) -> None:
        """Pause after the present step, until `resume`."""

    def resume(self) -> None:
        """Continue to compute."""


@dataclass(frozen=True)
class RolloutTask:
    """Request to make a batch of rollouts, or to verify one, with the weights of `version` (see `keep_version`).

    run: hash of the run.  peer: the maker of the rollouts.  problems: numbers of the problems.  copies: number of
    completions of each problem.  number: number of the batch among the peer's batches of this version.  run, version, peer
    and number key the sampling.  precision: the stated precision of a batch that is verified.
    """

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int
    number: int
    precision: Precision = Precision.FLOAT32


@dataclass(frozen=True)
class Generated:
    """Size of a generated batch.

    tokens: number of tokens that the model generated.  precision: precision of its matrix products.
    """

    rollouts: int
    tokens: int
    precision: Precision = Precision.FLOAT32


@dataclass(frozen=True)
class RolloutVerdict:
    """Verdict on one rollout.  reason: the reason of a rejection.  detail: a sentence about the reason.

    reward: the recomputed reward; None if it was not recomputed.  exact: True if every computer gets this reward, because no
    program had to run for it.  sure: True if all honest computers come to the same verdict.  growth: growth of the bets
    against the maker's honesty; empty if the rollout could not be measured.
    """

    verdict: Verdict
    reason: Reason
    detail: str
    reward: float | None
    tokens: int
    exact: bool = False
    sure: bool = True
    growth: Growth = ()


@dataclass(frozen=True)
class SharedTaskFile:
    """A set of tasks in a file of JSON lines.

    first: number of the set's first problem.  count: number of tasks.  digest: hexadecimal BLAKE2b-128 of the file's bytes.
    """

    first: int
    count: int
    path: Path
    digest: str


@runtime_checkable
class RolloutLink(TrainerLink, Protocol):
    """A trainer that also makes and verifies rollouts.  `generate`, `verify` and `compute` are called one at a time."""

    async def keep_version(self, version: int, theta: memoryview) -> None:
        """Copy `theta` (fp32, which must not change meanwhile) as the bf16 weights of this version.

        The newest `max_async` + 2 versions are kept; a second call for a version replaces its copy.
        """
        ...

    async def use_tasks(self, sets: Sequence[SharedTaskFile]) -> Mapping[int, str]:
        """Use the problems of exactly these sets in addition to the environment's problems.

        Returns the reason, as a sentence, for each set that cannot be used, by the number of the set's first problem.
        Raises `TrainerDied`.
        """
        ...

    async def generate(self, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        """Make a batch and write its bytes to `path`.  on_progress(done, total) is called after some rollouts.

        Cancelling abandons the work.  Raises `TrainerDied`.
        """
        ...

    async def verify(self, task: RolloutTask, path: Path) -> tuple[RolloutVerdict, ...]:
        """Return, in order, a verdict for each of the `len(problems)` x `copies` rollouts that the batch should have.

        If the bytes in `path` are not such a batch, all rollouts are rejected as malformed.  Cancelling abandons the work.
        Raises `TrainerDied`.
        """
        ...


@dataclass(frozen=True)
class StateMark:
    """Name of an outer state: the number of rounds applied, and the digest of the bytes."""

    rounds: int
    digest: Hash
