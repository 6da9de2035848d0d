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

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.layout import chunk_layout
from kernels.losses import PolicyStatistics, PolicyTerms, PolicyTokens, policy_loss, token_log_probabilities
from trainer.config import InnerConfig
from trainer.device import on_device
from trainer.models.llama.model import Decoder, Documents, hidden_states
from trainer.optim import AdamW, MicroBatches, warmed
from trainer.parameters import NotFinite, WholeParameters, encode_difference, load
from trainer.reference import read_reference
from trainer.rl.config import RlConfig
from trainer.rl.groups import Group, advantages, informative
from trainer.rl.rollout import Rollout

# ------------------------------------------------------------------------------------------------------------------------
# Packing of sequences of different lengths into rows of one length, for the learner. No sequence is dropped or cut.
#
# A sequence is a rollout's prompt and output with its advantage. A row holds one or more sequences, end to end. A sequence
# has one place fewer than it has tokens: each place reads a token and predicts the next one.


I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
PADDING = -1
"""Document id of places after the last sequence of a row."""


@dataclass(frozen=True)
class Packed:
    """Rows of places; each array is (rows, places).

    documents: number of the place's sequence among the packed sequences, or `PADDING`. mask: true if the model chose the
    target; only such targets count. Targets at other places do not matter.
    """

    tokens: I64
    documents: I64
    targets: I64
    mask: Bools
    advantages: F32

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of places in each row."""
        rows, places = self.tokens.shape
        return rows, places

    @property
    def counted_tokens(self) -> int:
        """Number of targets that count."""
        return int(self.mask.sum())

    def rows(self, span: slice) -> Packed:
        """Return some of the rows."""
        return self._part((span, slice(None)))

    def trimmed(self) -> Packed:
        """Return the rows without the final places that are padding in every row."""
        return self._part((slice(None), slice(int((self.documents != PADDING).any(axis=0).sum()))))

    def _part(self, at: tuple[slice, slice]) -> Packed:
        return Packed(self.tokens[at], self.documents[at], self.targets[at], self.mask[at], self.advantages[at])


def places_of(rollout: Rollout) -> int:
    """Return the number of places that a rollout takes in a row."""
    return len(rollout.prompt) + len(rollout.output) - 1


def check_lengths(rollouts: Sequence[Rollout], row_tokens: int) -> None:
    """Raise ValueError for a rollout that is longer than a row."""
    for rollout in rollouts:
        if places_of(rollout) > row_tokens:
            raise ValueError(
                f"copy {rollout.copy} of problem {rollout.problem} has {places_of(rollout) + 1} tokens, and a row takes "
                f"{row_tokens + 1}; make row_tokens larger or max_tokens smaller"
            )


def pack(rollouts: Sequence[Rollout], advantages: Sequence[float], row_tokens: int) -> Packed:
    """Pack all the rollouts into rows of `row_tokens` places.  Raises ValueError, before packing, if one is too long."""
    check_lengths(rollouts, row_tokens)
    rows = _first_fit([places_of(rollout) for rollout in rollouts], row_tokens)
    shape = (len(rows), row_tokens)
    packed = Packed(
        tokens=np.zeros(shape, np.int64),
        documents=np.full(shape, PADDING, np.int64),
        targets=np.zeros(shape, np.int64),
        mask=np.zeros(shape, np.bool_),
        advantages=np.zeros(shape, np.float32),
    )
    for row, numbers in enumerate(rows):
        start = 0
        for number in numbers:
            rollout = rollouts[number]
            sequence = rollout.prompt + rollout.output
            span = slice(start, start + places_of(rollout))
            packed.tokens[row, span], packed.targets[row, span] = sequence[:-1], sequence[1:]
            packed.documents[row, span] = number
            packed.mask[row, span.stop - len(rollout.output) : span.stop] = rollout.made
            packed.advantages[row, span] = advantages[number]
            start = span.stop
    return packed


def _first_fit(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Assign sequences to rows, the longest first, each to the first row with enough room (first-fit decreasing)."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, left in enumerate(room) if left >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_tokens)
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows


# ------------------------------------------------------------------------------------------------------------------------


# ------------------------------------------------------------------------------------------------------------------------
# Statistics of the training on a version: sums over tokens during training, means at the end.


STATISTICS = ("loss", "clipped", "ratio", "entropy", "kl")
"""Names of the means over tokens, in the order of `kernels.losses.policy_loss`."""


@dataclass(frozen=True)
class Learnt:
    """Statistics of the training on one version.

    tokens: number of trained tokens. steps: 0 if no group had anything to learn from. norm: norm of the difference. Means
    over the trained tokens: loss, entropy (nats), kl (nats, to the reference), clipped (share), ratio (new over old
    probability). Means over all received rollouts: reward, solve_rate, length (number of tokens that the model chose).
    groups, dropped: numbers of received and of dropped groups.
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
    solve_rate: float
    length: float
    groups: int
    dropped: int


@dataclass
class Totals:
    """Sums over tokens.  dropped: number of dropped groups."""

    dropped: int = 0
    steps: int = 0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATISTICS, 0.0))

    def add(self, tokens: int, means: Sequence[float]) -> None:
        """Add `tokens` tokens with these means, which are in the order of `STATISTICS`."""
        self.tokens += tokens
        for name, value in zip(STATISTICS, means, strict=True):
            self.sums[name] += tokens * value

    def merge(self, other: Totals) -> None:
        """Add the tokens and sums of `other`, but not its steps and dropped groups."""
        self.tokens += other.tokens
        for name, value in other.sums.items():
            self.sums[name] += value

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
            **{name: self.mean(name) for name in STATISTICS},
            reward=math.fsum(member.reward for member in members) / count,
            solve_rate=math.fsum(member.solved for member in members) / count,
            length=sum(sum(member.rollout.made) for member in members) / count,
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
    reference: file of the weights with which the KL term compares; required if the run has a KL term.
    """

    order: int
    first_step: int
    reference: Path | None = None


class Learner:
    """Learner of one run on one device.  layout: the chunks of a contribution; each is encoded separately."""

    def __init__(self, config: RlConfig, model: Decoder, chunk_parameters: int) -> None:
        """Make a learner that changes the parameters of `model`."""
        self.config = config
        self.model = model
        self.optimiser = AdamW(WholeParameters(self.model), adamw_config(config))
        self.layout = chunk_layout(len(self.model.flat), chunk_parameters)
        self._micro_batches = MicroBatches()

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
        load(theta, self.model.flat)
        learnt = self.learn(task, groups, after_step)
        return replace(learnt, norm=encode_difference(theta, self.model.flat, self.layout, out))

    def learn(self, task: LearnTask, groups: Sequence[Group], after_step: AfterStep = lambda *_: False) -> Learnt:
        """Take the steps of `compute` from the model's current parameters, without theta or a difference (norm 0)."""
        self._check(task, groups)
        kept = informative(groups) if self.config.drop_zero_advantage else groups
        batches = self._frozen(self._batches(kept, task.order), task.reference)
        totals, began = Totals(dropped=len(groups) - len(kept)), time.monotonic()
        for number, batch in enumerate(batches):
            totals.merge(self._accumulate(batch))
            self.optimiser.step(self.config.lr * warmed(task.first_step + number, self.config.warmup_steps))
            totals.steps, mean = number + 1, totals.mean("loss")
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {totals.steps} of a version")
            if after_step(totals.steps, mean, totals.tokens, totals.tokens / max(1e-9, time.monotonic() - began)):
                break
        return totals.learnt(groups)

    def _check(self, task: LearnTask, groups: Sequence[Group]) -> None:
        """Raise ValueError if required reference weights are missing, or for rollouts that the model cannot read."""
        if self.config.kl_weight and task.reference is None:
            raise ValueError("kl_weight is above 0, and there are no reference weights to compare with")
        rollouts = [member.rollout for group in groups for member in group.members]
        check_lengths(rollouts, self.config.row_tokens)
        largest = max((max(*rollout.prompt, *rollout.output) for rollout in rollouts), default=0)
        if largest >= self.model.config.vocab:
            raise ValueError(f"a rollout has the token {largest}, and the model has {self.model.config.vocab} of them")

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

    @torch.no_grad()
    def _frozen(self, parts: Sequence[Packed], reference: Path | None) -> list[_Batch]:
        """Return batches with the log-probabilities of their targets under the current and the reference parameters."""
        batches = [_Batch(packed, self._log_probabilities(self.model, packed)) for packed in parts]
        if not self.config.kl_weight or reference is None:
            return batches
        other = self.model.over(read_reference(reference, self.model.flat, self.model.compute_dtype))
        return [replace(batch, reference_logp=self._log_probabilities(other, batch.packed)) for batch in batches]

    def _log_probabilities(self, model: Decoder, packed: Packed) -> Tensor:
        """Return log-probabilities of the targets, (rows, places)."""

        def compute(part: int) -> Tensor:
            parts = []
            for span in _spans(packed, part):
                tokens, documents, targets, _, _ = _tensors(packed.rows(span), model.flat.device)
                hidden = hidden_states(model, tokens, documents)
                parts.append(token_log_probabilities(hidden, model.output_weight, targets, self.config.temperature))
            return torch.cat(parts)

        return self._micro_batches.run(self._rows_at_once(packed), compute)

    def _accumulate(self, batch: _Batch) -> Totals:
        """Write the gradient of a batch's loss into the model; return the batch's statistics."""
        whole = batch.packed.counted_tokens

        def compute(part: int) -> Totals:
            self.model.gradient.zero_()
            counts, means = [], []
            for span in _spans(batch.packed, part):
                loss, statistics, counted = self._loss(batch, span)
                (loss * (counted / whole)).backward()  # type: ignore[no-untyped-call]
                counts.append(counted)
                means.append(torch.stack([loss.detach(), *statistics]))
            found = Totals()
            for counted, values in zip(counts, torch.stack(means).tolist(), strict=True):  # waits for the device once
                found.add(counted, values)
            return found

        return self._micro_batches.run(self._rows_at_once(batch.packed), compute)

    def _loss(self, batch: _Batch, span: slice) -> tuple[Tensor, PolicyStatistics, int]:
        """Return the mean loss of some rows, its statistics, and the number of counted tokens."""
        config, rows = self.config, batch.packed.rows(span)
        tokens, documents, targets, mask, worth = _tensors(rows, self.model.flat.device)
        reference_logp = None if batch.reference_logp is None else batch.reference_logp[span]
        loss, statistics = policy_loss(
            hidden_states(self.model, tokens, documents),
            self.model.output_weight,
            PolicyTokens(targets, batch.old_logp[span], worth, mask, reference_logp),
            PolicyTerms(config.eps, config.delta, config.temperature, config.entropy_weight, config.kl_weight),
        )
        return loss, statistics, rows.counted_tokens

    def _rows_at_once(self, packed: Packed) -> int:
        rows, places = packed.shape
        return min(rows, max(1, self.config.micro_batch_tokens // places))


@dataclass(frozen=True)
class _Batch:
    """Completions of one optimiser step.  old_logp, reference_logp: (rows, places), on the model's device."""

    packed: Packed
    old_logp: Tensor
    reference_logp: Tensor | None = None


def _spans(packed: Packed, part: int) -> list[slice]:
    """Return slices of the rows, `part` at a time."""
    return [slice(start, start + part) for start in range(0, packed.shape[0], part)]


def _tensors(rows: Packed, device: torch.device) -> tuple[Tensor, Documents, Tensor, Tensor, Tensor]:
    """Return tokens, documents, targets, mask and advantages on a device."""
    arrays = (rows.tokens, rows.targets, rows.mask, rows.advantages)
    tokens, targets, mask, worth = (on_device(array, device) for array in arrays)
    return tokens, Documents.of(rows.documents, device), targets, mask, worth


def adamw_config(config: RlConfig) -> InnerConfig:
    """Return AdamW's configuration, with a constant learning rate and no z-loss."""
    return InnerConfig(
        lr=config.lr,
        beta1=config.beta1,
        beta2=config.beta2,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        z_loss=0.0,
        schedule="wsd",
        warmup_steps=config.warmup_steps,
        cooldown=0.0,
        joiner_warmup_steps=0,
    )
