"""Initial parameters, which are a function of the run's seed with the same bits on every computer.

Libraries change their samplers, and `log` and `cos` differ in the last bit between processors. So the normal distribution
comes from a table: Philox's counter-based bits (a published, fixed generator) pick one of 65 536 quantiles, which are
rounded to a grid so coarse that the rounding of processors does not matter. The range of the quantiles truncates the
distribution.

Embeddings are normal with standard deviation 1 (0.02 if tied, because they are then also the output weights). Matrices are
truncated normal with 0.02, but with 0.02 / sqrt(2 (layer + 1)) if they write into the residual stream, and with
1 / sqrt(dim) if they are untied output weights. Norms are 1 (as in torchtitan); biases are 0.

Of the factors of an adapter, A is uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs) and B is 0, as in peft.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from protocol.formats.adapter import AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig, ParameterPlace, parameter_layout

F32 = npt.NDArray[np.float32]

QUANTILES = 1 << 16
GRID = 1 << 14
"""Denominator of the quantiles: steps of 1 / GRID are far larger than differences between computers' arithmetic."""
TRUNCATE_AT = 3.0
"""Number of standard deviations at which truncated normals are cut."""
BLOCK = 1 << 20
"""Number of parameters drawn at a time (a multiple of 4, because one 64-bit draw makes four parameters)."""
STD = 0.02


def initial_parameters(config: ModelConfig, seed: int, out: F32, adapter: AdapterConfig | None = None) -> None:
    """Fill `out` (fp32, the count of trained parameters) with the initial parameters of the model, or of the adapter."""
    if adapter is not None:
        return _initial_factors(config, adapter, seed, out)
    layout = parameter_layout(config)
    assert out.shape == (layout[-1].offset + layout[-1].count,) and out.dtype == np.float32
    for index, place in enumerate(layout):
        part = out[place.offset : place.offset + place.count]
        if place.name.endswith("norm.weight"):
            part[:] = 1.0
        elif place.name.endswith(".bias"):
            part[:] = 0.0
        else:
            std, truncated = _distribution(config, place)
            _draw(_quantiles(truncated), seed, index, std, part)


def _initial_factors(config: ModelConfig, adapter: AdapterConfig, seed: int, out: F32) -> None:
    out[:] = 0.0
    even = ((np.arange(QUANTILES) + 0.5) * (2.0 / QUANTILES) - 1.0).astype(np.float32)
    for index, place in enumerate(adapter_layout(config, adapter)):
        if place.name.endswith("lora_A.weight"):
            bound = 1.0 / math.sqrt(place.shape[1])
            _draw(even, seed, index, bound, out[place.offset : place.offset + place.count])


def _draw(quantiles: F32, seed: int, index: int, scale: float, out: F32) -> None:
    """Fill `out` with values drawn from the quantiles, times the scale.  index: number of the tensor, of any order."""
    stream = np.random.Philox(key=np.array([seed & (2**64 - 1), index], dtype=np.uint64))
    for start in range(0, len(out), BLOCK):
        block = out[start : start + BLOCK]
        words = np.asarray(stream.random_raw((len(block) + 3) // 4), dtype="<u8")
        np.multiply(quantiles[words.view("<u2")[: len(block)]], np.float32(scale), out=block)


def _distribution(config: ModelConfig, place: ParameterPlace) -> tuple[float, bool]:
    """Return the standard deviation, and True if the normal distribution is truncated."""
    if place.name == "model.embed_tokens.weight":
        return (STD if config.tied else 1.0), False
    if place.name == "lm_head.weight":
        return 1.0 / math.sqrt(config.dim), True
    if place.name.endswith(("o_proj.weight", "down_proj.weight")):
        layer = int(place.name.split(".")[2])
        return STD / math.sqrt(2 * (layer + 1)), True
    return STD, True


@lru_cache(maxsize=2)
def _quantiles(truncated: bool) -> F32:
    normal = NormalDist()
    low = normal.cdf(-TRUNCATE_AT) if truncated else 0.0
    half = [round(normal.inv_cdf(low + (i + 0.5) / QUANTILES * (1 - 2 * low)) * GRID) / GRID for i in range(QUANTILES // 2)]
    values = np.array(half, dtype=np.float32)
    return np.concatenate([values, -values[::-1]])
