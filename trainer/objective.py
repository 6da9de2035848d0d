"""Objectives of training on rows: the objectives of language models and of preferences, with statistics by source.

An objective turns rows into a loss that can be differentiated, and into the loss of each **unit**, which is a row or a pair
of rows.  The units' losses need no additional pass, and `SourceTotals` adds them up for each source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.losses import (
    PreferenceTerms,
    PreferenceTokens,
    language_model_losses,
    preference_loss,
    row_log_probabilities,
)
from protocol.formats.results import SourceLoss
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.device import on_device
from trainer.models.llama.model import Decoder, Documents, through_head

F64 = npt.NDArray[np.float64]


class StepRows(Protocol):
    """Rows of a step, which micro-batches and ranks divide."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, span: slice) -> Self:
        """Return some of the rows."""

    @property
    def length(self) -> int:
        """Number of tokens that are read in a row."""


RowsT = TypeVar("RowsT", bound=StepRows)


class ObjectiveLoss(NamedTuple):
    """Loss of some rows.  mean: scalar to differentiate.  units_u: (units,), nats of a row, or loss of a pair.

    margins_u: (units,), the pairs' margins; None for other rows.  statistics_s: means over the counted tokens, of rollouts.
    """

    mean: Tensor
    units_u: Tensor
    margins_u: Tensor | None = None
    statistics_s: Tensor | None = None

    def detached(self) -> ObjectiveLoss:
        """Return the loss without the graph for its gradient."""
        return ObjectiveLoss._make(None if each is None else each.detach() for each in self)


class Objective(ABC, Generic[RowsT]):
    """Loss on rows.  unit_rows: number of rows in a unit; micro-batches hold whole units.

    most_tokens: limit on the tokens of a micro-batch; None if only the device limits them.
    """

    unit_rows = 1
    most_tokens: int | None = None

    @abstractmethod
    def loss(self, model: Decoder, rows: RowsT, z_loss: float) -> ObjectiveLoss:
        """Return the loss of rows, which hold at least one unit."""

    @abstractmethod
    def weights_u(self, rows: RowsT) -> F64:
        """Return each unit's weight in the mean, (units,)."""

    @abstractmethod
    def measured(self, rows: RowsT, loss: ObjectiveLoss) -> UnitLosses:
        """Return the units' losses on the host."""


class ComparedObjective(Objective[RowsT]):
    """Loss that compares the probabilities of the rows under the model and under other weights."""

    @abstractmethod
    def log_probabilities(self, model: Decoder, rows: RowsT) -> Tensor:
        """Return the log-probabilities of the counted tokens of rows, (units, any), without gradient."""


@dataclass(frozen=True)
class UnitLosses:
    """Losses of units, each array (units,).  The mean loss is the sum of losses over the sum of weights.

    tokens: counted tokens.  sources: number of each unit's source.  margins: None except for preferences.  statistics_s:
    sums over the counted tokens of all units; None except for rollouts.
    """

    losses: F64
    weights: F64
    tokens: F64
    sources: npt.NDArray[np.int16]
    margins: F64 | None = None
    statistics_s: F64 | None = None


class RowsObjective(Objective[Rows]):
    """Loss on rows of text, chats or preferences."""

    def measured(self, rows: Rows, loss: ObjectiveLoss) -> UnitLosses:
        """Return the units' losses on the host."""
        step = self.unit_rows
        sources_b = np.zeros(len(rows), np.int16) if rows.sources_b is None else rows.sources_b
        return UnitLosses(
            on_host(loss.units_u),
            self.weights_u(rows),
            rows.counted_b.reshape(-1, step).sum(axis=1).astype(np.float64),
            sources_b[::step],
            None if loss.margins_u is None else on_host(loss.margins_u),
        )


class LanguageModelObjective(RowsObjective):
    """Mean loss over the counted tokens, in nats per token."""

    def loss(self, model: Decoder, rows: Rows, z_loss: float) -> ObjectiveLoss:
        """Return the loss as `Objective.loss` does; the mean includes `z_loss` times the max-z loss."""
        tokens, counts, documents = _tensors(rows, model)
        head = lambda hidden, weight: language_model_losses(hidden, weight, tokens[:, 1:], z_loss, counts)  # noqa: E731
        mean, nats_bt = through_head(model, tokens[:, :-1], documents, head)
        return ObjectiveLoss(mean, nats_bt.sum(dim=1))

    def weights_u(self, rows: Rows) -> F64:
        """Return the counted tokens of each row."""
        return rows.counted_b.astype(np.float64)


class PreferenceObjective(RowsObjective, ComparedObjective[Rows]):
    """DPO loss of pairs, whose rows have their log-probabilities under the reference weights."""

    unit_rows = 2

    def __init__(self, terms: PreferenceTerms) -> None:
        self._terms = terms

    def loss(self, model: Decoder, rows: Rows, z_loss: float) -> ObjectiveLoss:
        """Return the loss as `Objective.loss` does.  Preferences have no z-loss."""
        tokens, counts, documents = _tensors(rows, model)
        assert counts is not None and rows.reference_b is not None
        given = PreferenceTokens(tokens[:, 1:], counts, on_device(rows.reference_b, tokens.device))
        head = lambda hidden, weight: preference_loss(hidden, weight, given, self._terms)  # noqa: E731
        mean, statistics = through_head(model, tokens[:, :-1], documents, head)
        return ObjectiveLoss(mean, statistics.losses, statistics.margins)

    def weights_u(self, rows: Rows) -> F64:
        """Return 1 for each pair."""
        return np.ones(len(rows) // 2)

    @torch.no_grad()
    def log_probabilities(self, model: Decoder, rows: Rows) -> Tensor:
        """Return the log-probabilities (P, 2) of pairs: of the counted tokens of the chosen and of the rejected row."""
        tokens, counts, documents = _tensors(rows, model)
        assert counts is not None
        head = lambda hidden, weight: row_log_probabilities(hidden, weight, tokens[:, 1:], counts)  # noqa: E731
        return through_head(model, tokens[:, :-1], documents, head).float().view(-1, 2)


def _tensors(rows: Rows, model: Decoder) -> tuple[Tensor, Tensor | None, Documents | None]:
    """Return tokens (B, T + 1), counts (B, T) and documents on the model's device."""
    device = model.device
    tokens = on_device(rows.tokens_bt.astype(np.int64), device)
    counts = None if rows.counts_bt is None else on_device(rows.counts_bt, device)
    documents = None if rows.documents_bt is None else Documents.of(rows.documents_bt, device)
    return tokens, counts, documents


def on_host(values: Tensor) -> F64:
    """Return values on the host, in the precision in which they are added up."""
    found: F64 = values.detach().double().cpu().numpy()
    return found


# ------------------------------------------------------------------------------------------------------------------------
# Statistics by source.


class SourceTotals:
    """Sums of losses for each source.  names: names of the sources."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sums = np.zeros((3, len(names)))
        """Losses, weights and tokens of each source."""
        self._margin = self._accurate = 0.0
        self._pairs = 0

    def add(self, units: UnitLosses) -> None:
        """Add the losses of some units."""
        for sums, values in zip(self._sums, (units.losses, units.weights, units.tokens), strict=True):
            sums += np.bincount(units.sources, values, minlength=len(self._names))
        if units.margins is not None:
            self._margin += float(units.margins.sum())
            self._accurate += float((units.margins > 0).sum())
            self._pairs += len(units.margins)

    @property
    def losses(self) -> tuple[SourceLoss, ...]:
        """Mean loss of each source that has a counted token."""
        return tuple(
            SourceLoss(name, int(tokens), float(loss / weight))
            for name, loss, weight, tokens in zip(self._names, *self._sums, strict=True)
            if weight > 0 and tokens > 0
        )

    def mean(self, shares: Sequence[float]) -> float:
        """Return the mean of the sources' losses with these shares, without sources that have no counted token."""
        known = {each.source: each.loss for each in self.losses}
        used = [(share, known[name]) for name, share in zip(self._names, shares, strict=True) if name in known]
        if not any(share for share, _ in used):
            used = [(1.0, loss) for _, loss in used]
        return sum(share * loss for share, loss in used) / sum(share for share, _ in used)

    @property
    def margin(self) -> float | None:
        """Mean margin of the pairs; None without preferences."""
        return self._margin / self._pairs if self._pairs else None

    @property
    def accuracy(self) -> float | None:
        """Share of pairs with a margin above 0; None without preferences."""
        return self._accurate / self._pairs if self._pairs else None


def objective_of(config: TrainingConfig) -> RowsObjective:
    """Return the loss on the run's rows."""
    if config.data.format != "preference":
        return LanguageModelObjective()
    return PreferenceObjective(PreferenceTerms(config.data.beta, config.data.label_smoothing))
