"""Solve rates: means of scores of a model's own answers, the same in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from protocol.formats.model import ModelConfig
from tests.trainer import small
from tests.trainer.weights.models import random_parameters
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem
from trainer.rl.rating import Rater, Sampling, digest_of

CONFIG = ModelConfig.from_mapping(small.MODEL | {"dim": 32, "layers": 1, "ffn": 48})
WEIGHTS = torch.from_numpy(random_parameters(CONFIG)).to(torch.bfloat16)
PROMPTS = ("a", "what is it?", "ccc", "dd", "a longer one than the others", "f")


@dataclass
class Halves(Environment):
    """Likes texts whose first byte is in the lower half.  asked: what it scored."""

    prompts: Sequence[str]

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    @property
    def size(self) -> int:
        return len(self.prompts)

    def problem(self, index: int) -> Problem:
        return Problem(index, self.prompts[index], None)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        worth = 0.5 if turns[0] and turns[0][0] < "@" else 1.0
        self.asked.append((problem.prompt, worth))
        return worth

    def solution(self, problem: Problem) -> tuple[str, ...]:
        raise ValueError("nobody asks")


def rates(prompts: Sequence[str], problems: Sequence[int], **sampling: int) -> tuple[dict[str, float], Halves]:
    environment = Halves(prompts)
    options = Sampling(**{"samples": 4, "max_tokens": 6, "slots": 5} | sampling)
    rater = Rater(CONFIG, WEIGHTS, ByteTokenizer(), options, torch.device("cpu"))
    return {prompts[problem]: rate for problem, rate in rater.rates(environment, problems)}, environment


def test_a_rate_depends_neither_on_other_tasks_nor_on_how_many_are_answered_at_a_time() -> None:
    found, _ = rates(PROMPTS, range(len(PROMPTS)))
    turned = PROMPTS[::-1]
    alone, _ = rates(turned, [4, 1], slots=3)
    assert alone == {turned[4]: found[turned[4]], turned[1]: found[turned[1]]}


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    assert digest_of(WEIGHTS) == digest_of(WEIGHTS.clone()) != digest_of(WEIGHTS.flip(0))
    tokenizer = ByteTokenizer()
    tokenizer.vocab = 257
    with pytest.raises(ValueError, match="257 tokens, more than the model's 256"):
        Rater(CONFIG, WEIGHTS, tokenizer, Sampling(), torch.device("cpu"))
