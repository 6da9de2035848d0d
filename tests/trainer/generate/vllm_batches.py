"""A rollout peer that generates with vLLM itself, and a validator: run in an environment that has the CPU build of vLLM.

Prints one JSON object: for each family the verdicts on batches of two versions, or why vLLM was refused.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from protocol.formats.rl import RlConfig
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, parameters
from trainer.data.templates import TemplatedTokenizer
from trainer.generate.choice import GeneratorName
from trainer.generate.vllm import NotReloaded
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutTasks, RolloutWorker

RL = RlConfig(max_tokens=40, row_tokens=128, micro_batch_tokens=256)
PROBLEMS, COPIES = (4, 7), 4
HEAD_DIM = 32
"""The least width of a head that vLLM's attention for CPUs has."""


def judged(family: str) -> dict[str, int | str]:
    """Verdicts on what vLLM generated, each by its reason, over two versions whose weights have nothing in common."""
    config, tasks = (
        FAMILIES[family].model_copy(update={"heads": 2, "kv_heads": 1, "head_dim": HEAD_DIM}),
        RolloutTasks(Letters(again="more"), TemplatedTokenizer(TOKENIZER, "raw")),
    )
    peer, validator = (
        RolloutWorker(RL, config, tasks, CPU, slots=4, generator=generator)
        for generator in (GeneratorName.VLLM, GeneratorName.BUILTIN)
    )
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for version in (1, 2):
                for worker in (peer, validator):
                    worker.keep_version(version, parameters(config, seed=version))
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
    print(json.dumps({family: judged(family) for family in sys.argv[1:] or FAMILIES}))
