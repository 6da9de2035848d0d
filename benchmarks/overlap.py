"""Cost of fragments and overlapped rounds: the loss over the loss of plain rounds, at equal tokens.

Members train apart as in `benchmarks.diloco`, from the same warm start, on the same windows and with the trainer's own
worker, which keeps its parameters from round to round, encodes fragments with its own error feedback, and merges results;
only the network is left out.  In a plain run a round exchanges the whole state every H steps, and members wait for the
result.  With F fragments a round exchanges one of them every H / F steps.  With a delay of D the result arrives exactly D
steps after it was sent; meanwhile the members continue.  D is at most H / F, so some rows are not possible.

Besides four equal members there are the members of a wave, as in `benchmarks.diloco`, and three members with a slow one,
which does half as many steps and counts by its tokens.  A member that joins an overlapped run starts when the result of a
round arrives, and does fewer steps in its first two rounds.  Rows named "blend" merge as Streaming DiLoCo does (Douillard et
al. 2025, alpha 0.5); the others add to the result the changes that were learned meanwhile ("shift").

Every row is compared with the plain int8 run of the same members and H.  A run ends with its last round, so most fragments
lack the steps since they were last sent; "exchanged once more" is the loss after another exchange of these fragments.

    python -m benchmarks.overlap [--save FILE] [--json] [--quick] [--seeds 0,1,2] [--inner-steps 40,80] [--only-bars]

With one thread and fixed seeds, the same machine gives the same table.  `--save` keeps finished runs in a file, so that an
interrupted table continues from there.  The bars, for four equal members and four fragments with shift: at most 0.5 % over
plain rounds, with int4 0.6 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.diloco import numbers, percent
from benchmarks.diloco_bench import (
    CPU,
    F32,
    QUICK,
    RATE,
    WAVE,
    Bench,
    Settings,
    apply_mean,
    row_name,
    rows_of,
    rule_named,
    size_in,
)
from kernels.aggregate import Rule
from kernels.layout import fragment_spans
from protocol.node.contributor import SPARE_STEPS
from trainer.config import TrainingConfig
from trainer.rank_work import layouts_of
from trainer.worker import Applied, Task, Worker

FRAGMENTS, DELAYS, CODECS = (1, 4, 8), (0, 2, 5, 20), ("int8", "int4")
MEMBERS = 4
BARS_PERCENT = {"int8": 0.5, "int4": 0.6}
BAR_FRAGMENTS = 4
ALPHA = 0.5
"""Weight of the result when a member blends it with its own parameters."""
NEWCOMER_ROUNDS = 2
"""First rounds of a newcomer, for which it has no early lease."""


@dataclass(frozen=True)
class Case:
    """One run.

    inner_steps: H.  delay: a number of steps.  members: their number, or `WAVE`.  slow: the members that do half as many
    steps.  outer: as in `rule_named`.
    """

    seed: int
    inner_steps: int
    fragments: int = 1
    delay: int = 0
    codec: str = "int8"
    members: int = MEMBERS
    slow: int = 0
    merge: str = "shift"
    outer: str = "auto"
    aggregation: Rule = "mean"

    @property
    def round_steps(self) -> int:
        return self.inner_steps // self.fragments

    @property
    def is_streamed(self) -> bool:
        return self.fragments > 1 or self.delay > 0

    @property
    def is_possible(self) -> bool:
        return self.inner_steps % self.fragments == 0 and self.delay <= self.round_steps

    @property
    def plain(self) -> Case:
        """The plain run for comparison."""
        return Case(self.seed, self.inner_steps, members=self.members, slow=self.slow)

    @property
    def bar(self) -> float | None:
        """Largest permitted percentage over the plain run; None without a bar."""
        counts = (self.fragments, self.merge, self.members, self.slow) == (BAR_FRAGMENTS, "shift", MEMBERS, 0)
        return BARS_PERCENT[self.codec] if counts else None

    def __str__(self) -> str:
        who = row_name(self.members) + (f" ({self.slow} slow)" if self.slow else "")
        what = f"F {self.fragments}, D {self.delay}, {self.merge}, {self.codec}"
        return f"seed {self.seed}, H {self.inner_steps}, {who}, {what}"


@dataclass(frozen=True)
class Losses:
    """Held-out losses of the shared parameters: at the end, and after one more exchange of the other fragments."""

    ended: float
    flushed: float


# -- a run ---------------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    """A member of the run.

    apart: the number of rounds that it has yet to begin with the shared parameters, because it has no rows to continue with.
    sent: its parameters of the fragment to which it last contributed.
    """

    worker: Worker
    apart: int
    sent: F32 = field(default_factory=lambda: np.empty(0, np.float32))

    @property
    def own(self) -> F32:
        """The parameters of the member, as they lie in the worker."""
        return self.worker.model.flat.numpy()


class StreamedRun:
    """The shared state of a run, and the members, whose workers merge and encode as in a swarm."""

    def __init__(self, case: Case, theta: F32, config: TrainingConfig, first_step: int) -> None:
        """Begin a run.  theta: the shared parameters, changed by it.  config: the members', but for the case's exchange."""
        self.theta, self._case, self._first_step = theta, case, first_step
        self._config = replace(config, codec=case.codec, fragments=case.fragments, delay=case.delay)
        self._momentum = np.zeros_like(self.theta)
        self._members: list[Member] = []
        self._layouts = layouts_of(self._config)
        self._spans = [
            slice(span.start, span.stop)
            for span in fragment_spans(self.theta.size, self._layouts.codec.block, case.fragments)
        ]
        self._rule, self._tokens = rule_named(case.outer, case.codec), list[int]()

    def hold(self, round: int, size: int) -> None:
        """Train `size` members for one round, and exchange the round's fragment."""
        fragment = round % self._case.fragments
        apart = NEWCOMER_ROUNDS if round else 1
        news = [Member(Worker(self._config, CPU), apart) for _ in range(size - len(self._members))]
        self._members = [*self._members[:size], *news]
        trained = [self._train(number, member, round) for number, member in enumerate(self._members)]
        self._tokens = [tokens for tokens, _ in trained]
        self._exchange(fragment, [encoded for _, encoded in trained])

    def exchange_others(self, sent: int) -> None:
        """Exchange all fragments but `sent` as they are at the members now."""
        for fragment in range(self._case.fragments):
            if fragment != sent:
                encoded = [self._zeros() for _ in self._members]
                for member, out in zip(self._members, encoded, strict=True):
                    member.worker.work.encode_difference(self.theta, memoryview(out), fragment)
                self._exchange(fragment, encoded)

    def _train(self, number: int, member: Member, round: int) -> tuple[int, bytearray]:
        """Return the tokens and the contribution of a member."""
        case, encoded = self._case, self._zeros()
        steps, delay = case.round_steps, case.delay
        if number < case.slow:
            steps, delay = steps // 2, delay // 2
        is_apart, fragment = member.apart > 0, round % case.fragments
        if is_apart and round and delay:
            steps = max(1, steps - delay - SPARE_STEPS)
        first = self._first_step + round * case.round_steps
        rows = [rows_of(member.worker, number, first + step) for step in range(steps)]
        task = Task(round, rows, steps, first, fragment=fragment, continues=case.is_streamed and not is_apart)
        applied = self._arrival(member, delay, (round - 1) % case.fragments)
        done = member.worker.compute(task, self.theta, memoryview(encoded), lambda *_: False, applied=applied)
        member.apart -= is_apart
        member.sent = member.own[self._spans[fragment]].copy()
        return done.tokens, encoded

    def _arrival(self, member: Member, delay: int, fragment: int) -> Applied:
        """Return a function that says when the last round's result, of `fragment`, arrives: after `delay` steps."""
        asked = count()

        def arrives(needed: bool) -> bool:
            if not needed and next(asked) < delay:
                return False
            if self._case.merge == "blend":
                span = self._spans[fragment]
                _blend(member.own[span], member.sent, self.theta[span])
            return True

        return arrives

    def _exchange(self, fragment: int, encoded: Sequence[bytearray]) -> None:
        span, rule = self._spans[fragment], partial(self._rule, self._tokens, self._case.inner_steps)
        theta, momentum = self.theta[span], self._momentum[span]
        apply_mean(self._layouts, theta, momentum, encoded, self._tokens, rule, self._case.aggregation)

    def _zeros(self) -> bytearray:
        return bytearray(self._layouts.contribution.payload_bytes)


def _blend(own: F32, sent: F32, theta: F32) -> None:
    """Change a member's parameters so that the worker, which is about to shift them, ends at the blend with theta."""
    own[:] = ALPHA * theta + (1 - ALPHA) * own - (theta - sent)


def begin(bench: Bench, case: Case) -> StreamedRun:
    """Return a run of the case from the start of its seed."""
    return StreamedRun(
        case, bench.start(case.seed).copy(), bench.settings.config(case.seed, RATE), bench.settings.warm_steps
    )


def losses_of(bench: Bench, case: Case) -> Losses:
    """Run a case from the start to the end, and return its losses."""
    run, passes = begin(bench, case), bench.settings.steps_of(case.inner_steps) // case.inner_steps
    for round in range(passes * case.fragments):
        run.hold(round, size_in(case.members, round // case.fragments, passes))
    ended = bench.loss(run.theta)
    if case.fragments == 1:
        return Losses(ended, ended)
    run.exchange_others(case.fragments - 1)
    return Losses(ended, bench.loss(run.theta))


class Runs:
    """Finished runs, one JSON line each, in a file if one is named."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self._settings, self._path = asdict(settings), path
        self.losses: dict[Case, Losses] = {}
        for line in path.read_text().splitlines() if path and path.exists() else []:
            entry = json.loads(line)
            if entry["settings"] == self._settings:
                self.losses[Case(**entry["case"])] = Losses(**entry["losses"])

    def add(self, case: Case, losses: Losses) -> None:
        self.losses[case] = losses
        if self._path:
            entry = {"settings": self._settings, "case": asdict(case), "losses": asdict(losses)}
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


# -- the table -----------------------------------------------------------------------------------------------------------


def wanted(inner_steps: Sequence[int]) -> list[Case]:
    """Return the rows of a table as cases of seed 0; some are not possible.  Only the first H has all delays."""
    few, four = inner_steps[0], BAR_FRAGMENTS
    grid = [
        Case(0, steps, fragments, delay, codec)
        for steps in inner_steps
        for codec in CODECS
        for fragments in FRAGMENTS
        for delay in (DELAYS if steps == few else DELAYS[-1:])
    ]
    blended = [Case(0, few, four, delay, merge="blend") for delay in (2, 5)]
    return [*grid, *blended, Case(0, few, four, 5, "int4", WAVE), Case(0, few, four, 5, "int4", slow=1)]


def with_plain(rows: Sequence[Case], seeds: Sequence[int]) -> list[Case]:
    """Return all runs of these rows, seed after seed, rows with a bar first, so that an unfinished table is useful."""
    possible = sorted((row for row in rows if row.is_possible), key=lambda row: row.bar is None)
    return list(dict.fromkeys(replace(run, seed=seed) for seed in seeds for row in possible for run in (row.plain, row)))


@dataclass(frozen=True)
class Row:
    """One line of the table: percent over the plain run, seed by seed."""

    case: Case
    excess: Sequence[float]
    flushed: Sequence[float]

    @property
    def holds(self) -> bool:
        return self.case.bar is None or statistics.fmean(self.excess) <= self.case.bar

    def as_json(self) -> dict[str, Any]:
        case = self.case
        return {
            "fragments": case.fragments,
            "delay": case.delay,
            "inner_steps": case.inner_steps,
            "codec": case.codec,
            "members": row_name(case.members),
            "slow_members": case.slow,
            "merge": case.merge,
            "excess_percent": statistics.fmean(self.excess),
            "excess_percent_each_seed": [*self.excess],
            "exchanged_once_more_percent": statistics.fmean(self.flushed),
            "bar_percent": case.bar,
            "holds": self.holds,
        }


def row_of(case: Case, losses: Mapping[Case, Losses], seeds: Sequence[int]) -> Row:
    """Return the line of a case from its runs and the plain runs."""
    runs = [replace(case, seed=seed) for seed in seeds]
    plain = [losses[run.plain].ended for run in runs]
    ended, flushed = ([getattr(losses[run], name) for run in runs] for name in ("ended", "flushed"))
    return Row(case, percent(ended, plain), percent(flushed, plain))


def print_table(rows: Sequence[Row], impossible: Sequence[Case]) -> None:
    print("| H | members | codec | fragments | delay | merge | over plain, mean (each seed) | exchanged once more | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{value:+.2f}" for value in row.excess)
        excess, flushed = (f"{statistics.fmean(values):+.2f} %" for values in (row.excess, row.flushed))
        bar = "" if row.case.bar is None else "holds" if row.holds else "MISSED"
        print(f"{_begin(row.case)} | {excess} ({each}) | {flushed} | {bar} |")
    for case in impossible:
        if case.codec == CODECS[0]:
            print(f"{_begin(case)} | not possible: a round has {case.round_steps} steps | | |")


def _begin(case: Case) -> str:
    who = row_name(case.members) + (f", {case.slow} slow" if case.slow else "")
    return f"| {case.inner_steps} | {who} | {case.codec} | {case.fragments} | {case.delay} | {case.merge}"


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.overlap", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: shows that it works, and no more")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="inner steps of every member, at least")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--inner-steps", type=numbers, default=[40, 80], help="inner steps of a pass (H)")
    parser.add_argument("--only-bars", action="store_true", help="only rows that have a bar")
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    settings, seeds, rows = Settings(steps=options.steps), options.seeds, wanted(options.inner_steps)
    if options.quick:
        settings, seeds, rows = QUICK, seeds[:1], wanted([8])
    if options.only_bars:
        rows = [row for row in rows if row.bar is not None]
    began, runs, cases, bench = time.monotonic(), Runs(settings, options.save), with_plain(rows, seeds), Bench(settings)
    for number, case in enumerate(cases, 1):
        if case not in runs.losses:
            runs.add(case, losses_of(bench, case))
            seconds, ended = time.monotonic() - began, runs.losses[case].ended
            print(f"{seconds:5.0f} s  {number} of {len(cases)}  {case}: {ended:.4f}", file=sys.stderr, flush=True)
    table = [row_of(case, runs.losses, seeds) for case in rows if case.is_possible]
    impossible, holds = [case for case in rows if not case.is_possible], all(row.holds for row in table)
    print(f"{bench.member(0).config.model.parameters} parameters, seeds {seeds}\n")
    print_table(table, impossible)
    if options.json:
        lines = [row.as_json() for row in table]
        print(json.dumps({"settings": asdict(settings), "seeds": seeds, "holds": holds, "rows": lines}))
    return 0 if holds or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
