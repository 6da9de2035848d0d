"""Effect of the loss, two-sided clipping, the filters and stale rollouts on the reward.

A tiny byte-level model learns a task by GRPO, with the real learner, from a supervised start that solves about a quarter of
it.  All runs of a seed start from the same parameters.  All combinations of these are compared:

    losses     clip, tis or gspo, as in a run's `[rl] loss`
    staleness  rollouts come from the parameters of so many versions ago
    lr         learning rates
    clip       two (delta 4), or one side only (PPO's: delta infinite)
    filters    on: problems that are solved too rarely or too often at the start are left out, and groups without a
               difference; or off
    eps        clip range

The reward is the mean of the rewards of the last five versions, each of 256 completions of problems with other numbers
than the training problems (many of them are nevertheless among the training problems of the built-in tasks).  The
difference to staleness 0 is the mean over the seeds that both have, with its standard error.  Tasks: `reverse`, three
letters backwards; `count`, the 32 numbers after one of three digits, which are 128 tokens, or `count(125)`, which are
500; a built-in environment with a tool, such as `calculate` or, for the same problems without the tool,
`calculate(turns=1)`, for a model of 146 k parameters; or an environment as MODULE:CLASS.  With one thread and fixed
seeds, the same machine gives the same table.

    python -m benchmarks.rl_ablation [--losses clip tis gspo] [--staleness 0 2 4 8] [--lr 1e-3 3e-3] [--seeds 0 1 2]
        [--task count] [--warm-steps N] [--save FILE] [--json]

--warm-steps N ends the supervised start after N steps, whatever its reward.
--save keeps each finished run as a line of JSON in a file; a later call with the same file adds the runs that it lacks.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.rl_bench import LAST, Count, Reverse, Settings, Trial, Variant, warm_start
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from trainer.environments.environment import Environment
from trainer.environments.registry import BUILT_IN, open_named

MODEL = ModelConfig(vocab=256, dim=32, layers=2, heads=4, kv_heads=2, ffn=96, rope_base=1e3, norm_eps=1e-5, tied=True)
RL = RlConfig(
    group_size=16, max_tokens=12, row_tokens=128, micro_batch_tokens=1 << 14, optimizer_steps=4, lr=1e-3,
    warmup_steps=0, entropy_weight=1e-3,
)  # fmt: skip
COUNTED = 32
"""Numbers that `count` asks for by default."""
TOOL_MODEL = ModelConfig(
    vocab=256, dim=64, layers=3, heads=4, kv_heads=2, ffn=160, rope_base=1e3, norm_eps=1e-5, tied=True
)  # fmt: skip
TOOL_RL = RL.changed(max_tokens=48, row_tokens=128)
EVERY = 5
"""Versions between two measured rewards before the last ones."""
FRACTIONS = ("clipped", "dropped", "truncated", "effective", "behaviour_kl", "entropy")
"""Figures of a run besides its rewards."""

Run = dict[str, Any]
"""A finished run: its variant, learning rate, seed, versions, task, rewards, and the `FRACTIONS`, None if unknown."""


def task_named(name: str) -> Environment:
    """Return a task of this benchmark, an environment by its name, or one given as MODULE:CLASS; raises ValueError."""
    if name == "reverse":
        return Reverse()
    if (numbers := counted(name)) is not None:
        return Count(numbers)
    module, colon, attribute = name.partition(":")
    if not colon:
        return open_named(name)
    task: Environment = getattr(importlib.import_module(module), attribute)()
    return task


def counted(task: str) -> int | None:
    """Return the quantity of numbers that a `count` task asks for; None for another task."""
    found = re.fullmatch(r"count(?:\((\d{1,3})\))?", task)
    return None if found is None else int(found[1] or COUNTED)


def settings_of(task: str, lr: float, versions: int, start: float, warm_steps: int | None = None) -> Settings:
    """Return the settings of a task, whose rollouts are half as many if they are long.  warm_steps: as `--warm-steps`."""
    named = task.partition("(")[0]
    if named in BUILT_IN and named not in ("reverse", "count"):
        fewer = Settings(TOOL_MODEL, TOOL_RL.changed(lr=lr), versions, start, pool=128, judged=128, every=EVERY)
        fewer = replace(fewer, warm_rows=64, warm_look=25)
        return fewer if warm_steps is None else replace(fewer, warm_steps=warm_steps, is_hard=True)
    if (numbers := counted(task)) is not None:
        rl = RL.changed(lr=lr, max_solve_rate=0.99, max_tokens=5 * numbers, row_tokens=6 * numbers)
        fewer = Settings(MODEL, rl, versions, start, prompts=8, pool=256, judged=128, every=EVERY)
        return replace(fewer, warm_rows=8, warm_look=100)
    return Settings(MODEL, RL.changed(lr=lr), versions, start, every=EVERY)


@dataclass(frozen=True)
class Cell:
    """A run to do."""

    variant: Variant
    lr: float
    seed: int

    def is_done(self, run: Run) -> bool:
        """Return True if a finished run is this one."""
        return Variant(**run["variant"]) == self.variant and (run["lr"], run["seed"]) == (self.lr, self.seed)


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Return the runs of a table, seed by seed; without staleness `tis` is `clip`, bit by bit."""
    sides, filters = (side == "two" for side in options.clip), (each == "on" for each in options.filters)
    variants = itertools.product(options.losses, [*sides], [*filters], options.staleness, options.eps)
    named = [
        Variant("clip" if loss == "tis" and not stale else loss, side, on, stale, eps)
        for loss, side, on, stale, eps in variants
    ]
    return [Cell(each, lr, seed) for seed in options.seeds for lr in options.lr for each in dict.fromkeys(named)]


def run_of(cell: Cell, task: str, settings: Settings, warm: Tensor) -> Run:
    """Do a run, and return it."""
    began, trial = time.process_time(), Trial(task_named(task), settings, cell.variant, cell.seed)
    trial.run(warm)
    figures = [each.figures for each in trial.learnt if each.steps]
    dropped = [each.dropped / max(1, each.groups) for each in trial.learnt]

    def mean(name: str) -> float | None:
        known = [value for each in figures if (value := getattr(each, name)) is not None]
        return statistics.fmean(known) if known else None

    return {
        "task": task, "variant": asdict(cell.variant), "lr": cell.lr, "seed": cell.seed, "versions": settings.versions,
        "start": trial.rewards[0], "final": trial.final, "rewards": [round(reward, 4) for reward in trial.rewards],
        "clipped": statistics.fmean(each.clipped for each in trial.learnt), "dropped": statistics.fmean(dropped),
        "entropy": trial.learnt[-1].entropy, **{name: mean(name) for name in ("truncated", "effective", "behaviour_kl")},
        "tokens": statistics.fmean(each.tokens for each in trial.learnt), "cpu_s": time.process_time() - began,
    }  # fmt: skip


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the lines of the table: rewards seed by seed, and means over the runs."""
    cells = defaultdict[tuple[float, Variant], dict[int, Run]](dict)
    for run in runs:
        cells[run["lr"], Variant(**run["variant"])][run["seed"]] = run
    rows = []
    for (lr, variant), by_seed in sorted(cells.items(), key=lambda each: (each[0][0], [*asdict(each[0][1]).values()])):
        fresh_loss = "clip" if variant.loss == "tis" else variant.loss
        fresh = cells.get((lr, replace(variant, loss=fresh_loss, staleness=0)), {})
        apart = [by_seed[seed]["final"] - fresh[seed]["final"] for seed in sorted(by_seed.keys() & fresh.keys())]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else None
        some = [by_seed[seed] for seed in sorted(by_seed)]
        row: dict[str, Any] = {"lr": lr, **asdict(variant), "seeds": sorted(by_seed)}
        row |= {name: [run[name] for run in some] for name in ("start", "final")}
        row["lowest"] = min(min(run["rewards"][len(run["rewards"]) // 2 :]) for run in some)
        row["lost"], row["error"] = (statistics.fmean(apart), error) if variant.staleness and apart else (None, None)
        for name in FRACTIONS:
            known = [run[name] for run in some if run[name] is not None]
            row[name] = statistics.fmean(known) if known else None
        rows.append(row)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    names = [
        "lr",
        "loss",
        "clip",
        "filters",
        "staleness",
        "eps",
        "start",
        "at the end, mean (each seed)",
        "against staleness 0",
    ]
    names += ["lowest of the last half", "clipped", "truncated", "effective", "KL to the behaviour", "dropped", "entropy"]
    print(f"| {' | '.join(names)} |")
    print("|---" * len(names) + "|")

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    for row in rows:
        each = ", ".join(f"{value:.2f}" for value in row["final"])
        lost = "" if row["lost"] is None else f"{row['lost']:+.3f}"
        lost += "" if row["error"] is None else f" ± {row['error']:.3f}"
        clip, filters = "two-sided" if row["two_sided"] else "one-sided", "on" if row["filters"] else "off"
        cells = [
            f"{row['lr']:g}", row["loss"], clip, filters, str(row["staleness"]), f"{row['eps']:g}",
            f"{statistics.fmean(row['start']):.2f}",
            f"{statistics.fmean(row['final']):.3f} ({each})", lost, f"{row['lowest']:.2f}", share(row["clipped"]),
            share(row["truncated"]), share(row["effective"]),
            "" if row["behaviour_kl"] is None else f"{row['behaviour_kl']:.4f}", share(row["dropped"]),
            f"{row['entropy']:.2f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.rl_ablation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", nargs="+", default=["clip"], choices=["clip", "tis", "gspo"])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument(
        "--clip", nargs="+", default=["two"], choices=["two", "one"], help="sides on which ratios are clipped"
    )
    parser.add_argument("--filters", nargs="+", default=["on"], choices=["on", "off"])
    parser.add_argument("--eps", type=float, nargs="+", default=[RL.eps], help="clip ranges")
    parser.add_argument("--lr", type=float, nargs="+", default=[RL.lr], help="learning rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--task", default="reverse", help="reverse, count, count(125), an environment's name, or MODULE:CLASS"
    )
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--start", type=float, default=0.25, help="mean reward at which the supervised start ends")
    parser.add_argument("--warm-steps", type=int, help="supervised steps at most, whatever the reward")
    parser.add_argument("--save", type=Path, help="file of finished runs, which are not done again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    kept = options.save.read_text().splitlines() if options.save is not None and options.save.exists() else []
    runs: list[Run] = [json.loads(line) for line in kept]
    runs = [run for run in runs if (run["task"], run["versions"]) == (options.task, options.versions)]
    cells = cells_of(options)
    warm: dict[int, Tensor] = {}
    for number, cell in enumerate(cells, 1):
        if any(cell.is_done(run) for run in runs):
            continue
        settings = settings_of(options.task, cell.lr, options.versions, options.start, options.warm_steps)
        if cell.seed not in warm:
            began = time.process_time()
            warm[cell.seed] = warm_start(task_named(options.task), settings, cell.seed)
            seconds = time.process_time() - began
            print(f"supervised start of seed {cell.seed}: {seconds:.0f} s of a core", file=sys.stderr, flush=True)
        runs.append(run := run_of(cell, options.task, settings, warm[cell.seed]))
        if options.save is not None:
            with options.save.open("a") as file:
                file.write(json.dumps(run) + "\n")
        said = f"lr {cell.lr:g}, seed {cell.seed}: {run['final']:.3f}, {run['cpu_s']:.0f} s of a core"
        print(f"{number} of {len(cells)}  {cell.variant}, {said}", file=sys.stderr, flush=True)
    rows = rows_of([run for run in runs if any(cell.is_done(run) for cell in cells)])
    print(f"task {options.task}, {options.versions} versions, mean of the last {LAST}\n")
    print_table(rows)
    if options.json:
        print(json.dumps({"task": options.task, "versions": options.versions, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
