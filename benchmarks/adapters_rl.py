"""Reward by version of factors of several ranks beside a frozen model, against the whole model.

A tiny byte-level model learns a task by GRPO, with the real learner, from a supervised start that solves about a quarter of
it.  All runs of a seed start from the same parameters: the whole model's learning goes on from them, factors are learned
beside them.  The learning rate of factors is ten times the whole model's, as run files propose it, and alpha is 32.

    python -m benchmarks.adapters_rl [--seeds 0 1 2] [--ranks 1 8 32] [--json] [--task reverse] [--versions 20] [--lr 1e-3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.diloco_bench import layouts_for
from benchmarks.rl_ablation import MODEL, RL, task_named
from benchmarks.rl_bench import CPU, LAST, Settings, Trial, Variant, warm_start
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import parameter_layout
from trainer.environments.environment import Environment
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder, FrozenBase
from trainer.rl.learner import Learner

TIMES_RATE = 10.0
"""Learning rate of factors, as a multiple of the whole model's."""


@dataclass
class FactorTrial(Trial):
    """A run in which factors of a rank learn beside the frozen parameters of the warm start."""

    rank: int = 8

    def run(self, warm: Tensor) -> float:
        """Learn from factors that change nothing on; return the reward at the end."""
        model, adapter = self.settings.model, AdapterConfig(rank=self.rank)
        places = parameter_layout(model)
        tensors = {each.name: warm[each.offset : each.offset + each.count].view(each.shape) for each in places}
        decoder = Decoder(model, CPU, base=FrozenBase.whole(adapter, tensors))
        self.learner = Learner.alone(self.config, decoder, layouts_for(decoder.count))
        factors = np.empty(decoder.count, np.float32)
        initial_parameters(model, self.seed, factors, adapter)
        return super().run(torch.from_numpy(factors))


def trial_of(rank: int | None, task: Environment, settings: Settings, seed: int) -> Trial:
    """Return a run of factors of this rank; None for one of the whole model."""
    if rank is None:
        return Trial(task, settings, Variant(), seed)
    rl = settings.rl.model_copy(update={"lr": TIMES_RATE * settings.rl.lr})
    return FactorTrial(task, replace(settings, rl=rl), Variant(), seed, rank=rank)


def row_of(rank: int | None, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a line of the table: rewards version by version, means over the seeds, and the end seed by seed."""
    curves = zip(*(trial.rewards for trial in trials), strict=True)
    return {
        "rank": rank,
        "values": trials[0].learner.model.count,
        "rewards": [statistics.fmean(each) for each in curves],
        "final": [statistics.fmean(trial.rewards[-LAST:]) for trial in trials],
    }


def print_table(rows: Sequence[dict[str, Any]], every: int = 5) -> None:
    versions = range(0, len(rows[0]["rewards"]), every)
    print(f"| trained | values | {' | '.join(f'version {each}' for each in versions)} | last {LAST}, mean (each seed) |")
    print("|---|---|" + "---|" * (len(versions) + 1))
    for row in rows:
        name = "whole model" if row["rank"] is None else f"r = {row['rank']}"
        curve = " | ".join(f"{row['rewards'][version]:.2f}" for version in versions)
        each = ", ".join(f"{value:.2f}" for value in row["final"])
        print(f"| {name} | {row['values']} | {curve} | {statistics.fmean(row['final']):.3f} ({each}) |")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.adapters_rl", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--task", default="reverse")
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--lr", type=float, default=RL.lr, help="of the whole model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task, began = task_named(options.task), time.monotonic()
    settings = Settings(MODEL, RL.model_copy(update={"lr": options.lr}), options.versions, warm_reward=0.25)
    warm = {seed: warm_start(task, settings, seed) for seed in options.seeds}
    rows = []
    for rank in [None, *options.ranks]:
        trials = [trial_of(rank, task, settings, seed) for seed in options.seeds]
        for trial in trials:
            trial.run(warm[trial.seed])
            print(f"rank {rank}, seed {trial.seed}, {time.monotonic() - began:.0f} s", file=sys.stderr)
        rows.append(row_of(rank, trials))
    if options.json:
        print(json.dumps({"task": options.task, "lr": options.lr, "rows": rows}))
    else:
        print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
