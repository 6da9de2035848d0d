"""A rollout peer that generates with vLLM itself, and a validator: run in an environment that has the CPU build of vLLM.

Prints one JSON object: for each family the verdicts on batches of two versions, or why vLLM was refused.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.formats.rl import RlConfig
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, parameters
from tests.trainer.weights.models import in_blocks
from trainer.data.templates import TemplatedTokenizer
from trainer.generate.choice import GeneratorName
from trainer.generate.vllm import NotReloaded
from trainer.models.llama.model import FrozenBase
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutTasks, RolloutWorker
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

RL = RlConfig(max_tokens=40, row_tokens=128, micro_batch_tokens=256)
PROBLEMS, COPIES = (4, 7), 4
ADAPTER = AdapterConfig(rank=8, alpha=16)
ADAPTED = "qwen3 with an adapter"
HEAD_DIM = 32
"""The least width of a head that vLLM's attention for CPUs has."""


def frozen(config: ModelConfig, folder: Path) -> FrozenBase:
    """A frozen model with its files."""
    flat = parameters(config)
    write_folder(folder, config, in_blocks(flat), ExportFormat.BF16, context=RL.row_tokens, eos=None)
    places = parameter_layout(config)
    tensors = {each.name: torch.from_numpy(flat[each.offset :][: each.count]).view(each.shape) for each in places}
    files = {path.name: path for path in folder.iterdir()}
    return replace(FrozenBase.whole(ADAPTER, tensors), files=files)


def version_of(config: ModelConfig, base: FrozenBase | None, version: int) -> np.ndarray:
    if base is None:
        return parameters(config, seed=version)
    values = np.random.default_rng(version).standard_normal(adapter_parameters(config, base.adapter))
    return (values / 8).astype(np.float32)


def judged(family: str) -> dict[str, int | str]:
    """Verdicts on what vLLM generated, each by its reason, over two versions whose weights have nothing in common."""
    config, tasks = (
        FAMILIES[family.partition(" ")[0]].model_copy(update={"heads": 2, "kv_heads": 1, "head_dim": HEAD_DIM}),
        RolloutTasks(Letters(again="more"), TemplatedTokenizer(TOKENIZER, "raw")),
    )
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as published:
        base = frozen(config, Path(published)) if family == ADAPTED else None
        peer, validator = (
            RolloutWorker(RL, config, tasks, CPU, slots=4, generator=generator, base=base)
            for generator in (GeneratorName.VLLM, GeneratorName.BUILTIN)
        )
        try:
            for version in (1, 2):
                for worker in (peer, validator):
                    worker.keep_version(version, version_of(config, base, version))
                assignment, path = Assignment(b"run", version, "peer", PROBLEMS, COPIES), Path(folder) / str(version)
                peer.generate(assignment, path)
                verdicts.update(str(one.reason and one.reason.value) for one in validator.verify(assignment, path))
        except NotReloaded as refusal:
            return {"refused": str(refusal)}
        finally:
            peer.close()
    return dict(verdicts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({family: judged(family) for family in sys.argv[1:] or [*FAMILIES, ADAPTED]}))
