"""Cost of verifying rollouts, against generating them: `python -m benchmarks.verifying [--slots 1 …] [--json]`.

A rollout peer and a validator are each the worker of a trainer process with the same weights, with one thread each: the
first makes a batch with proofs and writes it, and the second reads and judges it.  Outputs have the given lengths
(conversations that continue until the limit).  Generation has the fastest of the tried numbers of sequences at a time, or
`--slots`: with few sequences, decoding is bound by reading the weights.  Seconds are processor seconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generation import demo_model
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem
from trainer.models.llama.initial import initial_parameters
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutTasks, RolloutWorker

CPU = torch.device("cpu")
PROMPT = 32
COPIES = 8
SLOTS = (16, 32, 64)
TRIED_TOKENS = 24
"""Tokens of an output when numbers of sequences are compared."""
LENGTHS = (64, 256, 512)
PLACE = Path("batch")


def shaped(dim: int, layers: int) -> ModelConfig:
    """Return a llama of the usual proportions, with bytes for tokens."""
    return ModelConfig(
        vocab=256,
        dim=dim,
        layers=layers,
        heads=dim // 64,
        kv_heads=max(1, dim // 192),
        ffn=8 * dim // 3,
        rope_base=500_000.0,
        norm_eps=1e-5,
        tied=False,
    )


MODELS: dict[str, Callable[[], ModelConfig]] = {
    "demo": demo_model,
    "10M": lambda: shaped(384, 6),
    "50M": lambda: shaped(768, 8),
}


class Talk(Environment):
    """Environment with prompts of `PROMPT` bytes, and conversations without an end."""

    max_turns = 1 << 20

    @property
    def size(self) -> int:
        return 1 << 20

    def problem(self, index: int) -> Problem:
        return Problem(self._checked(index), f"talk about {index}".ljust(PROMPT), None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        text = "".join(turns)
        return sum(letter.isalpha() for letter in text) / max(1, len(text))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return ("talk",)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return ">"


def worker(config: ModelConfig, theta: np.ndarray, tokens: int, slots: int) -> RolloutWorker:
    """Return the worker of a trainer process that holds version 1."""
    made = RolloutWorker(RlConfig(max_tokens=tokens), config, RolloutTasks(Talk(), ByteTokenizer()), CPU, slots=slots)
    made.keep_version(1, theta)
    return made


def timed(config: ModelConfig, theta: np.ndarray, tokens: int, slots: int) -> dict[str, float]:
    """Generate a batch of `slots` rollouts, and verify it."""
    copies = min(COPIES, slots)
    assignment = Assignment(b"verifying", 1, "12D3KooWworker", tuple(range(slots // copies)), copies)
    with tempfile.TemporaryDirectory() as folder:
        path, generator, validator = Path(folder) / PLACE, *(worker(config, theta, tokens, slots) for _ in range(2))
        began = time.process_time()
        made = generator.generate(assignment, path)
        generated = time.process_time()
        judged = validator.verify(assignment, path)
        verified = time.process_time()
    assert all(each.reason is None for each in judged), "an honest rollout was rejected"
    generating, verifying = generated - began, verified - generated
    return {
        "tokens": made,
        "generate_us_per_token": 1e6 * generating / made,
        "verify_us_per_token": 1e6 * verifying / made,
        "verify_over_generate": verifying / generating,
    }


def measure(name: str, lengths: Sequence[int], given: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each length and each number of sequences at a time: the `given` numbers, or the fastest one."""
    config = MODELS[name]()
    theta = np.empty(config.parameters, np.float32)
    initial_parameters(config, 7, theta)
    timed(config, theta, TRIED_TOKENS, COPIES)
    if not given:
        tried = {slots: timed(config, theta, TRIED_TOKENS, slots)["generate_us_per_token"] for slots in SLOTS}
        given = [min(tried, key=lambda each: tried[each])]
    for slots, length in product(given, lengths):
        row = timed(config, theta, length, slots)
        yield {"model": name, "parameters": config.parameters, "slots": slots, "output": length, **row}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verifying", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument(
        "--slots", type=int, nargs="+", default=[], help="sequences at a time, instead of the fastest number"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.models:
        for row in measure(name, arguments.lengths, arguments.slots):
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{row['model']:5} {row['parameters'] / 1e6:6.1f} M  {row['slots']:3} at a time  {row['output']:4} tokens: "
                f"generate {row['generate_us_per_token']:8.1f} us a token, verify {row['verify_us_per_token']:8.1f}, "
                f"ratio {row['verify_over_generate']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
