"""Training on the rollouts of one version: from the run's parameters and scored rollouts to an encoded difference.

Like `trainer.worker.Worker`, the learner keeps only Adam's moments between versions. `compute` reads theta, drops the groups
that change nothing, divides the completions into one batch for each optimiser step, computes the probabilities of their
tokens under the unchanged parameters, and takes one step on each batch. Other modules decide where rollouts come from, and
whether they can be trusted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from kernels.layout import Layouts
from kernels.schedule import Place
from protocol.formats.rl import RlConfig
from trainer.models.llama.model import Decoder
from trainer.objective import UnitLosses
from trainer.optim import Optimiser
from trainer.parameters import NotFinite, WholeParameters
from trainer.rank_work import Course, CourseName, RankWork
from trainer.rl.groups import Group, advantages, informative
from trainer.rl.policy import F32, STATISTICS, Packed, PolicyObjective, adamw_config, check_lengths, pack
from trainer.rl.rollout import Rollout

# ------------------------------------------------------------------------------------------------------------------------
# Statistics of the training on a version: sums over tokens during training, means at the end.


@dataclass(frozen=True)
class Learnt:
    """Statistics of the training on one version.

    tokens: number of trained tokens. steps: 0 if no group had anything to learn from. norm: norm of the difference. Means
    over the trained tokens: loss, entropy (nats), kl (nats, to the reference), clipped (share), ratio (new over old
    probability). reward: mean over all received rollouts. groups, dropped: numbers of received and of dropped groups.
    """

    tokens: int
    steps: int
    loss: float
    norm: float
    entropy: float
    kl: float
    clipped: float
    ratio: float
    reward: float
    groups: int
    dropped: int


@dataclass
class Totals:
    """Sums over tokens.  dropped: number of dropped groups."""

    dropped: int = 0
    steps: int = 0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("loss", *STATISTICS), 0.0))

    def add(self, units: UnitLosses) -> None:
        """Add the losses and statistics of some rows."""
        assert units.statistics_s is not None
        self.tokens += int(units.tokens.sum())
        for name, value in zip(self.sums, (units.losses.sum(), *units.statistics_s), strict=True):
            self.sums[name] += float(value)

    def mean(self, name: str) -> float:
        """Return the mean of a statistic over the tokens; 0 if there are none."""
        return self.sums[name] / max(1, self.tokens)

    def learnt(self, groups: Sequence[Group]) -> Learnt:
        """Return all statistics, including the means over the received groups; the norm stays 0."""
        members = [member for group in groups for member in group.members]
        count = max(1, len(members))
        return Learnt(
            tokens=self.tokens,
            steps=self.steps,
            norm=0.0,
            **{name: self.mean(name) for name in self.sums},
            reward=math.fsum(member.reward for member in members) / count,
            groups=len(groups),
            dropped=self.dropped,
        )


# ------------------------------------------------------------------------------------------------------------------------


AfterStep = Callable[[int, float, int, float], bool]
"""Function called with steps, mean loss, tokens and tokens per second after every step; if it returns True, training
stops."""


@dataclass(frozen=True)
class LearnTask:
    """Training task of one version.

    order: seed of the shuffle of completions into batches. first_step: number of optimiser steps that the run took before.
    reference: file of the weights with which the KL term compares; required if the run has a KL term, unless the model has
    factors, which are compared with its frozen base.
    """

    order: int
    first_step: int
    reference: Path | None = None


class Learner:
    """Learner of one run, on the ranks of a trainer.  work: their common work."""

    def __init__(self, config: RlConfig, work: RankWork) -> None:
        self.config, self.work = config, work

    @classmethod
    def alone(cls, config: RlConfig, model: Decoder, layouts: Layouts) -> Self:
        """Return a learner in this process, which changes the parameters of `model` and reads nothing but rollouts."""
        course = Course(PolicyObjective(config), adamw_config(config))
        return cls(config, RankWork(WholeParameters(model), layouts, {CourseName.ROLLOUTS: course}))

    @property
    def model(self) -> Decoder:
        """Model that learns."""
        return self.work.parameters.model

    @property
    def optimiser(self) -> Optimiser:
        """Optimiser of this rank's parameters."""
        return self.work.inner.optimiser

    def compute(
        self,
        task: LearnTask,
        groups: Sequence[Group],
        theta: F32,
        out: memoryview,
        after_step: AfterStep = lambda *_: False,
    ) -> Learnt:
        """Learn from `groups`, starting at `theta`, and encode the difference into `out`.

        Raises ValueError at the start for a rollout that the model cannot read, or if required reference weights are
        missing. Raises NotFinite, and passes on any exception of `after_step`.
        """
        self._check(task, groups)
        self.work.load(theta)
        learnt = self.learn(task, groups, after_step)
        return replace(learnt, norm=self.work.encode_difference(theta, out))

    def learn(self, task: LearnTask, groups: Sequence[Group], after_step: AfterStep = lambda *_: False) -> Learnt:
        """Take the steps of `compute` from the model's current parameters, without theta or a difference (norm 0)."""
        self._check(task, groups)
        self.work.take(CourseName.ROLLOUTS)
        kept = informative(groups) if self.config.drop_zero_advantage else groups
        batches = self._compared(self._batches(kept, task.order), task.reference)
        totals, began = Totals(dropped=len(groups) - len(kept)), time.monotonic()
        for number, batch in enumerate(batches):
            for units in self.work.step(batch, Place(task.first_step + number, 0.0)).read().parts:
                totals.add(units)
            totals.steps, mean = number + 1, totals.mean("loss")
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {totals.steps} of a version")
            if after_step(totals.steps, mean, totals.tokens, totals.tokens / max(1e-9, time.monotonic() - began)):
                break
        return totals.learnt(groups)

    def _check(self, task: LearnTask, groups: Sequence[Group]) -> None:
        """Raise ValueError if required reference weights are missing, or for rollouts that the model cannot read."""
        if self.config.kl_weight and task.reference is None and self.model.base is None:
            raise ValueError("kl_weight is above 0, but there are no reference weights")
        rollouts = [member.rollout for group in groups for member in group.members]
        check_lengths(rollouts, self.config.row_tokens)
        largest = max((max(*rollout.prompt, *rollout.output) for rollout in rollouts), default=0)
        if largest >= self.model.config.vocab:
            raise ValueError(f"a rollout has the token {largest}, but the model has only {self.model.config.vocab} tokens")

    def _batches(self, groups: Sequence[Group], order: int) -> list[Packed]:
        """Shuffle the completions into at most `optimizer_steps` batches, leaving out any without a model's token."""
        completions: list[tuple[Rollout, float]] = []
        for group in groups:
            worth = advantages(group.rewards, self.config.divide_by_std)
            pairs = zip(group.members, worth, strict=True)
            completions += [(member.rollout, value) for member, value in pairs if any(member.rollout.made)]
        shuffled = np.random.default_rng(order).permutation(len(completions)).tolist()
        count = min(self.config.optimizer_steps, len(completions))
        parts = [[completions[at] for at in shuffled[number::count]] for number in range(count)]
        return [
            pack([rollout for rollout, _ in part], [value for _, value in part], self.config.row_tokens).trimmed()
            for part in parts
        ]

    def _compared(self, batches: Sequence[Packed], reference: Path | None) -> list[Packed]:
        """Return batches with the log-probabilities of their targets under the current and the reference parameters."""
        compared = [replace(batch, old_logp=self._log_probabilities(batch)) for batch in batches]
        if not compared or not self.config.kl_weight:
            return compared
        self.work.show_reference("" if reference is None else str(reference))
        try:
            return [replace(batch, reference_logp=self._log_probabilities(batch)) for batch in compared]
        finally:
            self.work.hide()

    def _log_probabilities(self, batch: Packed) -> F32 | None:
        return self.work.log_probabilities(CourseName.ROLLOUTS, batch)
