"""Training on the rollouts of one version: from the run's parameters and scored rollouts to an encoded difference.

Like `trainer.worker.Worker`, the learner keeps only Adam's moments between versions. `compute` reads theta, drops the groups
that change nothing, divides the completions into one batch for each optimiser step, computes the probabilities of their
tokens under the unchanged parameters, and takes one step on each batch. Other modules decide where rollouts come from, and
whether they can be trusted.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from torch import Tensor

from kernels.layout import Layouts
from kernels.losses import LARGEST_LOG_RATIO, TRUNCATION
from kernels.schedule import Place
from protocol.formats.results import PolicyFigures
from protocol.formats.rl import RlConfig
from trainer.models.llama.model import Decoder
from trainer.objective import UnitLosses
from trainer.optim import Optimiser
from trainer.parameters import NotFinite, WholeParameters
from trainer.rank_work import Course, CourseName, RankWork
from trainer.reference import HeldWeights
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
    left_out: number of batches whose groups were left out, because the weights that made them are not held. staleness:
    distance of the trained policy from the one that made the tokens; None if the loss does not compare them.
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
    left_out: int = 0
    staleness: Staleness | None = None

    @property
    def figures(self) -> PolicyFigures:
        """Figures on the policy that the peer reports."""
        entropy, stale = self.entropy if self.steps else None, self.staleness
        if stale is None:
            return PolicyFigures(entropy, self.left_out)
        return PolicyFigures(entropy, self.left_out, stale.kl, stale.truncated, stale.effective)


@dataclass(frozen=True)
class Staleness:
    """Distance of the policy before the first step from the behaviour, the policy that made the tokens.

    kl: estimate of KL(behaviour || policy), nats per token: the mean of r - 1 - log r, with r the ratio of a token's
    probabilities under policy and behaviour (k3 of Schulman, "Approximating KL divergence", 2020). truncated: share of
    tokens with r above `TRUNCATION`. effective: effective sample size of w = min(r, `TRUNCATION`), (sum w)^2 / sum w^2, as a
    share of the tokens.
    """

    kl: float
    truncated: float
    effective: float

    @classmethod
    def of(cls, batches: Sequence[Packed]) -> Self:
        """Return the figures of the counted tokens of at least one batch."""
        log_ratio = np.concatenate([each.log_ratios() for each in batches])
        ratio = np.exp(np.minimum(log_ratio, LARGEST_LOG_RATIO))
        weights = np.minimum(ratio, TRUNCATION)
        effective = float(weights.mean() ** 2 / np.square(weights).mean())
        return cls(float((ratio - 1 - log_ratio).mean()), float((ratio > TRUNCATION).mean()), effective)


@dataclass
class Totals:
    """Sums over tokens.  dropped: number of dropped groups.  left_out: number of batches left out."""

    dropped: int = 0
    left_out: int = 0
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
            loss=self.mean("loss"),
            entropy=self.mean("entropy"),
            kl=self.mean("kl"),
            clipped=self.mean("clipped"),
            ratio=self.mean("ratio"),
            reward=math.fsum(member.reward for member in members) / count,
            groups=len(groups),
            dropped=self.dropped,
            left_out=self.left_out,
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
    factors, which are compared with its frozen base. behaviours: bf16 weights (n) by the age of the rollouts that they made.
    If the loss compares the policy with its behaviour, groups of another age are left out. rate_factor: on the learning
    rate.
    """

    order: int
    first_step: int
    reference: Path | None = None
    behaviours: Mapping[int, Tensor] = field(default_factory=dict)
    rate_factor: float = 1.0


@dataclass(frozen=True)
class WeighedCompletion:
    """Completion to learn from.  worth: its advantage.  age: as in `Group`."""

    rollout: Rollout
    worth: float
    age: int | None


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
        known = [group for group in groups if self._knows_behaviour(task, group)]
        left_out = {group.batch for group in groups} - {group.batch for group in known}
        if left_out:
            what = "1 batch is" if len(left_out) == 1 else f"{len(left_out)} batches are"
            print(f"{what} left out: the weights that made the rollouts are not held", file=sys.stderr)
        kept = informative(known) if self.config.drop_zero_advantage else known
        batches = self._compared(kept, task)
        totals, began = Totals(dropped=len(known) - len(kept), left_out=len(left_out)), time.monotonic()
        for number, batch in enumerate(batches):
            place = Place(task.first_step + number, 0.0, task.rate_factor)
            for units in self.work.step(batch, place).read().parts:
                totals.add(units)
            totals.steps, mean = number + 1, totals.mean("loss")
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {totals.steps} of a version")
            if after_step(totals.steps, mean, totals.tokens, totals.tokens / max(1e-9, time.monotonic() - began)):
                break
        learnt = totals.learnt(groups)
        has_behaviour = batches and self.config.compares_behaviour
        return replace(learnt, staleness=Staleness.of(batches)) if has_behaviour else learnt

    def _check(self, task: LearnTask, groups: Sequence[Group]) -> None:
        """Raise ValueError if required reference weights are missing, or for rollouts that the model cannot read."""
        if self.config.kl_weight and task.reference is None and self.model.base is None:
            raise ValueError("kl_weight is above 0, but there are no reference weights")
        rollouts = [member.rollout for group in groups for member in group.members]
        check_lengths(rollouts, self.config.row_tokens)
        largest = max((max(*rollout.prompt, *rollout.output) for rollout in rollouts), default=0)
        if largest >= self.model.config.vocab:
            raise ValueError(f"a rollout has the token {largest}, but the model has only {self.model.config.vocab} tokens")

    def _knows_behaviour(self, task: LearnTask, group: Group) -> bool:
        """Return True if the weights that made a group are held, or not needed."""
        return not self.config.compares_behaviour or group.age == 0 or group.age in task.behaviours

    def _parts(self, groups: Sequence[Group], order: int) -> list[list[WeighedCompletion]]:
        """Shuffle the completions into at most `optimizer_steps` parts, leaving out any without a model's token."""
        completions: list[WeighedCompletion] = []
        for group in groups:
            worth = advantages(group.rewards, self.config.divide_by_std)
            pairs = zip(group.members, worth, strict=True)
            completions += [
                WeighedCompletion(member.rollout, value, group.age) for member, value in pairs if any(member.rollout.made)
            ]
        shuffled = np.random.default_rng(order).permutation(len(completions)).tolist()
        count = min(self.config.optimizer_steps, len(completions))
        return [[completions[at] for at in shuffled[number::count]] for number in range(count)]

    def _compared(self, groups: Sequence[Group], task: LearnTask) -> list[Packed]:
        """Return a batch for each step, with the log-probabilities of its targets under all weights that the loss reads."""
        parts = self._parts(groups, task.order)
        batches = [self._packed(part) for part in parts]
        batches = [replace(batch, old_logp=self._log_probabilities(batch)) for batch in batches]
        if self.config.compares_behaviour:
            self._compare_behaviour(parts, batches, task)
        if not batches or not self.config.kl_weight:
            return batches
        self.work.show_reference("" if task.reference is None else str(task.reference))
        try:
            return [replace(batch, reference_logp=self._log_probabilities(batch)) for batch in batches]
        finally:
            self.work.hide()

    def _compare_behaviour(
        self, parts: Sequence[Sequence[WeighedCompletion]], batches: list[Packed], task: LearnTask
    ) -> None:
        """Add the log-probabilities under the weights that made each completion, unless the present weights made them all.

        The completions of each earlier version are packed anew, so that each is computed once, whatever shares its row.
        """
        ages = {each.age for part in parts for each in part if each.age}
        for age in sorted(ages):
            self.work.show_version(HeldWeights(task.behaviours[age]))
            try:
                for at, part in enumerate(parts):
                    numbers = [number for number, each in enumerate(part) if each.age == age]
                    if numbers:
                        rows = self._packed([part[number] for number in numbers])
                        found = self._log_probabilities(rows)
                        batches[at] = batches[at].with_behaviour(numbers, rows, found)
            finally:
                self.work.hide()

    def _packed(self, part: Sequence[WeighedCompletion]) -> Packed:
        return pack([each.rollout for each in part], [each.worth for each in part], self.config.row_tokens).trimmed()

    def _log_probabilities(self, batch: Packed) -> F32:
        found = self.work.log_probabilities(CourseName.ROLLOUTS, batch)
        assert found is not None, "rank 0 learns"
        return found
