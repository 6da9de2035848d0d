"""Several trainers that average by rounds, against one trainer, at equal rollouts of each version.

A tiny byte-level model learns a task by GRPO from a supervised start, as in `benchmarks.rl_ablation`.  Each round has the
same number of rollouts, which the trainers share.  Each trainer learns from its part with an optimiser of its own.  Their
differences are encoded, averaged and applied, all as in a run (`--outer auto`), or with an outer rate and momentum of your
choice and an unchanged inner rate.  One trainer's outer step has rate 1 and no momentum.  The reward is measured on 256
problems with numbers that nobody trains on.  With one thread and fixed seeds, the same machine gives the same table.

    python -m benchmarks.rl_trainers [--trainers 1 2 4] [--seeds 0 1 2] [--versions 40] [--outer auto 1/0]
        [--loss clip] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.diloco_bench import F32, OuterRule, apply_mean, layouts_for, rule_named
from benchmarks.rl_ablation import MODEL, RL, task_named
from benchmarks.rl_bench import LAST, Settings, Trial, Variant, decoder, judge, warm_start
from kernels.outer_step import MEAN, sharing_rate
from protocol.formats.rl import PolicyLossName
from trainer.environments.environment import Environment
from trainer.rl.learner import Learner, LearnTask

EVERY = 5
"""Versions between two points of the printed curves."""


@dataclass
class Rounds(Trial):
    """One run of some trainers.  outer: "auto" or "RATE/MOMENTUM", if there are several of them."""

    trainers: int = 1
    outer: str = "auto"
    learners: list[Learner] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        layouts = layouts_for(self.settings.model.parameters)
        self.learners = [Learner.alone(self.config, decoder(self.settings.model, 0), layouts) for _ in range(self.trainers)]

    def run(self, warm: torch.Tensor) -> float:
        """Run rounds from the warm parameters on; return the reward at the end."""
        theta: F32 = warm.numpy().copy()
        momentum, rule, layouts = np.zeros_like(theta), rule_of(self.outer), layouts_for(len(theta))
        self.learner.model.flat.copy_(warm)
        problems, pick = self._problems(), random.Random(self.seed)
        factor = sharing_rate([1] * self.trainers) if self.outer == "auto" else 1.0
        past: deque[F32] = deque([theta.copy()], maxlen=self.variant.staleness + 1)
        self.rewards.append(self._reward(theta))
        for version in range(self.settings.versions):
            chosen = pick.sample(problems, self.settings.prompts)
            age, behaviour = len(past) - 1, torch.from_numpy(past[0])
            groups = [replace(group, age=age) for group in self.groups(self.learner.model.over(behaviour), chosen)]
            behaviours = {age: behaviour.bfloat16()}
            encoded, tokens = [], []
            for number, learner in enumerate(self.learners):
                out = bytearray(layouts.contribution.payload_bytes)
                task = LearnTask(version, learner.optimiser.steps, behaviours=behaviours, rate_factor=factor)
                self.learnt.append(learner.compute(task, groups[number :: self.trainers], theta, memoryview(out)))
                if self.learnt[-1].tokens:
                    encoded.append(out)
                    tokens.append(self.learnt[-1].tokens)
            if tokens:
                apply_mean(layouts, theta, momentum, encoded, tokens, partial(rule, tokens, self.config.optimizer_steps))
            past.append(theta.copy())
            self.rewards.append(self._reward(theta))
        return self.rewards[-1]

    def _reward(self, theta: F32) -> float:
        return judge(self.learner.model.over(torch.from_numpy(theta)), self.task, self.settings)


def rule_of(outer: str) -> OuterRule:
    """Return the outer step of rounds that learn from rollouts ("auto"), or "RATE/MOMENTUM" for any trainers."""
    return (lambda tokens, steps, agreement: MEAN) if outer == "auto" else rule_named(outer)


@dataclass(frozen=True)
class Case:
    """A line of the table."""

    trainers: int
    outer: str
    staleness: int
    loss: PolicyLossName

    def run(self, task: Environment, settings: Settings, seed: int, warm: torch.Tensor) -> list[float]:
        """Return the curve of a seed: the reward before the first version, and after each."""
        variant = Variant(self.loss, staleness=self.staleness)
        trial = Rounds(task, settings, variant, seed, trainers=self.trainers, outer=self.outer)
        trial.run(warm)
        return trial.rewards


def row_of(case: Case, curves: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return a line: the case, the reward at the end, seed by seed, and the mean curve."""
    mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    return {
        "trainers": case.trainers,
        "outer": case.outer,
        "staleness": case.staleness,
        "final": [statistics.fmean(curve[-LAST:]) for curve in curves],
        "curve": mean,
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    points = range(0, len(rows[0]["curve"]), EVERY)
    print("| trainers | outer step | staleness | at the end, mean (each seed) | " + " | ".join(map(str, points)) + " |")
    print("|---" * (4 + len(points)) + "|")
    for row in rows:
        each = ", ".join(f"{value:.2f}" for value in row["final"])
        curve = " | ".join(f"{row['curve'][at]:.2f}" for at in points)
        final = statistics.fmean(row["final"])
        print(f"| {row['trainers']} | {row['outer']} | {row['staleness']} | {final:.3f} ({each}) | {curve} |")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.rl_trainers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--outer", nargs="+", default=["auto"], help="auto, or RATE/MOMENTUM; of several trainers")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--loss", default="clip", choices=["clip", "tis", "gspo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", default="reverse", help="reverse, or an environment as MODULE:CLASS")
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--steps", type=int, default=RL.optimizer_steps, help="optimiser steps of each trainer in a version")
    parser.add_argument("--lr", type=float, default=RL.lr, help="learning rate")
    parser.add_argument("--start", type=float, default=0.25, help="mean reward at which the supervised start ends")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    task = task_named(options.task)
    rl = RL.changed(lr=options.lr, optimizer_steps=options.steps)
    settings = Settings(MODEL, rl, options.versions, options.start)
    warm = {seed: warm_start(task, settings, seed) for seed in options.seeds}
    rows = []
    for staleness in options.staleness:
        for trainers in options.trainers:
            for outer in options.outer if trainers > 1 else ["auto"]:
                case = Case(trainers, outer, staleness, options.loss)
                rows.append(row_of(case, [case.run(task, settings, seed, warm[seed]) for seed in options.seeds]))
                print(f"{case}: {statistics.fmean(rows[-1]['final']):.3f}", file=sys.stderr, flush=True)
    print(f"task {options.task}, {options.versions} versions, lr {options.lr}, loss {options.loss}, seeds {options.seeds}\n")
    print_table(rows)
    if options.json:
        shown = {name: getattr(options, name) for name in ("task", "lr", "loss", "steps", "seeds")}
        print(json.dumps(shown | {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
