"""Which rollouts a validator accepts: `python -m benchmarks.detection [--rollouts N] [--families llama …] [--json]`.

Models of three families are built from seeds.  First honest peers: as the reference computes, with another batch size, with
the prompt in other pieces, and with other precision; none may be rejected, and their worst figures give the thresholds for
this model (`trainer.rl.calibration`).  Then cheats: the share of their rollouts that is rejected, with TOPLOC's usual
thresholds and with those proposed, and after how many rollouts a cheat is found with 99 %.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from kernels.toploc import prove
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem
from trainer.generate.engine import Engine, Request, complete
from trainer.generate.sampling import stream_key
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.rl.calibration import proposed
from trainer.rl.config import RlConfig
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Judged, Measured, Verifier

TOKENIZER = ByteTokenizer()
CPU = torch.device("cpu")
RL = RlConfig(max_tokens=48, row_tokens=128, micro_batch_tokens=4096)
SHAPE: dict[str, Any] = {"vocab": 256, "dim": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 384, "norm_eps": 1e-5}
FAMILIES = {
    "llama": ModelConfig(tied=False, rope_base=500_000.0, **SHAPE),
    "qwen2": ModelConfig(tied=True, rope_base=1_000_000.0, qkv_bias=True, **SHAPE),
    "qwen3": ModelConfig(tied=False, rope_base=1_000_000.0, qk_norm=True, head_dim=64, **SHAPE),
}
SHARPNESS = 4.0
"""Matrices of a model built from a seed are multiplied with this, so that it has opinions."""
GROUP = 8
CONFIDENCE = 0.99
RUN, VERSION, ME = b"detection", 3, "12D3KooWworker"


class Numbers(Environment):
    """Prompts that differ; what is written is worth its share of letters."""

    @property
    def size(self) -> int:
        return 1 << 20

    def problem(self, index: int) -> Problem:
        return Problem(self._checked(index), f"problem {index * 7919 % 10007}: ", None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        text = "".join(turns)
        return sum(letter.isalpha() for letter in text) / max(1, len(text))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return ("solution",)


class Peer:
    """A rollout peer with some weights and some habits."""

    def __init__(self, config: ModelConfig, flat: np.ndarray, **engine: Any) -> None:
        self.config, self.flat = config, torch.from_numpy(flat)
        self._options: dict[str, Any] = {"slots": 32, "dtype": torch.float32} | engine
        self.spent_s = 0.0
        """Processor time of generating."""

    def rollouts(
        self,
        count: int,
        peer: str = ME,
        *,
        prompt: Callable[[str], str] = lambda text: text,
        first: int = 0,
        temperature: float = RL.temperature,
        version: int = VERSION,
    ) -> list[Rollout]:
        """Completions of the first problems, `GROUP` of each.  prompt: what the model reads instead of the prompt."""
        length = 96 + RL.max_tokens
        engine = Engine(self.config, CPU, length=length, temperature=temperature, prove=prove, **self._options)
        engine.load(self.flat.to(self._options["dtype"]))
        texts = [Numbers().problem(first + number // GROUP).prompt for number in range(count)]
        began = time.process_time()
        done = {each.id: each for each in complete(engine, self._requests(texts, peer, prompt, first, version))}
        self.spent_s += time.process_time() - began
        return [
            Rollout(
                first + number // GROUP,
                number % GROUP,
                tuple(TOKENIZER.encode(text)),
                done[number].output,
                done[number].made,
                done[number].proofs,
            )
            for number, text in enumerate(texts)
        ]

    def _requests(
        self, texts: Sequence[str], peer: str, prompt: Callable[[str], str], first: int, version: int
    ) -> Iterator[Request]:
        for number, text in enumerate(texts):
            key = stream_key(RUN, version, peer, first + number // GROUP, number % GROUP)
            yield Request(number, tuple(TOKENIZER.encode(prompt(text))), key, RL.max_tokens, (TOKENIZER.end,))


def parameters(config: ModelConfig, seed: int = 1) -> np.ndarray:
    """bf16 weights, as fp32."""
    theta = np.empty(config.parameters, np.float32)
    initial_parameters(config, seed, theta)
    theta[np.abs(theta) != 1.0] *= SHARPNESS
    return rounded(theta)


def rounded(theta: np.ndarray) -> np.ndarray:
    """To bf16."""
    whole: np.ndarray = torch.from_numpy(theta).bfloat16().float().numpy()
    return whole


def quantised(theta: np.ndarray, levels: int, block: int = 128) -> np.ndarray:
    """Rounded to `levels` steps on each side of 0, with a scale for each block of weights."""
    padded = np.zeros(-(-len(theta) // block) * block, np.float32)
    padded[: len(theta)] = theta
    blocks = padded.reshape(-1, block)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / levels
    whole = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)) * scale
    return rounded(np.ascontiguousarray(whole.reshape(-1)[: len(theta)]))


def honest(config: ModelConfig, theta: np.ndarray) -> dict[str, Peer]:
    """Peers that compute what they should, each in its own way."""
    return {
        "as the reference": Peer(config, theta),
        "batch of 5": Peer(config, theta, slots=5),
        "prompt in pieces of 7": Peer(config, theta, prefill_tokens=7),
        "products in bf16": Peer(config, theta, dtype=torch.bfloat16),
    }


def with_proofs_of(config: ModelConfig, theta: np.ndarray, rollouts: list[Rollout]) -> list[Rollout]:
    """Proofs that the model itself makes of what somebody else wrote."""
    model, proven = Decoder(config, CPU, torch.from_numpy(theta)), []
    with torch.no_grad():
        for each in rollouts:
            hidden = model(torch.tensor([each.prompt + each.output[:-1]]))[0, len(each.prompt) - 1 :]
            proven.append(replace(each, proofs=b"".join(prove(hidden.bfloat16()))))
    return proven


def cheats(config: ModelConfig, theta: np.ndarray, count: int) -> Iterator[tuple[str, list[Rollout]]]:
    """What dishonest peers hand in."""
    true = Peer(config, theta)
    good = true.rollouts(count)
    small = ModelConfig(**{**vars(config), "layers": config.layers - 1})
    kept = [
        place
        for place in Decoder(config, CPU, torch.from_numpy(theta)).layout
        if f"layers.{config.layers - 1}." not in place.name
    ]
    shorter = np.concatenate([theta[place.offset : place.offset + place.count] for place in kept])
    yield "other weights", Peer(config, parameters(config, seed=2)).rollouts(count)
    yield "weights rounded to int8", Peer(config, quantised(theta, 127)).rollouts(count)
    yield "weights rounded to int4", Peer(config, quantised(theta, 7)).rollouts(count)
    yield "another prompt", true.rollouts(count, prompt=lambda text: "Be brief. " + text)
    yield "truncated output", [_cut(each, len(each.output) // 2) for each in good]
    written = Peer(small, shorter).rollouts(count)
    yield "text of a smaller model, proofs of the right one", with_proofs_of(config, theta, written)
    yield "proofs of another rollout", _replayed(good)
    yield "sampling at temperature 0.5", with_proofs_of(config, theta, true.rollouts(count, temperature=0.5))
    yield "sampling with another key", true.rollouts(count, peer="12D3KooWother")
    yield "an older version's rollouts", true.rollouts(count, version=VERSION - 1)
    early = [_cut(each, len(each.output) // 3, end=True) for each in good]
    yield "early end token", with_proofs_of(config, theta, early)


def _cut(rollout: Rollout, length: int, end: bool = False) -> Rollout:
    length = max(1, length)
    output = rollout.output[: length - end] + (TOKENIZER.end,) * end
    return replace(rollout, output=output, made=(True,) * len(output), proofs=rollout.proofs[: 258 * -(-len(output) // 32)])


def _replayed(rollouts: list[Rollout]) -> list[Rollout]:
    by_size: dict[int, Rollout] = {}
    changed = []
    for each in rollouts:
        before = by_size.get(len(each.proofs))
        if before is not None:
            changed.append(replace(each, proofs=before.proofs))
        by_size[len(each.proofs)] = each
    return changed


def judge(config: ModelConfig, theta: np.ndarray, rollouts: list[Rollout], rl: RlConfig = RL) -> list[Judged]:
    """By a validator with the right weights."""
    model = Decoder(config, CPU, torch.from_numpy(theta))
    problems = tuple(sorted({each.problem for each in rollouts}))
    verifier = Verifier(model, Numbers(), TOKENIZER, rl)
    return verifier.verify(Assignment(RUN, VERSION, ME, problems, GROUP), rollouts)


def needed(share: float) -> int | None:
    """Rollouts until one is rejected with `CONFIDENCE`; None for never."""
    if share >= 1:
        return 1
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share)) if share > 0 else None


def family(name: str, count: int, cheat_count: int) -> Iterator[dict[str, Any]]:
    """A row for each honest variant and each cheat; after the honest ones, the proposed thresholds."""
    config = FAMILIES[name]
    theta = parameters(config)
    measured: list[Measured] = []
    for variant, peer in honest(config, theta).items():
        rollouts = peer.rollouts(count)
        began = time.process_time()
        judged = judge(config, theta, rollouts)
        verifying = time.process_time() - began
        measured += [each.measured for each in judged if each.measured is not None]
        yield {
            **_row(name, f"honest: {variant}", judged, judged),
            "mean": max(each.mantissa_mean for one in measured[-count:] for each in one.mismatches),
            "shortfall": max(one.shortfall for one in measured[-count:]),
            "verify_over_generate": verifying / peer.spent_s,
        }
    tolerances = proposed(measured).fields()
    yield {"family": name, "who": "proposed", "tolerances": tolerances}
    for variant, rollouts in cheats(config, theta, cheat_count):
        usual, tight = judge(config, theta, rollouts), judge(config, theta, rollouts, replace(RL, **tolerances))
        yield _row(name, variant, usual, tight)


def _row(name: str, who: str, usual: Sequence[Judged], tight: Sequence[Judged]) -> dict[str, Any]:
    shares = [sum(each.reason is not None for each in judged) / len(judged) for judged in (usual, tight)]
    reasons = Counter(each.reason.value for each in tight if each.reason is not None)
    return {
        "family": name,
        "who": who,
        "rollouts": len(usual),
        "rejected": shares[0],
        "rejected_proposed": shares[1],
        "needed": needed(shares[1]),
        "reasons": dict(reasons),
    }


def shown(row: dict[str, Any]) -> str:
    """A line for people."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in islice(row["reasons"].items(), 3))
    if "mean" in row:
        reasons += (
            f"mantissas {row['mean']:.3f}, shortfall {row['shortfall']:.3f}, verifying {row['verify_over_generate']:.2f}"
        )
    return (
        f"{row['family']:6} {row['who']:50} {row['rollouts']:5}  rejected {row['rejected']:7.1%} "
        f"{row['rejected_proposed']:7.1%}  needed {row['needed'] or '-':>4}  {reasons}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=1000, help="of each honest variant")
    parser.add_argument("--cheats", type=int, default=96, help="rollouts of each cheat")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.families:
        for row in family(name, arguments.rollouts, arguments.cheats):
            rows.append(row)
            if "tolerances" in row:
                fields = ", ".join(f"{field} = {value:.6g}" for field, value in row["tolerances"].items())
                print(f"{name:6} proposed for [rl]: {fields}", flush=True)
                continue
            print(shown(row), flush=True)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
