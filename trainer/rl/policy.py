"""Policy objective of reinforcement learning: packed rollouts, and the loss on them.

Sequences of different lengths are packed into rows of one length. No sequence is dropped or cut. A sequence is a rollout's
prompt and output with its advantage. A row holds one or more sequences, end to end. A sequence has one place fewer than it
has tokens: each place reads a token and predicts the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.losses import PolicyLoss, PolicyTerms, PolicyTokens, policy_loss, token_log_probabilities
from protocol.formats.rl import RlConfig
from protocol.formats.training import InnerConfig
from trainer.device import on_device
from trainer.models.llama.model import Decoder, Documents, through_head
from trainer.objective import F64, ComparedObjective, ObjectiveLoss, UnitLosses, on_host
from trainer.rl.rollout import Rollout

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
PADDING = -1
"""Document id of places after the last sequence of a row."""


@dataclass(frozen=True)
class Packed:
    """Rows of places; each array is (rows, places).

    documents: number of the place's sequence among the packed sequences, or `PADDING`. mask: true if the model chose the
    target; only such targets count. Targets at other places do not matter. old_logp, reference_logp, behaviour_logp:
    log-probabilities of the targets under the parameters before the first step, under the reference weights, and under the
    weights that made the sequences; None until they are known, and for good if the loss does not read them.
    """

    tokens: I64
    documents: I64
    targets: I64
    mask: Bools
    advantages: F32
    old_logp: F32 | None = None
    reference_logp: F32 | None = None
    behaviour_logp: F32 | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tokens)

    def __getitem__(self, span: slice) -> Packed:
        """Return some of the rows."""
        return self._part((span, slice(None)))

    @property
    def length(self) -> int:
        """Number of places in each row."""
        return int(self.tokens.shape[1])

    @property
    def counted_tokens(self) -> int:
        """Number of targets that count."""
        return int(self.mask.sum())

    def trimmed(self) -> Packed:
        """Return the rows without the final places that are padding in every row."""
        return self._part((slice(None), slice(int((self.documents != PADDING).any(axis=0).sum()))))

    def with_behaviour(self, numbers: Sequence[int], rows: Packed, logp: F32) -> Packed:
        """Return the batch with the behaviour's log-probabilities of some sequences; those of others are the old ones.

        numbers: their numbers in this batch, ascending.  rows: the same sequences in other rows, numbered from 0 in the same
        order.  logp: log-probabilities of their targets, in the form of `rows`.
        """
        assert self.old_logp is not None
        known = self.old_logp if self.behaviour_logp is None else self.behaviour_logp
        values = known.copy()
        values.ravel()[self._places(numbers)] = logp.ravel()[rows._places(range(len(numbers)))]
        return replace(self, behaviour_logp=values)

    def log_ratios(self) -> F64:
        """Return the log-ratios of the old policy to the behaviour for the counted targets, (counted,)."""
        assert self.old_logp is not None
        if self.behaviour_logp is None:
            return np.zeros(self.counted_tokens)
        return (self.old_logp - self.behaviour_logp)[self.mask].astype(np.float64)

    def _places(self, numbers: Sequence[int]) -> I64:
        """Return the places of these sequences among all places, row by row: by sequence, then in reading order."""
        documents = self.documents.ravel()
        places = np.flatnonzero(np.isin(documents, numbers))
        return places[np.argsort(documents[places], kind="stable")]

    def _part(self, at: tuple[slice, slice]) -> Packed:
        arrays: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: array[at] for name, array in arrays.items() if array is not None})


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


STATISTICS = ("clipped", "ratio", "entropy", "kl")
"""Names of the statistics of the loss, in the order of `kernels.losses.PolicyStatistics`."""


class PolicyObjective(ComparedObjective[Packed]):
    """Policy loss of a run, a mean over the counted tokens."""

    def __init__(self, config: RlConfig) -> None:
        self.most_tokens = config.micro_batch_tokens
        self._temperature = config.temperature
        self._terms = PolicyTerms(
            config.eps,
            config.delta,
            config.temperature,
            config.entropy_weight,
            config.kl_weight,
            PolicyLoss(config.loss),
        )

    def loss(self, model: Decoder, rows: Packed, z_loss: float) -> ObjectiveLoss:
        """Return the loss as `Objective.loss` does, with its statistics.  Rollouts have no z-loss."""
        assert rows.old_logp is not None
        tokens, documents = _inputs(rows, model)
        _, sequences = np.unique(rows.documents, return_inverse=True)
        arrays = (
            rows.targets,
            rows.old_logp,
            rows.advantages,
            rows.mask,
            rows.reference_logp,
            rows.behaviour_logp,
            sequences.reshape(rows.documents.shape) if self._terms.loss is PolicyLoss.GSPO else None,
        )
        given = PolicyTokens(*(None if each is None else on_device(each, tokens.device) for each in arrays))  # type: ignore[arg-type]
        head = lambda hidden, weight: policy_loss(hidden, weight, given, self._terms)  # noqa: E731
        mean, statistics = through_head(model, tokens, documents, head)
        return ObjectiveLoss(mean, mean[None], statistics_s=torch.stack(list(statistics)))

    def weights_u(self, rows: Packed) -> F64:
        """Return the counted tokens of each row."""
        counted_b: F64 = rows.mask.sum(axis=1).astype(np.float64)
        return counted_b

    def measured(self, rows: Packed, loss: ObjectiveLoss) -> UnitLosses:
        """Return the loss of all rows together as the loss of one unit."""
        counted = np.array([float(rows.counted_tokens)])
        assert loss.statistics_s is not None
        statistics_s = on_host(loss.statistics_s) * counted
        return UnitLosses(
            on_host(loss.units_u) * counted, counted, counted, np.zeros(1, np.int16), statistics_s=statistics_s
        )

    @torch.no_grad()
    def log_probabilities(self, model: Decoder, rows: Packed) -> Tensor:
        """Return the log-probabilities of the targets, (rows, places)."""
        tokens, documents = _inputs(rows, model)
        targets = on_device(rows.targets, tokens.device)
        head = lambda hidden, weight: token_log_probabilities(hidden, weight, targets, self._temperature)  # noqa: E731
        return through_head(model, tokens, documents, head)


def _inputs(rows: Packed, model: Decoder) -> tuple[Tensor, Documents]:
    """Return tokens and documents on the model's device."""
    return on_device(rows.tokens, model.device), Documents.of(rows.documents, model.device)


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
