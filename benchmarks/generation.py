"""Tokens a second of the built-in generator, against recomputing everything: `python -m benchmarks.generation`.

A model of the demo's shape completes prompts of 32 bytes with 128 tokens each, at temperature 1, as many at a time as there
are slots.  `naive` computes the whole batch so far for each token, without a cache; `engine` is `trainer.generate.engine`;
`ragged` is the engine with four times as many requests as slots and completions of 1 to 255 tokens, so that slots are
refilled.  Rates are medians over the repeats, of tokens for a second and for a second of processor time: the latter changes
little when other work runs on the computer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from protocol.formats.model import ModelConfig
from protocol.run.manifest import demo_manifest
from trainer.config import TrainingConfig
from trainer.generate.engine import Engine
from trainer.generate.generator import Request, Slots, complete
from trainer.generate.sampling import choose
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder

PROMPT, TOKENS = 32, 128
BATCHES = (1, 8, 32)


def demo_model() -> ModelConfig:
    return TrainingConfig.from_sections(demo_manifest().manifest.trainer_sections()).model


def parameters(config: ModelConfig) -> torch.Tensor:
    values = np.empty(config.parameters, dtype=np.float32)
    initial_parameters(config, 7, values)
    return torch.from_numpy(values)


def requests(config: ModelConfig, count: int, lengths: Callable[[int], int]) -> list[Request]:
    random = np.random.default_rng(3)
    prompts = random.integers(0, config.vocab, (count, PROMPT)).tolist()
    return [Request(number, tuple(prompt), number, lengths(number), ()) for number, prompt in enumerate(prompts)]


@torch.no_grad()
def naive(config: ModelConfig, flat: torch.Tensor, device: torch.device, wanted: list[Request]) -> int:
    """Return the number of tokens made without a cache."""
    model = Decoder(config, device, flat.to(device))
    tokens = torch.tensor([request.prompt for request in wanted], device=device)
    keys = torch.tensor([request.key for request in wanted], device=device)
    for position in range(PROMPT, PROMPT + TOKENS):
        logits = F.linear(model(tokens)[:, -1].to(flat.dtype), model.output_weight)
        chosen = choose(logits, keys, torch.full_like(keys, position), 1.0)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
    return tokens[:, PROMPT:].cpu().numel()


def by_engine(engine: Engine, wanted: list[Request]) -> int:
    """Return the number of tokens made by the engine."""
    return sum(len(completion.output) for completion in complete(engine, wanted))


def rates(work: Callable[[], int], repeats: int) -> dict[str, float]:
    """Return tokens a second, and tokens a second of processor time."""
    work()
    by_clock, by_processor = [], []
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        made = work()
        by_clock.append(made / (time.perf_counter() - clock))
        by_processor.append(made / (time.process_time() - processor))
    return {
        "tokens_per_s": round(statistics.median(by_clock)),
        "tokens_per_processor_s": round(statistics.median(by_processor)),
    }


def measure(device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[dict[str, Any]]:
    config = demo_model()
    flat = parameters(config).to(dtype)
    for slots in BATCHES:
        engine = Engine(config, device, Slots(slots, PROMPT + 2 * TOKENS), dtype=dtype)
        engine.load(flat)
        even = requests(config, slots, lambda _: TOKENS)
        ragged = requests(config, 4 * slots, lambda number: 1 + 97 * number % (2 * TOKENS - 1))
        yield {
            "slots": slots,
            "naive": rates(lambda even=even: naive(config, flat, device, even), repeats),  # type: ignore[misc]
            "engine": rates(lambda engine=engine, even=even: by_engine(engine, even), repeats),  # type: ignore[misc]
            "ragged": rates(lambda engine=engine, ragged=ragged: by_engine(engine, ragged), repeats),  # type: ignore[misc]
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.generation", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of a CPU, for each operation; what torch takes if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    config = demo_model()
    if not arguments.json:
        print(f"{config.parameters / 1e6:.2f} M parameters, {arguments.dtype} on {arguments.device}")
        print("tokens for a second (for a second of processor time), and their ratio, engine over naive")
        print(f"{'slots':>5} {'naive':>16} {'engine':>16} {'ratio':>6} {'ragged':>16}")
    for row in measure(torch.device(arguments.device), getattr(torch, arguments.dtype), arguments.repeats):
        if arguments.json:
            print(json.dumps(row), flush=True)
            continue
        ways = [row[name] for name in ("naive", "engine", "ragged")]
        shown = [f"{way['tokens_per_s']:7} ({way['tokens_per_processor_s']:6})" for way in ways]
        ratio = ways[1]["tokens_per_processor_s"] / ways[0]["tokens_per_processor_s"]
        print(f"{row['slots']:5} {shown[0]:>16} {shown[1]:>16} {ratio:6.1f} {shown[2]:>16}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
