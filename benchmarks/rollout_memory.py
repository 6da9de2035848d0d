"""Estimated memory of a run with rollouts beside the memory of real work: `python -m benchmarks.rollout_memory`.

For each model and each kind of work a process of its own keeps as many versions as a trainer process does, makes some
rollouts, judges them, or learns from them, on the CPU; the peak is the kernel's own (VmHWM).  Prompts and outputs are as
long as the run allows, so the peak is comparable with the estimate.  Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainingConfig
from trainer.memory import TrainerSetup, TrainerWork, trainer_memory

if TYPE_CHECKING:
    from trainer.environments.environment import Environment

SHAPES = {
    "1M": {"vocab": 256, "dim": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 384},
    "18M": {"vocab": 8192, "dim": 384, "layers": 8, "heads": 6, "kv_heads": 2, "ffn": 1024},
    "63M": {"vocab": 32_768, "dim": 512, "layers": 16, "heads": 8, "kv_heads": 2, "ffn": 1408},
}
PROMPT, OUTPUT = 64, 192


def config_of(name: str, kl_weight: float) -> TrainingConfig:
    """Return a run whose sequences have at most PROMPT + OUTPUT tokens."""
    rl = {"group_size": 16, "max_tokens": OUTPUT, "row_tokens": PROMPT + OUTPUT, "optimizer_steps": 1}
    model = SHAPES[name] | {"rope_base": 10_000.0, "norm_eps": 1e-5, "tied": True}
    inner = {
        "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 1.0, "z_loss": 0.0,
        "schedule": "wsd", "warmup_steps": 0, "cooldown": 0.2, "joiner_warmup_steps": 0,
    }  # fmt: skip
    data = {"sequence_length": 64, "sequences_per_step": 1}
    return TrainingConfig.from_sections(
        {"seed": 0, "model": model, "data": data, "inner": inner, "inner_steps": 1,
         "chunk_parameters": 1 << 16, "codec": "int4", "rl": rl | {"micro_batch_tokens": 1024, "kl_weight": kl_weight},
         "environment": "long"}
    )  # fmt: skip


def _long_prompts() -> Environment:
    from trainer.environments.environment import Environment, Problem

    class Long(Environment):
        """Environment with long prompts, and a score by a sum of the text, so that rewards differ."""

        size = 16

        def problem(self, index: int) -> Problem:
            return Problem(index, chr(97 + index) * PROMPT, None)

        def score(self, problem: Problem, turns: Any) -> float:
            return float(zlib.crc32("".join(turns).encode()) % 2)

        def solution(self, problem: Problem) -> tuple[str, ...]:
            return ("",)

    return Long()


def work_at(name: str, work: TrainerWork, folder: Path, kl_weight: float) -> None:
    """Do one kind of work in this process."""
    import numpy as np
    import torch

    from trainer.models.llama.initial import initial_parameters
    from trainer.rl.learner import Learner, LearnTask
    from trainer.rl.verification import Assignment
    from trainer.rl.worker import RolloutTasks, RolloutWorker
    from trainer.worker import Worker

    torch.set_num_threads(1)
    config, cpu = config_of(name, kl_weight), torch.device("cpu")
    assert config.rl is not None
    trains = Worker(replace(config, **_text_in(folder)), cpu) if work is TrainerWork.TRAIN else None
    if trains is None:
        from trainer.reading import tokenizer_of

        tokenizer = tokenizer_of(config)
    else:
        tokenizer = trains.tokenizer
    theta = np.memmap(folder / "theta", np.float32, "w+", shape=(config.model.parameters,))
    initial_parameters(config.model, 0, theta)
    rollouts = RolloutWorker(config.rl, config.model, RolloutTasks(_long_prompts(), tokenizer), cpu)
    for version in range(config.rl.max_async + 2):
        rollouts.keep_version(version, theta)
    assignment, batch = Assignment(bytes(32), version, "peer", (0, 1), 16), folder / "batch"
    if work is TrainerWork.GENERATE:
        for number in range(2):  # the second time other weights take the place of the first ones
            each = Assignment(bytes(32), version - 1 + number, "peer", (0, 1), 16)
            rollouts.generate(each, batch)
    elif work is TrainerWork.VERIFY:
        assert all(judged.reason is None for judged in rollouts.verify(assignment, batch))
    else:
        assert trains is not None
        out = bytearray(trains.layout[-1].encoded.stop)
        rollouts.verify(assignment, batch)
        learner = Learner(config.rl, trains.work)
        (reference := folder / "reference").write_bytes((theta.view(np.uint32) >> 16).astype("<u2").tobytes())
        groups = [replace(group, age=1) for group in rollouts.groups([batch])]
        task = LearnTask(0, 0, reference, {1: rollouts.versions[version - 1]})
        assert learner.compute(task, groups, theta, memoryview(out)).steps, "it has something to learn from"
    print(json.dumps({"peak": _peak_bytes() - 4 * config.model.parameters, "parameters": config.model.parameters}))


def _text_in(folder: Path) -> dict[str, Any]:
    """Return the fields of a run on the corpus that `measure` wrote, without loading the peer into a measured process."""
    from trainer.config import PhaseConfig, SourceConfig, TrainingData

    (manifest,) = folder.glob("corpora/*/corpus.msgpack")
    source = SourceConfig(name="manyhands", corpus="corpora/0", source="manyhands")
    phases = [PhaseConfig(start=0, weights=[1])]
    data = TrainingData(sequence_length=64, sequences_per_step=1, documents="masked", sources=[source], phases=phases)
    return {"data": data, "files": {"corpora/0": str(manifest)}, "blocks": (str(manifest.parent / "shards"),)}


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@dataclass(frozen=True)
class Found:
    """Bytes of the trainer's own memory, without the parameters that it shares with the peer."""

    model: str
    work: str
    parameters: int
    estimate: int
    peak: int


def measure(name: str, kl_weight: float) -> list[Found]:
    """Measure generating, verifying and learning, each in a process of its own."""
    from peer.corpora.builtin import builtin_corpus

    found = []
    with tempfile.TemporaryDirectory(prefix="rollout-memory-") as folder:
        builtin_corpus(Path(folder) / "corpora")
        for work in (TrainerWork.GENERATE, TrainerWork.VERIFY, TrainerWork.TRAIN):
            words = [sys.executable, "-m", "benchmarks.rollout_memory", "--work", work.value, "--models", name]
            words += ["--folder", folder, "--kl-weight", str(kl_weight)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}, {work.value}: {done.stderr[-600:]}")
            told = json.loads(done.stdout.splitlines()[-1])
            estimate = trainer_memory(config_of(name, kl_weight), TrainerSetup(), work).host
            found.append(Found(name, work.value, told["parameters"], estimate, told["peak"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout_memory", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--work", choices=[work.value for work in TrainerWork], help="do this one in this process")
    parser.add_argument("--folder", type=Path, help="where the rollouts are, with --work")
    parser.add_argument("--kl-weight", type=float, default=0.0, help="above 0: trainers compare with reference weights, too")
    arguments = parser.parse_args()
    if arguments.work:
        work_at(arguments.models[0], TrainerWork(arguments.work), arguments.folder, arguments.kl_weight)
        return
    print("| model | parameters | work | estimate MB | peak MB | ratio |\n|---|---|---|---|---|---|", flush=True)
    for name in arguments.models:
        for each in measure(name, arguments.kl_weight):
            print(
                f"| {each.model} | {each.parameters / 1e6:.1f} M | {each.work} | {each.estimate / 1e6:.0f} | "
                f"{each.peak / 1e6:.0f} | {each.estimate / each.peak:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
