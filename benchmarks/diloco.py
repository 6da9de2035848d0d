"""Does low-communication training cost loss?  DiLoCo against data-parallel at equal tokens, on the program's own text.

Runs in this process with the trainer's own worker, the real codec, reduction and outer step; only the network is left
out.  Every run of a seed starts from the same parameters, trained four-way data-parallel before, and goes on at a constant
rate.  All runs read the same windows: in step s, member k reads what it reads there whatever H is.  Data-parallel means
one model that averages the members' gradients in every step; one peer alone is data-parallel with one member.

A run has 600 steps, and at least 20 rounds: from a momentum of zero, fewer say more about the start than about the recipe.
Besides 1, 2, 4 and 8 members there is a wave: the members rise from 1 to 8 and fall to 1 again, once or more often in the
run; who leaves takes its Adam moments along, and who joins has none.

The bars, for every row: at most 0.5 % above data-parallel (mean over the seeds), and never worse than one peer alone.
One thread and fixed seeds: the same table again on the same machine.  `--save` keeps finished runs in a file, so that an
interrupted table goes on where it was.

    python -m benchmarks.diloco [--save FILE] [--json] [--quick] [--outer auto] [--seeds 0,1,2] [--inner-steps 10,30,100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from benchmarks.diloco_bench import (
    BAR_PERCENT,
    CODEC_BAR_PERCENT,
    CODEC_INNER_STEPS,
    CODEC_MEMBERS,
    MEMBERS,
    MOST,
    QUICK,
    WAVE,
    Bench,
    Case,
    Settings,
    row_name,
    rule_named,
)


class Progress:
    """Finished runs, one JSON line each, in a file if one is named.  A run of another outer step than today's is not one."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self._settings, self._path = asdict(settings), path
        self.losses: dict[Case, list[float]] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                case = Case(**{**entry["case"], "steps": tuple(entry["case"]["steps"])})
                if json.loads(json.dumps(self._key(case))) == {name: entry[name] for name in ("settings", "case", "rule")}:
                    self.losses[case] = entry["losses"]

    def add(self, case: Case, losses: list[float]) -> None:
        self.losses[case] = losses
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({**self._key(case), "losses": losses}) + "\n")

    def _key(self, case: Case) -> dict[str, Any]:
        rule = rule_named(case.outer, case.exchange) if case.outer else None
        steps = [rule([1] * size, case.inner_steps, Fraction(1, size)) for size in range(1, MOST + 1)] if rule else []
        return {"settings": self._settings, "case": asdict(case), "rule": steps}


@dataclass(frozen=True)
class Row:
    """One line of the table: losses seed by seed."""

    members: int
    inner_steps: int
    alone: list[float]
    data_parallel: list[float]
    diloco: list[float]

    @property
    def excess(self) -> list[float]:
        """Over data-parallel, in percent of the loss."""
        return percent(self.diloco, self.data_parallel)

    @property
    def over_alone(self) -> list[float]:
        return percent(self.diloco, self.alone)

    @property
    def holds(self) -> bool:
        """Whether both bars hold.  One member is one peer alone, less the codec's rounding."""
        return statistics.fmean(self.excess) <= BAR_PERCENT and (self.members == 1 or max(self.over_alone) <= 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "members": row_name(self.members),
            "inner_steps": self.inner_steps,
            "data_parallel": self.data_parallel,
            "alone": self.alone,
            "diloco": self.diloco,
            "excess_percent": self.excess,
            "over_alone_percent": self.over_alone,
            "holds": self.holds,
        }


def percent(losses: Sequence[float], base: Sequence[float]) -> list[float]:
    return [100 * (loss / other - 1) for loss, other in zip(losses, base, strict=True)]


@dataclass(frozen=True)
class Plan:
    """What a table is made of."""

    settings: Settings
    seeds: Sequence[int]
    lengths: Sequence[int]
    outer: str

    def baseline(self, seed: int, members: int, inner_steps: int) -> Case:
        """The data-parallel run for comparison.  Who comes and goes does so between rounds; others share one run."""
        if members == WAVE:
            return Case(seed, members, (self.settings.steps_of(inner_steps),), inner_steps)
        return Case(seed, members, tuple(sorted({self.settings.steps_of(length) for length in self.lengths})))

    def diloco(self, seed: int, members: int, inner_steps: int, exchange: str = "int8") -> Case:
        return Case(seed, members, (self.settings.steps_of(inner_steps),), inner_steps, self.outer, exchange)

    def cases(self) -> list[Case]:
        """All runs, seed after seed, so that a table in the making is of use."""
        wanted = []
        for seed in self.seeds:
            for members in (*MEMBERS, WAVE):
                for length in self.lengths:
                    wanted += [self.baseline(seed, members, length), self.diloco(seed, members, length)]
            if CODEC_INNER_STEPS in self.lengths:
                wanted.append(self.diloco(seed, CODEC_MEMBERS, CODEC_INNER_STEPS, "fp32"))
        return list(dict.fromkeys(wanted))

    def row(self, losses: dict[Case, list[float]], members: int, inner_steps: int) -> Row:
        def of(case: Callable[[int, int, int], Case], count: int) -> list[float]:
            runs, steps = [case(seed, count, inner_steps) for seed in self.seeds], self.settings.steps_of(inner_steps)
            return [losses[run][run.steps.index(steps)] for run in runs]

        return Row(members, inner_steps, of(self.baseline, 1), of(self.baseline, members), of(self.diloco, members))

    def codec_excess(self, losses: dict[Case, list[float]]) -> list[float]:
        """What the int8 exchange costs against fp32, seed by seed in percent; empty where it was not measured."""
        if CODEC_INNER_STEPS not in self.lengths:
            return []
        int8, fp32 = (
            [losses[self.diloco(seed, CODEC_MEMBERS, CODEC_INNER_STEPS, exchange)][0] for seed in self.seeds]
            for exchange in ("int8", "fp32")
        )
        return percent(int8, fp32)


def print_table(rows: Sequence[Row]) -> None:
    print("| members | H | one alone | data-parallel | DiLoCo | over data-parallel, mean (each seed) | over one alone | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{value:+.2f}" for value in row.excess)
        losses = " | ".join(f"{statistics.fmean(values):.4f}" for values in (row.alone, row.data_parallel, row.diloco))
        print(
            f"| {row_name(row.members)} | {row.inner_steps} | {losses} | {statistics.fmean(row.excess):+.2f} % ({each}) "
            f"| {statistics.fmean(row.over_alone):+.2f} % | {'holds' if row.holds else 'MISSED'} |"
        )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.diloco", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: shows that it works, and no more")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="inner steps of every member")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--inner-steps", type=numbers, default=[10, 30, 100], help="inner steps in a round (H)")
    parser.add_argument("--outer", default="auto", help='"auto", or RATE/MOMENTUM for all members and H')
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    plan = Plan(Settings(steps=options.steps), options.seeds, options.inner_steps, options.outer)
    if options.quick:
        plan = Plan(QUICK, options.seeds[:1], [3, 8], options.outer)
    began, progress, cases = time.monotonic(), Progress(plan.settings, options.save), plan.cases()
    bench = Bench(plan.settings)
    for number, case in enumerate(cases, 1):
        if case not in progress.losses:
            progress.add(case, bench.run(case))
            shown = ", ".join(f"{loss:.4f}" for loss in progress.losses[case])
            print(
                f"{time.monotonic() - began:5.0f} s  {number} of {len(cases)}  {case}: {shown}", file=sys.stderr, flush=True
            )
    rows = [plan.row(progress.losses, members, length) for members in (*MEMBERS, WAVE) for length in plan.lengths]
    exchange = plan.codec_excess(progress.losses)
    print(
        f"outer {plan.outer}, {bench.member(0).parameters} parameters, "
        f"{plan.settings.sequences * plan.settings.sequence_length} tokens in a step of a member, seeds {plan.seeds}\n"
    )
    print_table(rows)
    holds = all(row.holds for row in rows)
    if exchange:
        print(
            f"\nint8 over fp32 exchange, {CODEC_MEMBERS} members, H = {CODEC_INNER_STEPS}: "
            f"{statistics.fmean(exchange):+.2f} % ({', '.join(f'{value:+.2f}' for value in exchange)})"
        )
        holds &= abs(statistics.fmean(exchange)) <= CODEC_BAR_PERCENT
    if options.json:
        print(
            json.dumps(
                {
                    "settings": asdict(plan.settings),
                    "outer": plan.outer,
                    "seeds": plan.seeds,
                    "holds": holds,
                    "rows": [row.as_json() for row in rows],
                    "int8_over_fp32_percent": exchange,
                }
            )
        )
    return 0 if holds or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
