"""Which rollouts a validator accepts: `python -m benchmarks.detection [--rollouts N] [--families llama …] [--json]`.

Models of three families are built from seeds.  First honest peers: as the reference computes, with another batch size, with
the prompt in other pieces, without a cache in padded rows, with other precision; and a validator that pads nothing, or
computes in bf16 itself.  None may be rejected, and their worst figures give the thresholds for this model, for runs in
which all compute in fp32, or all in bf16, or each as it likes (`trainer.rl.calibration`).  Then cheats: the share of their
rollouts that is rejected, with TOPLOC's usual thresholds and with those proposed, and after how many rollouts a cheat is
found with 99 %.  A rollout says no reward, so an inflated one has to come from text that the model did not choose.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from benchmarks.detection_peers import (
    CPU,
    FAMILIES,
    GROUP,
    ME,
    RL,
    RUN,
    TOKENIZER,
    VERSION,
    Numbers,
    cheats,
    coarse_cheats,
    honest,
    parameters,
)
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.model import Decoder
from trainer.rl.calibration import proposed
from trainer.rl.config import RlConfig
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Judged, Measured, Verifier

CONFIDENCE = 0.99


def judge(
    config: ModelConfig,
    theta: np.ndarray,
    rollouts: list[Rollout],
    rl: RlConfig = RL,
    *,
    dtype: torch.dtype = torch.float32,
    alone: bool = False,
) -> list[Judged]:
    """By a validator with the right weights.  dtype: of its products.  alone: it computes one rollout at a time."""
    model = Decoder(config, CPU, torch.from_numpy(theta).to(dtype))
    problems = tuple(sorted({each.problem for each in rollouts}))
    verifier = Verifier(model, Numbers(), TOKENIZER, replace(rl, micro_batch_tokens=1) if alone else rl)
    return verifier.verify(Assignment(RUN, VERSION, ME, problems, GROUP), rollouts)


def needed(share: float) -> int | None:
    """Rollouts until one is rejected with `CONFIDENCE`; None for never."""
    if share >= 1:
        return 1
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share)) if share > 0 else None


def family(name: str, count: int, cheat_count: int) -> Iterator[dict[str, Any]]:
    """A row for each honest variant; the proposed thresholds, by precision; a row for each cheat."""
    config = FAMILIES[name]
    theta = parameters(config)
    measured: dict[str, list[Measured]] = {"float32": [], "bfloat16": [], "mixed": []}
    for variant in honest(config, theta, count):
        began = time.process_time()
        judged = judge(config, theta, variant.rollouts, **variant.validator)
        verifying = time.process_time() - began
        found = [each.measured for each in judged if each.measured is not None]
        for precision in {variant.precision, "mixed"}:
            measured[precision] += found
        yield {
            "family": name,
            "who": f"honest: {variant.name}",
            "rollouts": len(judged),
            "rejected": _share(judged),
            "exponents": max(each.exponent_mismatches for one in found for each in one.mismatches),
            "mean": max(each.mantissa_mean for one in found for each in one.mismatches),
            "shortfall": max(one.shortfall for one in found),
            "verify_over_generate": verifying / variant.spent_s if variant.spent_s else None,
        }
    tolerances = {precision: proposed(found).fields() for precision, found in measured.items()}
    yield {"family": name, "who": "proposed", "tolerances": tolerances}
    fine = {precision: replace(RL, **tolerances[precision]) for precision in ("float32", "mixed")}
    for cheat, rollouts in cheats(config, theta, cheat_count):
        yield {"family": name, "who": cheat, **found_out(config, theta, rollouts, fine, torch.float32)}
    coarse = {"bfloat16": replace(RL, **tolerances["bfloat16"])}
    for cheat, rollouts in coarse_cheats(config, theta, cheat_count):
        yield {"family": name, "who": cheat, **found_out(config, theta, rollouts, coarse, torch.bfloat16)}


def found_out(
    config: ModelConfig, theta: np.ndarray, rollouts: list[Rollout], proposals: dict[str, RlConfig], dtype: torch.dtype
) -> dict[str, Any]:
    """How much of a cheat is rejected with the usual thresholds, and with each of those proposed."""
    usual = judge(config, theta, rollouts, dtype=dtype)
    tight = {name: judge(config, theta, rollouts, each, dtype=dtype) for name, each in proposals.items()}
    reasons = Counter(each.reason.value for judged in tight.values() for each in judged if each.reason is not None)
    return {
        "rollouts": len(usual),
        "rejected": _share(usual),
        "needed": needed(_share(usual)),
        "rejected_proposed": {name: _share(judged) for name, judged in tight.items()},
        "needed_proposed": {name: needed(_share(judged)) for name, judged in tight.items()},
        "reasons": dict(reasons),
    }


def _share(judged: Sequence[Judged]) -> float:
    return sum(each.reason is not None for each in judged) / len(judged)


def shown(row: dict[str, Any]) -> str:
    """A line for people."""
    if "tolerances" in row:
        told = {
            precision: ", ".join(f"{field} = {value:.6g}" for field, value in each.items())
            for precision, each in row["tolerances"].items()
        }
        return "\n".join(f"{row['family']:6} proposed for [rl], {precision}: {each}" for precision, each in told.items())
    line = f"{row['family']:6} {row['who']:50} {row['rollouts']:5}  rejected {row['rejected']:7.1%}"
    if "mean" in row:
        ratio = row["verify_over_generate"]
        return (
            f"{line}  at most {row['exponents']} exponents, mantissas {row['mean']:.3f}, shortfall {row['shortfall']:.3f}"
            + (f"; verifying / generating {ratio:.2f}" if ratio else "")
        )
    shares, counts = row["rejected_proposed"], row["needed_proposed"]
    tight = ", ".join(f"{dtype} {shares[dtype]:6.1%} ({counts[dtype] or '-'})" for dtype in shares)
    reasons = ", ".join(f"{reason} {count}" for reason, count in islice(row["reasons"].items(), 3))
    return f"{line} (needed {row['needed'] or '-'})  proposed: {tight}  {reasons}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=1000, help="of each honest variant")
    parser.add_argument("--cheats", type=int, default=96, help="rollouts of each cheat")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.families:
        for row in family(name, arguments.rollouts, arguments.cheats):
            print(json.dumps(row) if arguments.json else shown(row), flush=True)


if __name__ == "__main__":
    main()
