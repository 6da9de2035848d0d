"""A rollout peer without any cleverness: one token after another, everything computed anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernels.toploc import prove
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.formats.rl import RlConfig
from tests.trainer.generate.naive import write
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem, read_turns, reply_tokens
from trainer.generate.generator import Request
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment

TOKENIZER = ByteTokenizer()
CPU = torch.device("cpu")
SHAPE = {"vocab": 256, "dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 96, "rope_base": 10_000.0, "norm_eps": 1e-5}
FAMILIES = {
    "llama": ModelConfig(tied=False, **SHAPE),  # type: ignore[arg-type]
    "qwen2": ModelConfig(tied=True, qkv_bias=True, **SHAPE),  # type: ignore[arg-type]
    "qwen3": ModelConfig(tied=False, qk_norm=True, head_dim=32, **SHAPE),  # type: ignore[arg-type]
}
SHARPNESS = 8.0
"""Matrices of a model built from a seed are multiplied with this, so that it has opinions."""


class Letters(Environment):
    """One turn: write as many letters a as you can.  Two turns, where `again` is set."""

    def __init__(self, again: str | None = None) -> None:
        self.again = again
        self.max_turns = 1 if again is None else 2

    @property
    def size(self) -> int:
        return 1000

    def problem(self, index: int) -> Problem:
        return Problem(self._checked(index), f"letters {index}: ", None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        text = "".join(turns)
        return text.count("a") / len(text) if text else 0.0

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return ("aaaa",)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return self.again if len(turns) == 1 else None


def parameters(config: ModelConfig, seed: int = 3) -> np.ndarray:
    theta = np.empty(config.parameters, np.float32)
    initial_parameters(config, seed, theta)
    theta[np.abs(theta) != 1.0] *= SHARPNESS
    return torch.from_numpy(theta).bfloat16().float().numpy()  # what a version of the weights is


def fond_of_ending(config: ModelConfig, theta: np.ndarray, usual: int) -> np.ndarray:
    """The parameters of a model that ends its turn where the given one writes the token `usual`."""
    (place,) = (each for each in parameter_layout(config) if each.name == "lm_head.weight")
    changed = theta.copy()
    rows = changed[place.offset : place.offset + place.count].reshape(place.shape)
    rows[[TOKENIZER.end, usual]] = rows[[usual, TOKENIZER.end]]
    return changed


def decoder(config: ModelConfig, theta: np.ndarray) -> Decoder:
    return Decoder(config, CPU, torch.from_numpy(theta))


@torch.no_grad()
def generate(
    model: Decoder, environment: Environment, assignment: Assignment, rl: RlConfig, *, writer: Decoder | None = None
) -> list[Rollout]:
    """All rollouts of an assignment.  writer: another model that chooses the tokens, while `model` proves."""
    rollouts = []
    for index in assignment.problems:
        problem = environment.problem(index)
        prompt = tuple(TOKENIZER.encode(problem.prompt))

        def reply(request: Request, output: Sequence[int], made: Sequence[bool], problem: Problem = problem) -> Any:
            return reply_tokens(environment, problem, read_turns(environment, problem, output, made, TOKENIZER), TOKENIZER)

        for copy in range(assignment.copies):
            key = assignment.key(index, copy)
            by = writer or model
            written = write(
                by.config, by.flat, Request(0, prompt, key, rl.max_tokens, TOKENIZER.ends), rl.temperature, reply
            )
            hidden = model(torch.tensor([[*prompt, *written.output[:-1]]]))[0, len(prompt) - 1 :]
            proofs = b"".join(prove(hidden.bfloat16(), rl.top_k, rl.chunk_tokens))
            rollouts.append(Rollout(index, copy, prompt, written.output, written.made, proofs))
    return rollouts
