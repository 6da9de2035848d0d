"""Share of rollouts that a validator accepts: `python -m benchmarks.detection [--lengths 48 512 2048] [--honest N] …`.

Models of three families are built from seeds.  First come honest peers, which compute as the reference does, with another
batch size, with the prompt in other pieces, without a cache in padded rows, or with other precision; and a validator that
pads nothing, or computes in bf16 itself.  None of them may be rejected, and their worst figures give the tolerances for this
model, for runs in which all compute in fp32, or all in bf16, or each as it likes (`benchmarks.calibration`).  Peers of mixed
precision are judged once more with these tolerances.  Then come cheats, with the default tolerances and with the proposed
ones.  The table has the share of their rollouts that is rejected alone, each for itself, and the number of rollouts of one
batch until the first rejection.  A rollout states no reward, so an inflated reward has to come from text that the model did
not choose.

Runs of adapters (`--families "llama adapter" "llama adapter on int4"` …) have factors beside a frozen model; their cheats
compute with another adapter, or with another form of the frozen model.

All rollouts of a row are judged as one batch.  Outputs of 48 tokens may end by themselves; longer ones are conversations
that continue up to the limit.  Each family and length is a separate part: choose parts with --families and --lengths, or
give --out FILE, to which rows are appended; parts that are complete in FILE are skipped when the command is given again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.calibration import proposed, widest
from benchmarks.detection_adapters import ADAPTERS, adapter_cheats, adapter_run
from benchmarks.detection_forgeries import forgeries
from benchmarks.detection_peers import (
    FAMILIES,
    GROUP,
    ME,
    RUN,
    SHORT,
    TOKENIZER,
    VERSION,
    Honest,
    Run,
    cheats,
    coarse_cheats,
    honest,
    model_of,
    parameters,
)
from protocol.formats.rl import RlConfig
from trainer.rl.rollout import Rollout
from trainer.rl.verification import MOST_BEYOND, SLACK, Assignment, Judged, Measured, RejectionReason, Tolerances, Verifier

CONFIDENCE = 0.99
DONE = "done"


def judge(
    run: Run,
    rollouts: Sequence[Rollout],
    rl: RlConfig | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    alone: bool = False,
) -> list[Judged]:
    """Judge rollouts as a validator with the right weights.

    dtype: the type of its products.  alone: it computes one rollout at a time.
    """
    model, rl = run.model(dtype), rl or run.rl
    problems = tuple(sorted({each.problem for each in rollouts}))
    verifier = Verifier(model, run.environment, TOKENIZER, rl.changed(micro_batch_tokens=1) if alone else rl)
    return verifier.verify(Assignment(RUN, VERSION, ME, problems, GROUP), rollouts)


def needed(share: float) -> int | None:
    """Return the number of rollouts until one is rejected with `CONFIDENCE`; None for never."""
    if share >= 1:
        return 1
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share)) if share > 0 else None


def is_rejected_alone(judged: Judged, rl: RlConfig) -> bool:
    """Return True if a rollout is rejected for itself, not because earlier ones in its batch used up a limit."""
    measured, bounds = judged.measured, Tolerances.of(rl)
    if judged.reason is not RejectionReason.BAD_SAMPLING or measured is None:
        return judged.reason is not None
    return measured.shortfall > bounds.ceiling or measured.beyond > MOST_BEYOND or measured.stretch > SLACK


def part(name: str, length: int, honest_count: int, cheat_count: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each honest variant; the proposed tolerances, by precision; a row for each cheat."""
    run = run_of(name, length)
    proposals: dict[str, list[Tolerances]] = {"float32": [], "bfloat16": [], "mixed": []}
    variants: list[Honest] = []
    for variant in honest(run, honest_count):
        began = time.process_time()
        judged = judge(run, variant.rollouts, **variant.validator)
        found = [each.measured for each in judged if each.measured is not None]
        for precision in {variant.precision, "mixed"}:
            proposals[precision].append(proposed(found))
        yield {"who": f"honest: {variant.name}", **told(judged, found), **ratio(variant, time.process_time() - began)}
        if variant.precision == "mixed":
            variants.append(variant)
    tolerances = {precision: widest(each).fields() for precision, each in proposals.items()}
    yield {"who": "proposed", "tolerances": tolerances}
    rls = {precision: run.rl.model_copy(update=each) for precision, each in tolerances.items()}
    for variant in variants:
        judged = judge(run, variant.rollouts, rls["mixed"], **variant.validator)
        found = [each.measured for each in judged if each.measured is not None]
        yield {"who": f"honest, tolerances as proposed: {variant.name}", **told(judged, found)}
    both = {"usual": run.rl, "float32": rls["float32"], "mixed": rls["mixed"]}
    for cheat, rollouts in forgeries(run, cheat_count, tolerances["mixed"]["shortfall_rate"]):
        yield {"who": cheat, **found_out(run, rollouts, both, torch.float32)}
    if run.frozen is not None:
        for cheat, rollouts in adapter_cheats(run, cheat_count):
            yield {"who": cheat, **found_out(run, rollouts, both, torch.float32)}
    elif length <= SHORT:
        for cheat, rollouts in cheats(run, cheat_count):
            yield {"who": cheat, **found_out(run, rollouts, both, torch.float32)}
        coarse = {"usual": run.rl, "bfloat16": rls["bfloat16"]}
        for cheat, rollouts in coarse_cheats(run, cheat_count):
            yield {"who": cheat, **found_out(run, rollouts, coarse, torch.bfloat16)}


def run_of(name: str, length: int) -> Run:
    """Return the run of a family, or of an adapter."""
    if name in ADAPTERS:
        return adapter_run(name, length)
    config = model_of(name, length)
    return Run(config, parameters(config), length)


def told(judged: Sequence[Judged], found: Sequence[Measured]) -> dict[str, Any]:
    """Return the figures of an honest variant."""
    return {
        "rollouts": len(judged),
        "rejected": sum(each.reason is not None for each in judged),
        "unsure": sum(not each.sure for each in judged),
        "exponents": max(each.exponent_mismatches for one in found for each in one.mismatches),
        "mean": max(each.mantissa_mean for one in found for each in one.mismatches),
        "shortfall": max(one.shortfall for one in found),
        "sum": max(one.total for one in found),
        "stretch": max(one.stretch for one in found),
        "rate": sum(one.total for one in found) / sum(one.density for one in found),
        "tokens": sum(each.tokens for each in judged),
        "reward": statistics.mean(each.reward for each in judged if each.reward is not None),
    }


def ratio(variant: Honest, verifying_s: float) -> dict[str, Any]:
    """Return the time of verifying over that of generating."""
    return {"verify_over_generate": verifying_s / variant.spent_s if variant.spent_s else None}


def found_out(run: Run, rollouts: Sequence[Rollout], rls: dict[str, RlConfig], dtype: torch.dtype) -> dict[str, Any]:
    """Return the shares of a cheat's rollouts that are rejected with each of these tolerances."""
    row: dict[str, Any] = {"rollouts": len(rollouts), "rejected": {}, "needed": {}, "first": {}, "reward": {}}
    reasons: Counter[str] = Counter()
    order = sorted(range(len(rollouts)), key=lambda index: len(rollouts[index].prompt) + len(rollouts[index].output))
    for name, rl in rls.items():
        judged = judge(run, rollouts, rl, dtype=dtype)
        share = sum(is_rejected_alone(each, rl) for each in judged) / len(judged)
        row["rejected"][name], row["needed"][name] = share, needed(share)
        row["first"][name] = next((at for at, index in enumerate(order, start=1) if judged[index].reason is not None), None)
        rewards = [each.reward for each in judged if each.reward is not None]
        row["reward"][name] = statistics.mean(rewards) if rewards else None
        reasons.update(each.reason.value for each in judged if each.reason is not None)
        found = [each.measured for each in judged if each.measured is not None]
        if found:
            row["rate"] = sum(one.total for one in found) / max(1e-9, sum(one.density for one in found))
            row["shortfall"] = max(one.shortfall for one in found)
    return {**row, "reasons": dict(reasons)}


def shown(row: dict[str, Any]) -> str:
    """Return a line for people."""
    head = f"{row['family']:6} {row['length']:5} {row['who']:50}"
    if "tolerances" in row:
        fields = {
            precision: ", ".join(f"{field} = {value:.6g}" for field, value in each.items())
            for precision, each in row["tolerances"].items()
        }
        return "\n".join(f"{row['family']:6} proposed for [rl], {precision}: {each}" for precision, each in fields.items())
    if "stretch" in row:
        return (
            f"{head} {row['rollouts']:5}  rejected {row['rejected']}, unsure {row['unsure']}; at most "
            f"{row['exponents']} exponents, mantissas {row['mean']:.3f}, shortfall {row['shortfall']:.3f}, "
            f"sum {row['sum']:.3f}; rate {row['rate']:.2g}"
        )
    if "rejected" not in row:
        return head
    shares = ", ".join(
        f"{name} {share:6.1%} ({row['needed'][name] or '-'}; batch {row['first'][name] or '-'})"
        for name, share in row["rejected"].items()
    )
    reasons = ", ".join(f"{reason} {count}" for reason, count in islice(row["reasons"].items(), 3))
    return f"{head} {row['rollouts']:5}  rejected {shares}  {reasons}"


def finished(path: Path | None) -> set[tuple[str, int]]:
    """Return the parts that are complete in a file of rows."""
    if path is None or not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {(row["family"], row["length"]) for row in rows if row["who"] == DONE}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--honest", type=int, default=1000, metavar="N", help="rollouts of each honest variant")
    parser.add_argument("--cheats", type=int, default=96, metavar="N", help="rollouts of each cheat")
    parser.add_argument("--lengths", type=int, nargs="+", default=[SHORT, 512, 2048], help="tokens of outputs at most")
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES, *ADAPTERS], default=list(FAMILIES))
    parser.add_argument("--out", type=Path, help="append rows of JSON to this file, and skip the parts that it has whole")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    skipped = finished(arguments.out)
    for length in arguments.lengths:
        for name in arguments.families:
            if (name, length) in skipped:
                continue
            began, spent = time.monotonic(), time.process_time()
            for row in chain(part(name, length, arguments.honest, arguments.cheats), [{"who": DONE}]):
                row = {"family": name, "length": length, **row}
                print(json.dumps(row) if arguments.json else shown(row), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as out:
                        out.write(json.dumps(row) + "\n")
                times = f"{time.monotonic() - began:.0f} s, {time.process_time() - spent:.0f} s of processor time"
                print(f"{name}, {length} tokens: {row['who']}; {times}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
