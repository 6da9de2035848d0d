"""The seam between a peer and its trainer: a process with a GPU, or an arithmetic stand-in.

The trainer is a function, not a keeper of state.  The outer parameters lie in memory that the peer owns
(`protocol.chain.outer_state`); a trainer reads them, trains from them, and leaves one contribution: the encoded difference.
Killing it at any moment therefore damages nothing but the work of the running round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from protocol.wire.hashes import Hash
from protocol.wire.rollouts import Reason, Verdict


class TrainerDied(Exception):
    """The trainer went away during a request; the text says how (signal, exit code, out of memory)."""


class TrainerGaveUp(TrainerDied):
    """The trainer failed so often in a row that it is not started again; the text says how it failed last."""


class NotMeasured(Exception):
    """The evaluation alone failed; the text says why."""


@dataclass(frozen=True)
class ComputeTask:
    """One round's work.

    round: number of the round.
    lane: number of our stream of samples in this round (`0 <= lane < 2 * max_members`).
    steps: inner steps to take at most (H).
    first_step: swarm's step number of our first step, H a round since the present stage of the run began, for the warm-up.
    shares: fractions of the run's present stage that are done before and after this round, 0 to 1, for the cooldown.
    rollouts: files of accepted batches to learn from, in a run of reinforcement learning.
    reference: file of the weights that its KL term compares with, bf16; None if the run has no such term.
    """

    round: int
    lane: int
    steps: int
    first_step: int
    rollouts: tuple[Path, ...] = ()
    reference: Path | None = None
    shares: tuple[float, float] = (0.0, 0.0)


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
    """Outcome of a problem in one batch: `rollouts` tried it, of which `solved` got more than half of the reward.

    scored_twice: answers that were scored once more, if a program scores them; `same` got the same score.  batch: the
    place of the batch in `ComputeTask.rollouts`.
    """

    problem: int
    rollouts: int
    solved: int
    scored_twice: int = 0
    same: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Contribution:
    """Result of a finished compute.  data: codec bytes of the pseudo-gradient, valid until the next compute begins.

    reward: mean reward of the rollouts that were learned from, 0 to 1; None if text was read.  kl: distance of the policy
    from the reference weights, nats a token; None if the loss has no KL term, or nothing moved the policy.  tried: outcomes
    of the problems among them that are of a set of tasks.
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


class TrainerLink(Protocol):
    """Commands to the trainer, one at a time.

    `evaluate` may run beside another command; `finish`, `pause` and `resume` may come while one runs.
    """

    @property
    def pid(self) -> int | None:
        """Process ID of the trainer; None while there is none."""

    async def initialise(self, theta: memoryview) -> None:
        """Write the initial parameters (fp32, little endian) of the manifest's seed into `theta`."""
        ...

    async def compute(self, task: ComputeTask, theta: memoryview, on_progress: Callable[[Progress], None]) -> Contribution:
        """Train from `theta` (which nobody changes meanwhile) and encode the difference.

        Cancelling abandons the work.  Raises `TrainerDied`.
        """
        ...

    def finish(self) -> None:
        """Stop the running compute at the end of its current step and contribute the result so far."""
        ...

    async def evaluate(self, theta: memoryview, on_progress: Callable[[int, int], None]) -> float:
        """Return the held-out loss of `theta` (which nobody changes meanwhile), nats a token; any float, NaN included.

        A running or following compute goes on: the evaluation takes a small share of its time.  on_progress(done, total) is
        called after each part.  Cancelling abandons the work.  Raises `NotMeasured`, `TrainerDied`.
        """
        ...

    def pause(self) -> None:
        """Rest after the present step, until `resume`."""

    def resume(self) -> None:
        """Go on computing."""


@dataclass(frozen=True)
class GenerateTask:
    """A batch of rollouts to be made with the weights of `version`, which were given to `keep_version`.

    run: hash of the run.  peer: the maker of the rollouts; both key the sampling.  problems: numbers of the environment's
    problems.  copies: completions of each.
    """

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int


@dataclass(frozen=True)
class Generated:
    """Size of a generated batch.  tokens: made by the model."""

    rollouts: int
    tokens: int


@dataclass(frozen=True)
class VerifyTask:
    """A batch of rollouts to be verified, with the fields of the `GenerateTask` that an honest peer had."""

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int


@dataclass(frozen=True)
class RolloutVerdict:
    """Verdict on one rollout.  reason: of a rejection; detail: a sentence about it.  reward: None if it was not recomputed.

    exact: whether every computer gets this reward, as no program had to be run for it.  sure: whether all honest computers
    accept the rollout, or all reject it.
    """

    verdict: Verdict
    reason: Reason
    detail: str
    reward: float | None
    tokens: int
    exact: bool = False
    sure: bool = True


@dataclass(frozen=True)
class SharedTaskFile:
    """A set of tasks in a file of JSON lines.

    first: number of its first problem.  count: tasks.  digest: hexadecimal BLAKE2b-128 of its bytes.
    """

    first: int
    count: int
    path: Path
    digest: str


@runtime_checkable
class RolloutLink(TrainerLink, Protocol):
    """A trainer that also makes and verifies rollouts.  `generate`, `verify` and `compute` are asked one at a time."""

    async def keep_version(self, version: int, theta: memoryview) -> None:
        """Copy `theta` (fp32, which nobody changes meanwhile) as the bf16 weights of this version.

        The newest `max_async` + 2 versions are kept; a version that is given again replaces its earlier copy.
        """
        ...

    async def use_tasks(self, sets: Sequence[SharedTaskFile]) -> Mapping[int, str]:
        """Use the problems of these sets, and of no others, beside the environment's own.

        Returns the sets that cannot be used, by their first problem, with the reason in a sentence.  Raises `TrainerDied`.
        """
        ...

    async def generate(self, task: GenerateTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        """Make a batch and write its bytes to `path`.  on_progress(done, total) is called after some rollouts.

        Cancelling abandons the work.  Raises `TrainerDied`.
        """
        ...

    async def verify(self, task: VerifyTask, path: Path) -> tuple[RolloutVerdict, ...]:
        """Return, in order, a verdict for each of the `len(problems)` x `copies` rollouts that the batch should have.

        Bytes in `path` that are no such batch are rejected as malformed.  Cancelling abandons the work.  Raises
        `TrainerDied`.
        """
        ...


@dataclass(frozen=True)
class StateMark:
    """Name of an outer state: the number of rounds applied, and the digest of the bytes."""

    rounds: int
    digest: Hash
