"""Loss of low-communication training: DiLoCo against data-parallel at equal tokens, on the program's own text.

Runs in this process with the trainer's own worker, the real codec, reduction and outer step; only the network is left out.
Every run of a seed starts from the same parameters, which were trained four-way data-parallel, and continues at a constant
rate.  All runs read the same windows: in step s, member k reads the same window for every H.  Data-parallel means one model
that averages the members' gradients in every step; one peer alone is data-parallel with one member.

A run has 600 steps, and at least 20 rounds, or 8 if H is 300 or more: starting from a momentum of zero, fewer rounds say
more about the start than about the recipe.  With several inner rates (`--rates`), each side has for each H the rate that is
best with four members on the first seed.  Besides 1, 2, 4 and 8 members there is a wave: the members rise from 1 to 8 and
fall to 1 again, once or more often in the run; a member that leaves takes its Adam moments along, and a member that joins
has none.

The bars, for every row: at most 0.5 % above data-parallel (mean over the seeds), and never worse than one peer alone.  With
one thread and fixed seeds, the same machine gives the same table.  `--save` keeps finished runs in a file, so that an
interrupted table continues from there.

    python -m benchmarks.diloco [--save FILE] [--json] [--quick] [--outer auto] [--codec int4] [--seeds 0,1,2]
        [--inner-steps 10,30,100,300,500] [--rates 1e-3] [--aggregation mean]

"bytes" is the ratio of the bytes of data-parallel training in fp32 to the bytes of members.  Data-parallel training sends
twice the parameters in every step; members send a contribution and a result in H steps; both times (N - 1) / N.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.diloco_bench import (
    BAR_PERCENT,
    CODEC,
    MEMBERS,
    MODEL,
    MOST,
    QUICK,
    RATE,
    WAVE,
    Bench,
    Case,
    Settings,
    layouts_for,
    row_name,
    rule_named,
)
from kernels.aggregate import Rule

Losses = Mapping[Case, list[float]]
TUNED_MEMBERS = 4


class Progress:
    """Finished runs, one JSON line each, in a file if one is named.  Only runs of today's outer step count."""

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
    rates: tuple[float, float]
    """Inner rates of data-parallel training and of DiLoCo."""
    fewer_bytes: float
    """Bytes of data-parallel training in fp32 over those of DiLoCo."""

    @property
    def excess(self) -> list[float]:
        """The loss over data-parallel, in percent of the loss."""
        return percent(self.diloco, self.data_parallel)

    @property
    def over_alone(self) -> list[float]:
        return percent(self.diloco, self.alone)

    @property
    def holds(self) -> bool:
        """True if both bars hold.  One member equals one peer alone, except for the codec's rounding."""
        return statistics.fmean(self.excess) <= BAR_PERCENT and (self.members == 1 or max(self.over_alone) <= 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "members": row_name(self.members),
            "inner_steps": self.inner_steps,
            "data_parallel": self.data_parallel,
            "alone": self.alone,
            "diloco": self.diloco,
            "rates": self.rates,
            "fewer_bytes": self.fewer_bytes,
            "excess_percent": self.excess,
            "over_alone_percent": self.over_alone,
            "holds": self.holds,
        }


def percent(losses: Sequence[float], base: Sequence[float]) -> list[float]:
    return [100 * (loss / other - 1) for loss, other in zip(losses, base, strict=True)]


@dataclass(frozen=True)
class Plan:
    """Contents of a table."""

    settings: Settings
    seeds: Sequence[int]
    lengths: Sequence[int]
    outer: str = "auto"
    exchange: str = CODEC
    members: Sequence[int] = (*MEMBERS, WAVE)
    rates: Sequence[float] = (RATE,)
    aggregation: Rule = "mean"

    def tuning(self, inner_steps: int, *, apart: bool) -> list[Case]:
        """Return the runs from which a side's inner rate is chosen."""
        if len(self.rates) == 1:
            return []
        case = self._apart if apart else self._together
        return [case(self.seeds[0], TUNED_MEMBERS, inner_steps, rate) for rate in self.rates]

    def all_tuning(self) -> list[Case]:
        """Return the runs from which all inner rates are chosen."""
        return [case for length in self.lengths for apart in (False, True) for case in self.tuning(length, apart=apart)]

    def cases(self, losses: Losses) -> list[Case]:
        """Return all runs, seed after seed, so that an unfinished table is already useful.

        losses: the losses of the runs of `all_tuning`.
        """
        wanted = []
        for seed in self.seeds:
            for members in (1, *self.members):
                for length in self.lengths:
                    wanted.append(self.baseline(losses, seed, members, length))
                    if members in self.members:
                        wanted.append(self.diloco(losses, seed, members, length))
        return list(dict.fromkeys(wanted))

    def baseline(self, losses: Losses, seed: int, members: int, inner_steps: int) -> Case:
        """Return the data-parallel run for comparison."""
        return self._together(seed, members, inner_steps, self._rate(losses, inner_steps, apart=False))

    def diloco(self, losses: Losses, seed: int, members: int, inner_steps: int) -> Case:
        return self._apart(seed, members, inner_steps, self._rate(losses, inner_steps, apart=True))

    def row(self, losses: Losses, members: int, inner_steps: int) -> Row:
        def of(case: Callable[[Losses, int, int, int], Case], count: int) -> list[float]:
            runs = [case(losses, seed, count, inner_steps) for seed in self.seeds]
            return [self._loss(losses, run, inner_steps) for run in runs]

        rates = self._rate(losses, inner_steps, apart=False), self._rate(losses, inner_steps, apart=True)
        layouts = layouts_for(MODEL.parameters, self.exchange)
        fewer = 2 * 4 * MODEL.parameters * inner_steps / layouts.exchanged_bytes
        alone, together, apart = of(self.baseline, 1), of(self.baseline, members), of(self.diloco, members)
        return Row(members, inner_steps, alone, together, apart, rates, fewer)

    def _apart(self, seed: int, members: int, inner_steps: int, rate: float) -> Case:
        steps = (self.settings.steps_of(inner_steps),)
        return Case(seed, members, steps, inner_steps, self.outer, self.exchange, rate, self.aggregation)

    def _together(self, seed: int, members: int, inner_steps: int, rate: float) -> Case:
        """Return the data-parallel case.  Only in a wave it depends on H, because members come and go between rounds."""
        if members == WAVE:
            return Case(seed, members, (self.settings.steps_of(inner_steps),), inner_steps, rate=rate)
        steps = tuple(sorted({self.settings.steps_of(length) for length in self.lengths}))
        return Case(seed, members, steps, rate=rate)

    def _rate(self, losses: Losses, inner_steps: int, *, apart: bool) -> float:
        runs = self.tuning(inner_steps, apart=apart)
        return min(runs, key=lambda run: self._loss(losses, run, inner_steps)).rate if runs else self.rates[0]

    def _loss(self, losses: Losses, run: Case, inner_steps: int) -> float:
        return losses[run][run.steps.index(self.settings.steps_of(inner_steps))]


def print_table(rows: Sequence[Row]) -> None:
    print(
        "| members | H | rates | one alone | data-parallel | DiLoCo | over data-parallel, mean (each seed) | over one alone "
        "| bytes | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{value:+.2f}" for value in row.excess)
        losses = " | ".join(f"{statistics.fmean(values):.4f}" for values in (row.alone, row.data_parallel, row.diloco))
        print(
            f"| {row_name(row.members)} | {row.inner_steps} | {row.rates[0]:g}, {row.rates[1]:g} | {losses} "
            f"| {statistics.fmean(row.excess):+.2f} % ({each}) | {statistics.fmean(row.over_alone):+.2f} % "
            f"| 1/{row.fewer_bytes:.0f} | {'holds' if row.holds else 'MISSED'} |"
        )


def rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.diloco", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: shows that it works, and no more")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="inner steps of every member")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--inner-steps", type=numbers, default=[10, 30, 100, 300, 500], help="inner steps in a round (H)")
    parser.add_argument("--members", type=numbers, default=[*MEMBERS, WAVE], help=f"{WAVE}: 1 to {MOST} and back")
    parser.add_argument("--outer", default="auto", help='"auto", or RATE/MOMENTUM for all members and H')
    parser.add_argument("--codec", default=CODEC, help="codec of the exchange, or fp32")
    parser.add_argument("--aggregation", default="mean", choices=get_args(Rule), help="aggregation rule of the exchange")
    parser.add_argument("--rates", type=rates, default=[RATE], help="inner rates, of which each side has the best")
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def complete(cases: Sequence[Case], progress: Progress, bench: Bench) -> None:
    """Do the unfinished runs."""
    began = time.monotonic()
    for number, case in enumerate(cases, 1):
        if case not in progress.losses:
            progress.add(case, bench.run(case))
            shown = ", ".join(f"{loss:.4f}" for loss in progress.losses[case])
            seconds = time.monotonic() - began
            print(f"{seconds:5.0f} s  {number} of {len(cases)}  {case}: {shown}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    settings, seeds, lengths = Settings(steps=options.steps), options.seeds, options.inner_steps
    if options.quick:
        settings, seeds, lengths = QUICK, seeds[:1], [3, 8]
    plan = Plan(settings, seeds, lengths, options.outer, options.codec, options.members, options.rates, options.aggregation)
    progress, bench = Progress(settings, options.save), Bench(settings)
    complete(plan.all_tuning(), progress, bench)
    complete(plan.cases(progress.losses), progress, bench)
    rows = [plan.row(progress.losses, members, length) for members in plan.members for length in plan.lengths]
    print(
        f"outer {plan.outer}, {plan.exchange}, {plan.aggregation}, {MODEL.parameters} parameters, "
        f"{plan.settings.sequences * plan.settings.sequence_length} tokens in a step of a member, seeds {plan.seeds}\n"
    )
    print_table(rows)
    holds = all(row.holds for row in rows)
    if options.json:
        print(
            json.dumps(
                {
                    "settings": asdict(plan.settings),
                    "outer": plan.outer,
                    "codec": plan.exchange,
                    "aggregation": plan.aggregation,
                    "seeds": plan.seeds,
                    "holds": holds,
                    "rows": [row.as_json() for row in rows],
                }
            )
        )
    return 0 if holds or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
