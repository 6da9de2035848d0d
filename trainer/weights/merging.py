"""Merging, tensor by tensor: several models of one shape into one (linear, SLERP, TIES), or an adapter into its base.

One tensor of each model is in memory at a time, with a few more tensors of the same size. The result is the flat vector in
order, which the caller can pass to `trainer.weights.folder`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from protocol.formats.adapter import AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig, parameter_layout
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import F32, FolderError, ValueStream

PARALLEL = 0.9995
"""Cosine beyond which two tensors count as parallel or opposite: the arc between such tensors is not well defined."""


class Rule(Protocol):
    """Rule that merges the tensors of several models into one.  models: the number of models that the rule takes."""

    @property
    def models(self) -> int:
        """Number of models."""

    def __call__(self, tensors: Sequence[F32]) -> F32:
        """Return the merged tensor, of the same size; do not change `tensors`."""


@dataclass(frozen=True)
class Linear:
    """Weighted mean ("model soups", Wortsman et al. 2022).  weights: one for each model, with any positive sum."""

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_weights(self.weights)

    @property
    def models(self) -> int:
        """Number of models, one for each weight."""
        return len(self.weights)

    def __call__(self, tensors: Sequence[F32]) -> F32:
        """Return the merged tensor as `Rule.__call__` describes."""
        total = math.fsum(self.weights)
        merged = np.zeros_like(tensors[0])
        for weight, tensor in zip(self.weights, tensors, strict=True):
            merged += np.float32(weight / total) * tensor
        return merged


@dataclass(frozen=True)
class Slerp:
    """Interpolation from the first model to the second along the arc between them (Shoemake 1985), by the share `t`.

    The angle is the angle between the tensors as vectors; their lengths are also interpolated. If the tensors are parallel
    or opposite, or if one is zero, the interpolation is linear.
    """

    t: float

    def __post_init__(self) -> None:
        if not 0 <= self.t <= 1:
            raise ValueError(f"slerp takes a share from 0 (the first model) to 1 (the second model), not {self.t}")

    @property
    def models(self) -> int:
        """Number of models, which is two."""
        return 2

    def __call__(self, tensors: Sequence[F32]) -> F32:
        """Return the merged tensor as `Rule.__call__` describes."""
        one, other = tensors
        lengths = math.sqrt(_dot(one, one) * _dot(other, other))
        cosine = _dot(one, other) / lengths if lengths else 1.0
        if abs(cosine) > PARALLEL:
            return np.float32(1 - self.t) * one + np.float32(self.t) * other
        angle = math.acos(cosine)
        first, second = math.sin((1 - self.t) * angle) / math.sin(angle), math.sin(self.t * angle) / math.sin(angle)
        return np.float32(first) * one + np.float32(second) * other


@dataclass(frozen=True)
class Ties:
    """TIES merging (Yadav et al. 2023): the models' differences from a common base, without contradictory values.

    The first tensor is from the base. Each other model keeps the largest values of its difference from the base, a share of
    `density`. Each parameter gets the sign with the larger weighted sum. The differences of that sign are averaged by
    weight, and `scale` times the average is added to the base. We trim each tensor separately; the paper trims the whole
    vector.
    """

    weights: tuple[float, ...]
    density: float = 0.2
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        if not 0 < self.density <= 1:
            raise ValueError(f"the density of ties must be above 0 and at most 1, not {self.density}")
        if not math.isfinite(self.scale):
            raise ValueError(f"the scale of ties must be finite, not {self.scale}")

    @property
    def models(self) -> int:
        """Number of models: the base, and one for each weight."""
        return 1 + len(self.weights)

    def __call__(self, tensors: Sequence[F32]) -> F32:
        """Return the merged tensor as `Rule.__call__` describes."""
        base, *others = tensors
        kept = [trimmed(other - base, self.density) for other in others]
        elected = np.zeros_like(base)
        for weight, difference in zip(self.weights, kept, strict=True):
            elected += np.float32(weight) * difference
        np.sign(elected, out=elected)
        total, divisor, mean = np.zeros_like(base), np.zeros_like(base), np.zeros_like(base)
        for weight, difference in zip(self.weights, kept, strict=True):
            agreeing = np.float32(weight) * ((np.sign(difference) == elected) & (difference != 0))
            total += agreeing * difference
            divisor += agreeing
        np.divide(total, divisor, out=mean, where=divisor > 0)
        return base + np.float32(self.scale) * mean


def trimmed(difference: F32, density: float) -> F32:
    """Zero all but the largest values by magnitude.

    A share of `density`, but at least one value, is kept, with all values that tie with the smallest kept one.
    """
    count = max(1, round(density * difference.size))
    sizes = np.abs(difference)
    least = np.partition(sizes, difference.size - count)[difference.size - count]
    return np.asarray(difference * (sizes >= least), np.float32)


def merged(folders: Sequence[WeightsFolder], rule: Rule) -> Iterator[F32]:
    """Yield the merged model's flat vector, tensor by tensor.

    Raises `FolderError` before the first tensor or between two.
    """
    if rule.models != len(folders):
        raise FolderError(f"this merge takes {rule.models} models, but {len(folders)} are given; give that number of models")
    for folder in folders[1:]:
        _check_shape(folders[0], folder)
    for tensors in zip(*(folder.tensors() for folder in folders), strict=True):
        yield rule(tensors)


def _check_shape(first: WeightsFolder, other: WeightsFolder) -> None:
    """Raise `FolderError` if two folders hold models of different shapes; the models' contexts may differ."""
    for name in ModelConfig.model_fields:
        ours, theirs = (getattr(folder.config, name) for folder in (first, other))
        if ours != theirs and name != "context":
            raise FolderError(
                f"{other.folder} has {name} {theirs}, and {first.folder} has {ours}; merge only models of the same shape"
            )


def _check_weights(weights: Sequence[float]) -> None:
    if not weights or not all(0 <= weight < math.inf for weight in weights) or not math.fsum(weights) > 0:
        raise ValueError(f"the weights of a merge must be finite, not negative and not all 0, unlike {list(weights)}")


def _dot(one: F32, other: F32) -> float:
    """Return the dot product in fp64."""
    return float(np.einsum("i,i->", one, other, dtype=np.float64))


# ------------------------------------------------------------------------------------------------------------------------


def merged_blocks(base: WeightsFolder, adapter: AdapterConfig, factors: Iterable[F32]) -> Iterator[F32]:
    """Yield the flat vector of a model with its adapter added, in blocks of any size.

    Each projection W with factors A and B becomes W + alpha / rank * B A, computed in fp32. factors: the flat vector of
    `adapter_layout` in order, in blocks of any size. Raises `FolderError` between two blocks.
    """
    stream, places = ValueStream(factors), adapter_layout(base.config, adapter)
    pairs = {a.name.replace(".lora_A.", "."): (a, b) for a, b in zip(places[::2], places[1::2], strict=True)}
    for place in parameter_layout(base.config):  # which has the projections in the order of the factors
        if place.name not in pairs:
            yield from base.blocks(place.name)
            continue
        a, b = (np.concatenate(list(stream.take(each.count))).reshape(each.shape) for each in pairs[place.name])
        total = (b @ a).reshape(-1)
        total *= np.float32(adapter.scale)
        filled = 0
        for block in base.blocks(place.name):
            total[filled : filled + len(block)] += block
            filled += len(block)
        yield total
    stream.check_end()
