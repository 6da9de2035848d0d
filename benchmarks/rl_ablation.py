"""Effect of two-sided clipping, the filters and stale rollouts on the reward.

A tiny byte-level model learns a task by GRPO, with the real learner, from a supervised start that solves about a quarter of
it.  All runs of a seed start from the same parameters.  All combinations of these are compared:

    clip       two-sided (delta 4), or on one side only (PPO's: delta infinite)
    filters    on: problems that are solved too rarely or too often at the start are left out, and groups without a
               difference; or off
    staleness  rollouts come from the parameters of so many versions ago

The reward is the mean of the rewards of the last five versions, each of 256 completions of problems with other numbers than
the training problems (most of the 512 words of the built-in task are nevertheless among the training words).  With one
thread and fixed seeds, the same machine gives the same table.  `--task MODULE:CLASS` takes an environment, such as
trainer.environments.builtin:Add, in place of a word of three letters backwards.

    python -m benchmarks.rl_ablation [--seeds 0 1 2] [--json] [--task reverse] [--versions 40] [--lr 1e-3]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.rl_bench import Reverse, Settings, Task, Trial, Variant, warm_start
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig

MODEL = ModelConfig(vocab=256, dim=32, layers=2, heads=4, kv_heads=2, ffn=96, rope_base=1e3, norm_eps=1e-5, tied=True)
STALENESS = (0, 2, 4)
LAST = 5
"""Measurements at the end of a run whose mean counts."""
RL = RlConfig(
    group_size=16, max_tokens=12, row_tokens=128, micro_batch_tokens=1 << 14, optimizer_steps=4, lr=1e-3,
    warmup_steps=0, entropy_weight=1e-3,
)  # fmt: skip
VARIANTS = [Variant(*each) for each in itertools.product((True, False), (True, False), STALENESS)]


def task_named(name: str) -> Task:
    """Return the built-in task, or an environment given as MODULE:CLASS; raises ValueError."""
    if name == "reverse":
        return Reverse()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"unknown task {name!r}: this benchmark knows 'reverse', and environments as MODULE:CLASS")
    task: Task = getattr(importlib.import_module(module), attribute)()
    return task


def row_of(variant: Variant, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return a line of the table: rewards seed by seed, and means over the runs."""
    learnt = [each for trial in trials for each in trial.learnt]
    return {
        **asdict(variant),
        "start": [trial.rewards[0] for trial in trials],
        "final": [statistics.fmean(trial.rewards[-LAST:]) for trial in trials],
        "clipped": statistics.fmean(each.clipped for each in learnt),
        "dropped": statistics.fmean(each.dropped / max(1, each.groups) for each in learnt),
        "entropy": statistics.fmean(trial.learnt[-1].entropy for trial in trials),
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print(
        "| clip | filters | staleness | reward at the start | at the end, mean (each seed) | clipped | dropped | entropy |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{value:.2f}" for value in row["final"])
        sides, filters = "two-sided" if row["two_sided"] else "one-sided", "on" if row["filters"] else "off"
        print(
            f"| {sides} | {filters} | {row['staleness']} "
            f"| {statistics.fmean(row['start']):.2f} | {statistics.fmean(row['final']):.3f} ({each}) "
            f"| {100 * row['clipped']:.1f} % | {100 * row['dropped']:.0f} % | {row['entropy']:.2f} |"
        )


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.rl_ablation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", default="reverse", help="reverse, or an environment as MODULE:CLASS")
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--lr", type=float, default=RL.lr, help="learning rate")
    parser.add_argument("--start", type=float, default=0.25, help="mean reward at which the supervised start ends")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    task = task_named(options.task)
    settings = Settings(MODEL, RL.changed(lr=options.lr), options.versions, options.start)
    warm = {seed: warm_start(task, settings, seed) for seed in options.seeds}
    rows, longest = [], 0.0
    for number, variant in enumerate(VARIANTS, 1):
        trials = []
        for seed in options.seeds:
            began = time.process_time()
            trials.append(Trial(task, settings, variant, seed))
            trials[-1].run(warm[seed])
            longest = max(longest, time.process_time() - began)
        rows.append(row_of(variant, trials))
        final = ", ".join(f"{value:.3f}" for value in rows[-1]["final"])
        print(f"{number} of {len(VARIANTS)}  {variant}: {final}", file=sys.stderr, flush=True)
    print(f"task {options.task}, {options.versions} versions, lr {options.lr}, seeds {options.seeds}")
    print(f"processor time of a run: up to {longest:.0f} s\n")
    print_table(rows)
    if options.json:
        shown = {"task": options.task, "versions": options.versions, "lr": options.lr, "seeds": options.seeds, "rows": rows}
        print(json.dumps(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
