"""Named sizes of models, with which `peer bench --train` measures; the example run files have the same."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.formats.model import ModelConfig
from protocol.run.builtin import BUILTIN, builtin_source
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.sections import DataSection

DEMO = "demo"
_LLAMA3 = {"vocab": 128_256, "rope_base": 500_000.0, "tied": False}
SHAPES: Mapping[str, Mapping[str, object]] = {
    "150m": {"vocab": 32_000, "dim": 1024, "layers": 12, "heads": 16, "kv_heads": 16, "ffn": 2816, "tied": False},
    "1b": {**_LLAMA3, "dim": 2048, "layers": 18, "heads": 16, "kv_heads": 8, "ffn": 7168},
    "8b": {**_LLAMA3, "dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14_336},
    "10b": {**_LLAMA3, "dim": 4096, "layers": 42, "heads": 32, "kv_heads": 8, "ffn": 14_336},
}
LENGTHS = {"150m": 1024, "1b": 2048, "8b": 8192, "10b": 8192}
"""Tokens of a row."""
GPU_ROWS = 8
"""Rows of a step on a GPU; on a CPU, which needs a minute for a row of the smallest, a step has one."""


def sized(name: str, *, on_gpu: bool = False) -> RunManifest:
    """Return a run with a model of this size, on the text that comes with the program; `DEMO` is the demo run."""
    demo = demo_manifest().manifest
    if name == DEMO:
        return demo
    length, rows = LENGTHS[name], GPU_ROWS if on_gpu else 1
    data = DataSection(sequence_length=length, sequences_per_step=rows, corpora=[BUILTIN], sources=[builtin_source(length)])
    return demo.model_copy(update={"model": ModelConfig.model_validate(SHAPES[name]), "data": data})
