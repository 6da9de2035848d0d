"""Adapter runs of `benchmarks.detection`: factors beside a frozen model, and cheats that compute with something else.

The factors are drawn, not learned.  Their product has `STRENGTH` of the norm of the matrix beside which it is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from benchmarks.detection_peers import FAMILIES, VERSION, Frozen, Peer, Run, model_of, parameters, quantised, rounded
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig, parameter_layout
from trainer.rl.rollout import Rollout

ADAPTERS: Mapping[str, tuple[str, WeightFormat]] = {
    f"{family} adapter{'' if format is WeightFormat.BF16 else f' on {format}'}": (family, format)
    for family in FAMILIES
    for format in WeightFormat
}
"""Family of the frozen model, and format of its matrices, by the name of the run."""
ADAPTER = AdapterConfig(rank=8, alpha=8.0)
STRENGTH = 0.1
STEP = 1e-3
"""Rate of factors at which the older versions are apart: a step of AdamW changes each value by about the rate."""


def adapter_run(name: str, length: int) -> Run:
    """Return the run of a name in `ADAPTERS`; the factors are in bf16, as versions of rollouts are."""
    family, format = ADAPTERS[name]
    config = model_of(family, length)
    weights = parameters(config)
    return Run(config, rounded(_factors(config, weights)), length, Frozen(ADAPTER, weights, format))


def _factors(config: ModelConfig, weights: np.ndarray) -> np.ndarray:
    random, matrices = np.random.default_rng(3), _matrices(config, weights)
    layout = adapter_layout(config, ADAPTER)
    theta = random.standard_normal(layout[-1].offset + layout[-1].count).astype(np.float32)
    pairs = zip(layout[::2], layout[1::2], strict=True)
    for down, up in pairs:
        a, b = (theta[each.offset : each.offset + each.count].reshape(each.shape) for each in (down, up))
        a /= np.sqrt(np.float32(down.shape[1]))
        matrix = matrices[down.name.replace(".lora_A", "")]
        b *= STRENGTH * np.linalg.norm(matrix) / (ADAPTER.scale * np.linalg.norm(b @ a))
    return theta


def _matrices(config: ModelConfig, weights: np.ndarray) -> dict[str, np.ndarray]:
    return {
        place.name: weights[place.offset : place.offset + place.count].reshape(place.shape)
        for place in parameter_layout(config)
    }


def merged(run: Run) -> np.ndarray:
    """Return the weights of the frozen model with the product of the factors added, fp32."""
    assert run.frozen is not None
    weights = run.frozen.weights.copy()
    matrices, layout = _matrices(run.config, weights), adapter_layout(run.config, run.frozen.adapter)
    for down, up in zip(layout[::2], layout[1::2], strict=True):
        a, b = (run.theta[each.offset : each.offset + each.count].reshape(each.shape) for each in (down, up))
        matrices[down.name.replace(".lora_A", "")] += np.float32(run.frozen.adapter.scale) * (b @ a)
    return weights


def adapter_cheats(run: Run, count: int) -> Iterator[tuple[str, list[Rollout]]]:
    """Yield the rollouts of peers that compute with other weights than the run's."""
    assert run.frozen is not None
    frozen, random = run.frozen, np.random.default_rng(4)
    direction = np.sign(random.standard_normal(run.theta.size)).astype(np.float32)
    for steps in (1, 10):
        older = rounded(run.theta - np.float32(steps * STEP) * direction)
        yield f"an older adapter, {steps} x {STEP:g} apart", Peer(run, older).rollouts(count)
    yield "the older version's rollouts, its own noise", Peer(run).rollouts(count, version=VERSION - 1)
    yield "no adapter", Peer(run, np.zeros_like(run.theta)).rollouts(count)
    yield "factors rounded to int8", Peer(run, quantised(run.theta, 127)).rollouts(count)
    if frozen.format is WeightFormat.BF16:
        whole = merged(run)
        yield "merged in fp32", Peer(Run(run.config, whole, run.length)).rollouts(count)
        yield "merged, rounded to bf16", Peer(Run(run.config, rounded(whole), run.length)).rollouts(count)
    for format in WeightFormat:
        if format is not frozen.format:
            yield f"frozen model in {format}", Peer(replace(run, frozen=replace(frozen, format=format))).rollouts(count)
    other = parameters(run.config, seed=2)
    yield "another frozen model", Peer(replace(run, frozen=replace(frozen, weights=other))).rollouts(count)
