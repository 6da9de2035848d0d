"""A run small enough for tests."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from kernels.layout import chunk_layout
from trainer.config import TrainingConfig
from trainer.data.embedded import Corpus
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.worker import Worker

MODEL: dict[str, Any] = {
    "vocab": 256, "dim": 16, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 24, "rope_base": 10_000.0,
    "norm_eps": 1e-5, "tied": True,
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "seed": 7,
    "model": MODEL,
    "data": {"corpus": "stdlib", "sequence_length": 16, "sequences_per_step": 2, "held_out_percent": 5},
    "inner": {
        "lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "z_loss": 2e-4,
        "schedule": "wsd", "warmup_steps": 2, "cooldown": 0.2, "joiner_warmup_steps": 4,
    },
    "inner_steps": 1000,
    "chunk_parameters": 1024,
}  # fmt: skip
PARAMETERS = ModelConfig.from_mapping(MODEL).parameters
LAYOUT = chunk_layout(PARAMETERS, SECTIONS["chunk_parameters"])
CPU = torch.device("cpu")


def config(**changes: Any) -> TrainingConfig:
    return TrainingConfig.from_sections(SECTIONS | changes)


def corpus(size: int = 5000) -> Corpus:
    """Bytes that only look random."""
    noise = hashlib.shake_128(b"corpus").digest(2 * size)
    tokens = np.frombuffer(noise, dtype=np.uint8)
    return Corpus(tokens[:size], tokens[size:], "test")


def worker(**changes: Any) -> Worker:
    return Worker(config(**changes), CPU, corpus())


def theta() -> np.ndarray:
    values = np.empty(PARAMETERS, dtype=np.float32)
    initial_parameters(ModelConfig.from_mapping(MODEL), 7, values)
    return values


def model() -> Decoder:
    """A model with the initial parameters."""
    made = Decoder(ModelConfig.from_mapping(MODEL), CPU)
    made.flat.copy_(torch.from_numpy(theta()))
    return made
