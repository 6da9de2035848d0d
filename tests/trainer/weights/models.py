"""Small models of every family, and the logits that we compute for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from protocol.formats.model import ModelConfig, parameter_layout
from protocol.run.manifest import demo_manifest
from trainer.config import TrainingConfig
from trainer.models.llama.model import Decoder

F32 = npt.NDArray[np.float32]

SHAPE: dict[str, Any] = {
    "vocab": 300, "dim": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn": 72, "rope_base": 20_000.0, "norm_eps": 1e-6,
}  # fmt: skip
LLAMA3 = SHAPE | {
    "rope_factor": 8.0, "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "rope_original_context": 64,
    "context": 256,
}  # fmt: skip
QWEN2 = SHAPE | {"qkv_bias": True, "kv_heads": 1}
QWEN3 = SHAPE | {"qk_norm": True, "head_dim": 20, "kv_heads": 4}
DEMO = TrainingConfig.from_sections(demo_manifest().manifest.trainer_sections()).model

CONFIGS = {
    "demo": DEMO,
    **{
        f"{name}{', tied' * tied}": ModelConfig.from_mapping(shape | {"tied": tied})
        for name, shape in {
            "llama3": LLAMA3,
            "llama with wide heads": SHAPE | {"head_dim": 12},
            "qwen2": QWEN2,
            "qwen2 with wide heads": QWEN2 | {"head_dim": 12},
            "qwen3": QWEN3,
        }.items()
        for tied in (False, True)
    },
}


def random_parameters(config: ModelConfig, seed: int = 0) -> F32:
    """Large enough everywhere, biases and norms too, that each of them changes the logits, and so do positions."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(config.parameters) * 0.2
    for place in parameter_layout(config):
        if place.name.endswith("norm.weight"):
            values[place.offset : place.offset + place.count] += 1.0
    return values.astype(np.float32)


def in_blocks(values: F32, size: int = 1000) -> Iterator[F32]:
    """The values in order."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def tokens_for(config: ModelConfig) -> torch.Tensor:
    """(2, 90): longer than LLAMA3's original context."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, config.vocab, (2, 90)))


def our_logits(config: ModelConfig, parameters: F32) -> torch.Tensor:
    """(2, 90, vocab), fp32"""
    model = Decoder(config, torch.device("cpu"), torch.from_numpy(parameters))
    with torch.no_grad():
        hidden = model(tokens_for(config))
        return F.linear(hidden, model.output_weight)
