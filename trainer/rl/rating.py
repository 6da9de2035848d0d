"""Measurement of solve rates: the built-in generator makes several answers to each task, which are scored as in a run.

The rates serve the offline filter (`trainer.environments.records`). They are measured before a run, on one computer, without
proofs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.formats.model import ModelConfig
from trainer.config import SLOTS
from trainer.data.tokens import Tokenizer
from trainer.device import default_dtype
from trainer.environments.environment import Environment, read_turns, reply_tokens
from trainer.generate.engine import Engine
from trainer.generate.generator import Request, Slots, complete
from trainer.generate.sampling import stream_key
from trainer.weights.folder import WeightsFolder

RATER = "peer tasks rate"
"""Name used instead of a generating peer's, because a measurement belongs to no run."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the sampling.

    samples: answers to each task. max_tokens: limit for an answer. slots: answers made at once.
    """

    samples: int = 8
    max_tokens: int = 1024
    temperature: float = 1.0
    slots: int = SLOTS


@dataclass(frozen=True)
class Answer:
    """Answer of the model.  copy: number among the problem's answers. turns: the model's turns. score: 0 to 1."""

    problem: int
    copy: int
    turns: tuple[str, ...]
    score: float


OnAnswer = Callable[[Answer], None]
"""Function called with an answer once it is scored."""


def weights_in(folder: WeightsFolder) -> Tensor:
    """Return the folder's weights, bf16 (n), as in rollouts.  Raises `FolderError`."""
    weights, at = torch.empty(folder.config.parameters, dtype=torch.bfloat16), 0
    for block in folder.values():
        weights[at : at + len(block)] = torch.from_numpy(block)
        at += len(block)
    return weights


def digest_of(weights: Tensor) -> str:
    """Return the digest that names the weights, bf16 (n) on the CPU: hexadecimal BLAKE2b-128."""
    return hashlib.blake2b(weights.view(torch.uint8).numpy().data, digest_size=16).hexdigest()


class Rater:
    """Rater of tasks with one model on one device."""

    def __init__(
        self, config: ModelConfig, weights: Tensor, tokenizer: Tokenizer, sampling: Sampling, device: torch.device
    ) -> None:
        """Make a rater. weights: bf16 (n). Raises ValueError for a tokenizer with more tokens than the model."""
        if tokenizer.vocab > config.vocab:
            raise ValueError(f"the tokenizer has {tokenizer.vocab} tokens, more than the model's {config.vocab}")
        self._config, self._weights, self._tokenizer = config, weights, tokenizer
        self._sampling, self._device = sampling, device

    def rates(
        self, environment: Environment, problems: Sequence[int], on_answer: OnAnswer = lambda answer: None
    ) -> Iterator[tuple[int, float]]:
        """Yield each problem (at least one) with the mean score of its answers, 0 to 1, in the order of completion.

        on_answer: called with each answer.  Raises SandboxUnavailable.
        """
        scores = dict[int, list[float]]()
        for answer in self.answers(environment, problems):
            on_answer(answer)
            found = scores.setdefault(answer.problem, [])
            found.append(answer.score)
            if len(found) == self._sampling.samples:
                yield answer.problem, math.fsum(scores.pop(answer.problem)) / len(found)

    def answers(self, environment: Environment, problems: Sequence[int]) -> Iterator[Answer]:
        """Yield all answers to the problems (at least one), in the order in which they are completed.

        The answers depend only on the weights, the prompt and the sampling; other problems affect only the rounding of sums.
        Raises SandboxUnavailable.
        """
        samples = self._sampling.samples
        prompts = [tuple(self._tokenizer.prompt(environment.problem(problem).prompt)) for problem in problems]

        def reply(request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> Sequence[int] | None:
            problem = environment.problem(problems[request.id // samples])
            turns = read_turns(environment, problem, output, made, self._tokenizer)
            return reply_tokens(environment, problem, turns, self._tokenizer)

        sampling, dtype = self._sampling, default_dtype(self._device)
        engine = Engine(
            self._config,
            self._device,
            Slots(sampling.slots, max(map(len, prompts)) + sampling.max_tokens),
            dtype=dtype,
            reply=reply if environment.max_turns > 1 else None,
        )
        engine.temperature = sampling.temperature
        engine.load(self._weights.to(self._device, dtype))
        for completion in complete(engine, self._requests(prompts)):
            place, copy = divmod(completion.id, samples)
            problem = environment.problem(problems[place])
            turns = tuple(read_turns(environment, problem, completion.output, completion.made, self._tokenizer))
            yield Answer(problem.index, copy, turns, environment.score(problem, turns))

    def _requests(self, prompts: Sequence[tuple[int, ...]]) -> Iterator[Request]:
        samples, most, ends = self._sampling.samples, self._sampling.max_tokens, self._tokenizer.ends
        for number, prompt in enumerate(prompts):
            named = hashlib.blake2b(repr(prompt).encode(), digest_size=32).digest()
            for copy in range(samples):
                yield Request(number * samples + copy, prompt, stream_key(named, 0, RATER, 0, 0, copy), most, ends)
