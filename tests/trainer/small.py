"""A run small enough for tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.formats.model import ModelConfig
from tests.trainer.data.corpora import Shape, texts, write_corpus
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.worker import Worker

MODEL: dict[str, Any] = {
    "vocab": 256, "dim": 16, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 24, "rope_base": 10_000.0,
    "norm_eps": 1e-5, "tied": True,
}  # fmt: skip
CORPUS = Path(tempfile.mkdtemp(prefix="small-corpus-"))
"""A corpus of bytes that only look random, which goes with the process."""
atexit.register(shutil.rmtree, CORPUS, ignore_errors=True)
write_corpus(CORPUS, Shape(), {"text": texts(0, 5000, 5000)})


def data_sections(folder: Path, weights: Mapping[str, int], *caches: Path, **data: Any) -> dict[str, Any]:
    """Sections on the data of a small run on a corpus, whose blocks lie in its own folder or in the caches."""
    section = {
        "sequence_length": 16,
        "sequences_per_step": 2,
        "documents": "joined",
        "sources": [{"name": name, "corpus": "corpus.msgpack", "source": name} for name in weights],
        "phases": [{"start": 0, "weights": list(weights.values())}],
    }
    return {
        "data": section | data,
        "files": {"corpus.msgpack": str(folder / "corpus.msgpack")},
        "blocks": [str(each) for each in caches or (folder / "shards",)],
    }


SECTIONS: dict[str, Any] = data_sections(CORPUS, {"text": 1}) | {
    "seed": 7,
    "model": MODEL,
    "inner": {
        "lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "z_loss": 2e-4,
        "schedule": "wsd", "warmup_steps": 2, "cooldown": 0.2, "joiner_warmup_steps": 4,
    },
    "inner_steps": 1000,
    "chunk_parameters": 1024,
    "codec": "int4",
}  # fmt: skip
PARAMETERS = ModelConfig.from_mapping(MODEL).parameters
LAYOUTS = chunk_layouts(LADDER["int4"], PARAMETERS, SECTIONS["chunk_parameters"])
LAYOUT = LAYOUTS.contribution
CPU = torch.device("cpu")


def config(**changes: Any) -> TrainingConfig:
    return TrainingConfig.from_sections(SECTIONS | changes)


def run_sections(folder: Path, weights: Mapping[str, int], *caches: Path, **data: Any) -> dict[str, Any]:
    """Sections of a small run on a corpus with masked documents, as `data_sections` describes."""
    return SECTIONS | data_sections(folder, weights, *caches, **{"documents": "masked", **data})


def worker(**changes: Any) -> Worker:
    return Worker(config(**changes), CPU)


@cache
def _initial() -> np.ndarray:
    values = np.empty(PARAMETERS, dtype=np.float32)
    initial_parameters(ModelConfig.from_mapping(MODEL), 7, values)
    return values


def theta() -> np.ndarray:
    """The initial parameters, to be changed by the caller."""
    return _initial().copy()


def model() -> Decoder:
    """A model with the initial parameters."""
    made = Decoder(ModelConfig.from_mapping(MODEL), CPU)
    made.flat.copy_(torch.from_numpy(theta()))
    return made
