"""Receipts of rows: how far an audit tells honest members from members that did not train.

    python -m benchmarks.receipts --save FILE [--groups base,cheats,...] [--sizes 0.1M] [--seeds 0] [--json]

Members train in this process with the trainer's worker, which keeps receipts, the real codec, reduction and outer step; only
the network is left out.  All begin with the weights of a common warm start.  The first round gives each its moments and is
not audited.  An auditor recomputes a row of inner step j at weights that everybody can compute: the shared weights of that
moment, less j / H of the round's mean result.  In a streamed run each fragment has its own result and its own j.

A run's rows are audited once, and audits are drawn from their cosines: 8 rows, 2 of each of 4 inner steps, compared with 16
rows of an honest auditor from the same steps; a suspect gets a second draw of 16 rows.  Two rules decide (`RULES`).  A cheat
is audited with probability 1/2, or always, and the table has the contributions until it is found with a probability of 95 %.

Cheats take part in their run: their contributions change the shared weights.  "forward" claims the gradient at the top of
the layers in place of that at the embedding; "map" claims a linear map of it and of its sums over later tokens, fitted by
least squares to the true gradients of `MAP_ROWS` rows at the start of each round.  `--groups` names the groups of runs
(`GROUPS`), `--cost` measures the time of a step with and without receipts.  `--save` keeps finished runs in a file, so that
an interrupted table continues from there, and the starts beside it.  The bar: no false verdict in 3000 honest contributions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.adapters import Texts
from benchmarks.diloco import numbers
from benchmarks.receipts_runs import (
    AT_ONCE,
    CHEATS,
    CPU,
    F64,
    MODELS,
    PATH,
    SEED,
    STATE,
    Z_LOSS,
    Bench,
    Case,
    Contribution,
    Outcome,
    model_at,
    run,
)
from kernels.schedule import Place
from protocol.audit.receipts import FIRST, RULE, SECOND, ReceiptVerdict, RowDraw, VerdictRule, verdict
from trainer.receipts import GradientProjection, receipts_at, receipts_of
from trainer.worker import Worker

# -- audits drawn from runs ------------------------------------------------------------------------------------------------


DRAWS, CHANCE = 3000, 0.5
"""Audits that are drawn, and the probability of an audit."""
SCORE_DRAWS, FALSE_SHARE, LEAST_SCORED = 400, 1e-3, 0.8
"""Audits drawn for each score, share of honest ones below its bound, and the least level."""


@dataclass
class Draw:
    """Audit of some rows.  rows, parts, losses: of the audited contribution.  own: cosines of the auditor's rows."""

    rows: F64
    parts: F64
    losses: F64
    own: F64

    @property
    def level(self) -> float:
        return float(np.nanmean(self.own))


Pair = tuple[Contribution, Contribution]
"""Contribution, and an honest one of the same round whose member audits it."""


def pairs(contributions: Sequence[Contribution], *, honest: bool) -> list[Pair]:
    return [
        (one, other)
        for one in contributions
        for other in contributions
        if one.honest is honest and other.honest and one.round == other.round and one.member != other.member
    ]


def draw(random: np.random.Generator, pair: Pair, wanted: RowDraw) -> Draw:
    """Draw rows of a contribution, and of the auditor's own at the same shares of the round, among those computed again."""
    (checked, own), (most, width), (own_most, own_width) = pair, pair[0].rows.shape, pair[1].rows.shape
    places = random.permutation(most)[: wanted.steps]
    own_places = np.round(places * (own_most - 1) / max(1, most - 1)).astype(int)
    rows, own_rows = (-(-count // len(places)) for count in (wanted.rows, wanted.own_rows))
    picks = random.random((len(places), width)).argsort(axis=1)[:, :rows]
    own_picks = random.random((len(places), own_width)).argsort(axis=1)[:, :own_rows]
    at = np.repeat(places, picks.shape[1]), picks.ravel()
    return Draw(
        checked.rows[at],
        checked.parts[at],
        checked.losses[at],
        own.rows[np.repeat(own_places, own_picks.shape[1]), own_picks.ravel()],
    )


def by_rows(rows: F64, level: float) -> ReceiptVerdict:
    """Return the verdict by the rule that was designed first: two low rows are suspect, too."""
    found = verdict(rows, level, VerdictRule(0.8, 0.75))
    is_low = found is not ReceiptVerdict.NONE and (rows < 0.35).sum() >= 2
    return ReceiptVerdict.SUSPECT if is_low else found


@dataclass(frozen=True)
class Rule:
    """Rule for a verdict, with the draws on which it is based."""

    verdict: Callable[[F64, float], ReceiptVerdict]
    first: RowDraw
    second: RowDraw


FEW_STEPS = RowDraw(4, 8, 16), RowDraw(8, 16, 16)
RULES: Mapping[str, Rule] = {
    "rows": Rule(by_rows, *FEW_STEPS),
    "few steps": Rule(verdict, *FEW_STEPS),
    "mean": Rule(verdict, FIRST, SECOND),
}
"""The rule as designed first, the same draws by their means alone, also at lower levels, and the rule of runs."""


def contributions_until(found: float) -> list[int | None]:
    """Return the contributions until a cheat is found with 95 %, audited with `CHANCE` and always; None for hardly ever.

    found: share of audits that find it.
    """
    rates = [share * found for share in (CHANCE, 1.0)]
    return [None if rate < 1e-3 else 1 if rate > 0.95 else math.ceil(math.log(0.05) / math.log1p(-rate)) for rate in rates]


def counted(chosen: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Audit `DRAWS` contributions.

    Returns for each rule the shares without a verdict, suspect at first, and found in the end, and the levels.
    """
    random, levels = np.random.default_rng(1), list[float]()
    outcomes: dict[str, list[tuple[bool, bool, bool]]] = {name: [] for name in RULES}
    for number in random.integers(len(chosen), size=DRAWS):
        for name, rule in RULES.items():
            draws = [draw(random, chosen[number], wanted) for wanted in (rule.first, rule.second)]
            verdicts = [rule.verdict(each.rows, each.level) for each in draws]
            if name == "mean":
                levels.append(draws[0].level)
            suspect = verdicts[0] is ReceiptVerdict.SUSPECT
            found = suspect and verdicts[1] is ReceiptVerdict.SUSPECT
            outcomes[name].append((verdicts[0] is ReceiptVerdict.NONE, suspect, found))
    level = {"mean_level": statistics.fmean(levels), "least_level": min(levels)}
    means = {name: np.mean(each, axis=0).tolist() for name, each in outcomes.items()}
    return {name: dict(zip(("none", "suspect", "found"), each, strict=True)) | level for name, each in means.items()}


Score = Callable[[Draw], float]
FOUR, EIGHT_ROWS, SIXTEEN = RowDraw(4, 4, 16), *FEW_STEPS


def over_level(drawn: Draw) -> float:
    return float(np.nanmean(drawn.rows) / drawn.level)


SCORES: Mapping[str, tuple[Score, RowDraw]] = {
    "mean over level, 4 rows": (over_level, FOUR),
    "mean over level, 8": (over_level, EIGHT_ROWS),
    "mean over level, 12": (over_level, FIRST),
    "mean over level, 16": (over_level, SIXTEEN),
    "rank among own rows, 8": (lambda drawn: float((drawn.rows[:, None] >= drawn.own).mean()), EIGHT_ROWS),
    "second lowest row, 8": (lambda drawn: float(np.sort(drawn.rows)[1]), EIGHT_ROWS),
    "lowest of four parts' means, 8": (lambda drawn: float(np.nanmin(np.nanmean(drawn.parts, axis=0))), EIGHT_ROWS),
    "losses, 8": (lambda drawn: -float(np.sqrt(np.mean(drawn.losses**2))), EIGHT_ROWS),
}
"""Scores of an audit, larger for honest members, and the draw."""


def scores(runs: Mapping[str, Sequence[Contribution]]) -> Iterator[dict[str, Any]]:
    """Yield for each score the share of each cheat's audits below all but `FALSE_SHARE` of the honest ones of all runs."""
    random = np.random.default_rng(2)

    def values(name: str, chosen: Sequence[Pair]) -> list[float]:
        score, wanted = SCORES[name]
        drawn = [draw(random, chosen[number], wanted) for number in random.integers(len(chosen), size=SCORE_DRAWS)]
        return [score(each) for each in drawn if each.level >= LEAST_SCORED]

    for name in SCORES:
        honest = [value for some in runs.values() for value in values(name, pairs(some, honest=True))]
        bound = float(np.quantile(honest, FALSE_SHARE, method="lower")) if honest else -math.inf
        cheats = {run: pairs(some, honest=False) for run, some in runs.items()}
        found = {run: np.array(values(name, chosen)) for run, chosen in cheats.items() if chosen}
        below = {run: float((some < bound).mean()) if some.size else None for run, some in found.items()}
        yield {"score": name, "bound": bound, "honest_audits": len(honest), "below": below}


# -- the table ---------------------------------------------------------------------------------------------------------


BASE = Case()
EIGHT = replace(BASE, members=8, hostile=1)
GROUPS: Mapping[str, Sequence[Case]] = {
    "base": [BASE],
    "4k": [replace(BASE, rows=32)],
    "16k": [replace(BASE, rows=128)],
    "H": [replace(BASE, steps=10), replace(BASE, steps=100)],
    "muon": [replace(BASE, optimizer="muon")],
    "rate": [replace(BASE, rate=3.0)],
    "streamed": [replace(BASE, steps=40, fragments=4, delay=2, public=public) for public in (PATH, STATE)],
    "masked": [replace(BASE, kind="masked")],
    "chat": [replace(BASE, kind="chat")],
    "early": [replace(BASE, warm=100)],
    "late": [replace(BASE, warm=2500)],
    "stopping": [replace(BASE, early=True)],
    "newcomers": [replace(BASE, newcomers=True)],
    "numerics": [replace(BASE, threads=2), replace(BASE, dtype="bfloat16")],
    "cheats": [replace(EIGHT, cheat=cheat) for cheat in CHEATS],
    "two": [replace(EIGHT, cheat=cheat, hostile=2) for cheat in CHEATS],
}


class Progress:
    """Finished runs, one JSON line each, in a file if one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes: dict[Case, Outcome] = {}
        for line in path.read_text().splitlines() if path and path.exists() else []:
            entry = json.loads(line)
            found = [Contribution.of_json(each) for each in entry["contributions"]]
            self.outcomes[Case(**entry["case"])] = Outcome(entry["loss"], found)

    def add(self, case: Case, outcome: Outcome) -> None:
        self.outcomes[case] = outcome
        if self._path:
            with self._path.open("a") as file:
                found = [each.to_json() for each in outcome.contributions]
                file.write(json.dumps({"case": asdict(case), "loss": outcome.loss, "contributions": found}) + "\n")


def row_of(case: Case, outcome: Outcome) -> dict[str, Any]:
    """Return the line of a run."""
    row: dict[str, Any] = {"case": asdict(case), "name": case.name, "loss": outcome.loss}
    for honest, name in ((True, "honest"), (False, "cheats")):
        rows = [each.rows.ravel() for each in outcome.contributions if each.honest is honest]
        if rows:
            chosen = pairs(outcome.contributions, honest=honest)
            row[name] = {"cosine": float(np.nanmean(np.concatenate(rows))), "rows_audited": sum(map(len, rows))}
            row[name] |= counted(chosen)
    return row


def print_rows(rows: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> None:
    print("\nper 1000: audits without a verdict, suspect after the first draw, and after the second\n")
    print(f"| run | seed | loss | rows | cosine | level (least) | {' | '.join(RULES)} |\n" + (6 + len(RULES)) * "|---" + "|")
    for row in rows:
        found = row["honest"]
        counts = [", ".join(f"{1000 * found[rule][name]:.1f}" for name in ("none", "suspect", "found")) for rule in RULES]
        level = "{mean_level:.3f} ({least_level:.3f})".format(**found["mean"])
        about = f"{row['name']} | {row['case']['seed']} | {row['loss']:.4f} | {found['rows_audited']}"
        print(f"| {about} | {found['cosine']:.3f} | {level} | {' | '.join(counts)} |")
    if any("cheats" in row for row in rows):
        print("\nfound by an audit: contributions until found, and if always audited\n")
        print(f"| cheat | seed | loss | cosine | {' | '.join(RULES)} |\n" + (4 + len(RULES)) * "|---" + "|")
    for row in rows:
        if (found := row.get("cheats")) is not None:
            cells = []
            for share in (found[rule]["found"] for rule in RULES):
                until = ", ".join("never" if each is None else str(each) for each in contributions_until(share))
                cells.append(f"{share:.3f}: {until}")
            about = f"{row['name']} | {row['case']['seed']} | {row['loss']:.4f}"
            print(f"| {about} | {found['cosine']:.3f} | {' | '.join(cells)} |")
    if lines:
        columns = list(lines[0]["below"])
        print(f"\n| score | {' | '.join(columns)} |\n" + (1 + len(columns)) * "|---" + "|")
        for line in lines:
            shares = " | ".join("-" if share is None else f"{share:.2f}" for share in line["below"].values())
            print(f"| {line['score']} | {shares} |")


def cost(bench: Bench, case: Case, repeats: int) -> dict[str, Any]:
    """Return the least processor time of a step, of its receipts, and of an audit of its rows."""
    worker, theta = Worker(bench.config(case), CPU), bench.start(case)
    worker.work.load(theta)
    rows, project = worker.batch(range(case.rows)), GradientProjection(SEED, worker.config.model.dim)
    model, gradient_btd = model_at(worker.model, theta), torch.randn(case.rows, rows.length, worker.config.model.dim)
    work: Mapping[str, Callable[[], object]] = {
        "step_ms": lambda: worker.inner.step(rows, Place(case.warm, 0.0)).read(),
        "receipts_ms": lambda: receipts_of(gradient_btd[:, 0, 0], project(gradient_btd)),
        "audit_ms": lambda: receipts_at(model, worker.objective, rows, Z_LOSS, SEED, AT_ONCE),
    }
    spent: dict[str, float] = {}
    for _ in range(repeats):
        for name, do in work.items():
            began = time.process_time()
            do()
            spent[name] = min(spent.get(name, math.inf), 1e3 * (time.process_time() - began))
    shares = {"receipts_percent": 100 * spent["receipts_ms"] / spent["step_ms"]}
    return {"size": case.size, "name": case.name, **spent, **shares, "audit_per_step": spent["audit_ms"] / spent["step_ms"]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receipts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--groups", type=lambda text: text.split(","), default=["base"], help=", ".join(GROUPS))
    parser.add_argument("--cheats", type=lambda text: text.split(","), default=list(CHEATS), help="of the groups of cheats")
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["0.1M"], help=", ".join(MODELS))
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--rounds", type=int, default=BASE.rounds, help="audited rounds of a run")
    parser.add_argument("--members", type=int, default=0, help="members of each run, in place of 4, or 8 with cheats")
    parser.add_argument("--texts", default=f"{sysconfig.get_path('stdlib')}:.py", help="FOLDER:SUFFIX of the files to learn")
    parser.add_argument("--cost", type=int, default=0, metavar="REPEATS", help="measure the time of receipts instead")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [
        replace(case, seed=seed, size=size, rounds=options.rounds, members=options.members or case.members)
        for seed in options.seeds
        for size in options.sizes
        for group in options.groups
        for case in GROUPS[group]
        if not case.cheat or case.cheat in options.cheats
    ]
    with TemporaryDirectory() as folder:
        kept = options.save.with_name(f"{options.save.name}.folder") if options.save else Path(folder)
        bench, progress = Bench(kept, Texts.named(options.texts)), Progress(options.save)
        if options.cost:
            for case in cases:
                print(json.dumps(cost(bench, case, options.cost)), flush=True)
            return 0
        for number, case in enumerate(cases, 1):
            if case not in progress.outcomes:
                began = time.process_time()
                progress.add(case, run(bench, case))
                seconds = time.process_time() - began
                print(
                    f"{seconds:5.0f} s  {number} of {len(cases)}  {case.name}, seed {case.seed}", file=sys.stderr, flush=True
                )
    rows = [row_of(case, progress.outcomes[case]) for case in cases]
    runs = {f"{case.name}, seed {case.seed}": progress.outcomes[case].contributions for case in cases}
    lines = list(scores(runs)) if any(case.cheat for case in cases) else []
    print_rows(rows, lines)
    false = {rule: max(row["honest"][rule]["found"] for row in rows) for rule in RULES}
    if options.json:
        print(json.dumps({"rule": asdict(RULE), "false": false, "rows": rows, "scores": lines}))
    return 1 if false["mean"] else 0


if __name__ == "__main__":
    sys.exit(main())
