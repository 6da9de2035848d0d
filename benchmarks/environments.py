"""Speed of learning the built-in tasks from their own examples with a byte-level model, and its solve rate afterwards.

For each task a model of about 0.6 million parameters is trained on the task's examples, each problem once, and plays fresh
problems greedily: turns end with the end token, and replies come from the environment.  Reinforcement learning can begin
only from a solve rate between "never" and "always".  One thread; the last column is processor time.

    python -m benchmarks.environments [--tasks reverse,add] [--steps 150,300,600] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from kernels.losses import language_model_loss
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, example_tokens
from trainer.environments.registry import BUILT_IN, open_environment
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.optim import AdamW
from trainer.parameters import WholeParameters

MODEL = ModelConfig.from_mapping(
    {
        "vocab": 256,
        "dim": 128,
        "layers": 3,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 352,
        "rope_base": 10_000.0,
        "norm_eps": 1e-5,
        "tied": True,
    }
)
INNER = InnerConfig(
    lr=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0, z_loss=0.0, schedule="wsd",
    warmup_steps=20, cooldown=0.0, joiner_warmup_steps=0,
)  # fmt: skip
BATCH = 64
PLAYED = 200
MAX_TOKENS = 80
BYTES = ByteTokenizer()


def batch(environment: Environment, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples from `first` on: tokens (B, T), and a mask (B, T - 1) of the predictions that the model must make."""
    examples = [example_tokens(environment, first + number, BYTES) for number in range(BATCH)]
    length = max(len(example.prompt) + len(example.output) for example in examples)
    tokens, mask = np.zeros((BATCH, length), dtype=np.int64), np.zeros((BATCH, length), dtype=bool)
    for row, example in enumerate(examples):
        start, stop = len(example.prompt), len(example.prompt) + len(example.output)
        tokens[row, :stop] = [*example.prompt, *example.output]
        mask[row, start:stop] = example.made
    return torch.from_numpy(tokens), torch.from_numpy(mask[:, 1:])


def train(model: Decoder, optimiser: AdamW, environment: Environment, steps: range) -> None:
    for step in steps:
        tokens, mask = batch(environment, step * BATCH)
        loss = language_model_loss(model(tokens[:, :-1]), model.output_weight, tokens[:, 1:], mask=mask)
        loss.backward()
        optimiser.step(INNER.lr * min(1.0, (step + 1) / INNER.warmup_steps))


@torch.no_grad()
def solve_rate(model: Decoder, environment: Environment) -> float:
    """Return the share of the reward on the environment's last problems, from which no example was made."""
    problems = [environment.problem(environment.size - 1 - number) for number in range(PLAYED)]
    texts = [BYTES.encode(problem.prompt) for problem in problems]
    turns: list[list[str]] = [[] for _ in problems]
    written: list[list[int]] = [[] for _ in problems]
    playing = set(range(PLAYED))
    while playing:
        for row, token in zip(sorted(playing), next_tokens(model, [texts[row] for row in sorted(playing)]), strict=True):
            texts[row].append(token)
            written[row].append(token)
            if token == BYTES.end:
                turns[row].append(BYTES.decode(written[row][:-1]))
                written[row] = []
                reply = environment.reply(problems[row], turns[row])
                texts[row] += BYTES.encode(reply or "")
                if reply is None:
                    playing.discard(row)
            if len(texts[row]) >= MAX_TOKENS:
                playing.discard(row)
    return sum(environment.score(problem, said) for problem, said in zip(problems, turns, strict=True)) / PLAYED


def next_tokens(model: Decoder, texts: Sequence[Sequence[int]]) -> list[int]:
    """Return the most likely token after each text.  Texts are padded at their end, which causal attention does not see."""
    tokens = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    hidden = model(torch.from_numpy(tokens))
    last = hidden[torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])]
    return [int(token) for token in (last @ model.output_weight.T).argmax(dim=1)]


def learn(name: str, marks: Sequence[int]) -> tuple[list[float], float]:
    """Return the solve rates at these numbers of steps, and the processor seconds for all of it."""
    began = time.process_time()
    environment = open_environment(name)
    model = Decoder(MODEL, torch.device("cpu"))
    values = np.empty(MODEL.parameters, dtype=np.float32)
    initial_parameters(MODEL, 1, values)
    model.flat.copy_(torch.from_numpy(values))
    optimiser = AdamW(WholeParameters(model), INNER)
    rates, done = [], 0
    for mark in marks:
        train(model, optimiser, environment, range(done, mark))
        rates.append(solve_rate(model, environment))
        done = mark
    return rates, time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(BUILT_IN))
    parser.add_argument("--steps", default="150,300,600")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    marks = sorted(int(mark) for mark in arguments.steps.split(","))
    if not arguments.json:
        print(f"{MODEL.parameters:,} parameters, {BATCH} examples a step; solve rate on {PLAYED} fresh problems after steps")
        print(f"{'task':<12}" + "".join(f"{mark:>8}" for mark in marks) + f"{'seconds':>10}")
    for name in arguments.tasks.split(","):
        rates, seconds = learn(name, marks)
        if arguments.json:
            print(json.dumps({"task": name, "steps": marks, "solve_rate": rates, "seconds": round(seconds, 1)}), flush=True)
        else:
            print(f"{name:<12}" + "".join(f"{rate:>8.0%}" for rate in rates) + f"{seconds:>10.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
