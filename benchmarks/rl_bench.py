"""Reinforcement learning of a tiny byte-level model in one process, for `benchmarks.rl_ablation` to compare.

The learner, its filters, packing and loss are real, and so is the generator, with the environment's replies.  Completions
are accepted without a proof.  A version's rollouts may come from parameters that are some versions old, which the learner
knows.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.diloco_bench import layouts_for
from kernels.losses import language_model_loss
from protocol.formats.model import ModelConfig
from protocol.formats.rl import PolicyLossName, RlConfig
from trainer.data.tokens import ByteTokenizer
from trainer.environments.environment import Environment, Problem, example_tokens, read_turns, reply_tokens
from trainer.environments.records import SolveRates
from trainer.generate.engine import Engine
from trainer.generate.generator import Completion, Request, Slots, complete
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.optim import AdamW
from trainer.parameters import WholeParameters
from trainer.rl.groups import Group, grouped, scored
from trainer.rl.learner import Learner, Learnt, LearnTask
from trainer.rl.policy import adamw_config
from trainer.rl.rollout import Rollout

CPU = torch.device("cpu")
BYTES = ByteTokenizer()
LAST = 5
"""Number of the last versions, which are all measured, and whose mean reward counts."""


class Reverse(Environment):
    """A task that asks for a word backwards; the reward is 0 or 1."""

    size = 1 << 20

    def __init__(self, letters: int = 3, alphabet: str = "abcdefgh") -> None:
        self._letters, self._alphabet = letters, alphabet

    def problem(self, index: int) -> Problem:
        word = "".join(random.Random(index).choices(self._alphabet, k=self._letters))
        return Problem(index, word + "=", word[::-1])

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return float(turns[-1] == problem.answer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return (problem.answer,)


class Letters(Environment):
    """A task that asks for as many of one letter as possible; the reward is its share of the output."""

    size = 1 << 20

    def __init__(self, letter: str = "a") -> None:
        self._letter = letter

    def problem(self, index: int) -> Problem:
        return Problem(index, f"{index % 10}:", "")

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return turns[-1].count(self._letter) / max(1, len(turns[-1]))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return (self._letter,)


class Count(Environment):
    """A task that asks for the next numbers after one of three digits; the reward is the share of them before an error."""

    size = 1 << 20

    def __init__(self, numbers: int) -> None:
        self._numbers = numbers

    def problem(self, index: int) -> Problem:
        first = random.Random(index).randrange(100, 999 - self._numbers)
        numbers = (str(first + 1 + number) for number in range(self._numbers))
        return Problem(index, f"{first}:", ",".join(numbers))

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        said, right = turns[-1].split(","), problem.answer.split(",")
        wrong = (place for place, number in enumerate(right) if place >= len(said) or said[place] != number)
        return next(wrong, len(right)) / len(right)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return (problem.answer,)


def decoder(model: ModelConfig, seed: int) -> Decoder:
    made = Decoder(model, CPU)
    values = np.empty(model.parameters, np.float32)
    initial_parameters(model, seed, values)
    made.flat.copy_(torch.from_numpy(values))
    return made


def sample(
    model: Decoder,
    environment: Environment,
    problems: Sequence[Problem],
    most: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> list[Completion]:
    """Return a conversation about each problem, of at most `most` tokens with all end tokens and replies."""

    def reply(request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> list[int] | None:
        problem = problems[request.id]
        return reply_tokens(environment, problem, read_turns(environment, problem, output, made, BYTES), BYTES)

    prompts = [tuple(BYTES.prompt(problem.prompt)) for problem in problems]
    engine = Engine(model.config, CPU, Slots(len(prompts), max(map(len, prompts)) + most), reply=reply)
    engine.load(model.flat)
    engine.temperature = temperature
    keys = torch.randint(-(1 << 62), 1 << 62, (len(prompts),), generator=generator).tolist()
    requests = [Request(number, prompt, keys[number], most, BYTES.ends) for number, prompt in enumerate(prompts)]
    ended = {each.id: each for each in complete(engine, requests)}
    return [ended[number] for number in range(len(prompts))]


def score_of(environment: Environment, problem: Problem, completion: Completion) -> float:
    """Return the score of a conversation."""
    return environment.score(problem, read_turns(environment, problem, completion.output, completion.made, BYTES))


@dataclass(frozen=True)
class Settings:
    """Settings of one table.  Runs with other settings are not comparable."""

    model: ModelConfig
    rl: RlConfig
    versions: int
    warm_reward: float
    """Mean reward of the warm start: supervised steps on examples end when it is reached."""
    warm_rows: int = 32
    warm_lr: float = 3e-3
    warm_steps: int = 6000
    """Supervised steps of the warm start at most."""
    is_hard: bool = False
    """True if the warm start may end below `warm_reward`."""
    warm_look: int = 10
    """Supervised steps between two looks at the reward."""
    pool: int = 512
    """Problems that are trained on."""
    judged: int = 256
    """Other problems, whose mean reward is measured."""
    prompts: int = 16
    """Problems of a version."""
    every: int = 1
    """Versions between two measured rewards; the last five are all measured."""


@dataclass(frozen=True)
class Variant:
    """A variant of training.  staleness: the age of the rollouts' parameters, in versions.  eps: as in a run's `[rl]`."""

    loss: PolicyLossName = "clip"
    two_sided: bool = True
    filters: bool = True
    staleness: int = 0
    eps: float = RlConfig().eps


@dataclass
class Trial:
    """One run: its learner and its curve.

    rewards: mean rewards of problems that nobody trains on: of the warm start, and of the measured versions.
    """

    task: Environment
    settings: Settings
    variant: Variant
    seed: int
    rewards: list[float] = field(default_factory=list)
    learnt: list[Learnt] = field(default_factory=list)

    def __post_init__(self) -> None:
        rl = self.settings.rl
        delta = rl.delta if self.variant.two_sided else math.inf
        changes = {"loss": self.variant.loss, "eps": self.variant.eps, "delta": delta}
        changes["drop_zero_advantage"] = self.variant.filters
        self.config = rl.model_copy(update=changes)
        self.generator = torch.Generator().manual_seed(self.seed)
        layouts = layouts_for(self.settings.model.parameters)
        self.learner = Learner.alone(self.config, Decoder(self.settings.model, CPU), layouts)

    def run(self, warm: Tensor) -> float:
        """Learn from the warm parameters on; return the reward at the end."""
        model = self.learner.model
        model.flat.copy_(warm)
        problems = self._problems()
        pick = random.Random(self.seed)
        past: deque[Tensor] = deque([warm], maxlen=self.variant.staleness + 1)
        self.rewards.append(judge(self.learner.model, self.task, self.settings))
        for version in range(self.settings.versions):
            chosen = pick.sample(problems, min(self.settings.prompts, len(problems)))
            age = len(past) - 1
            groups = [replace(group, age=age) for group in self.groups(model.over(past[0]), chosen)]
            behaviours = {age: past[0].bfloat16()}
            task = LearnTask(order=version, first_step=self.learner.optimiser.steps, behaviours=behaviours)
            self.learnt.append(self.learner.learn(task, groups))
            past.append(model.flat.clone())
            if version % self.settings.every == self.settings.every - 1 or version >= self.settings.versions - LAST:
                self.rewards.append(judge(self.learner.model, self.task, self.settings))
        return self.final

    @property
    def final(self) -> float:
        """Mean of the last five rewards."""
        return sum(self.rewards[-LAST:]) / len(self.rewards[-LAST:])

    def groups(self, model: Decoder, problems: Sequence[int]) -> list[Group]:
        """Return completions of each problem, with their rewards."""
        found = [self.task.problem(index) for index in problems for _ in range(self.config.group_size)]
        temperature = self.config.temperature
        ended = sample(model, self.task, found, self.config.max_tokens, self.generator, temperature)
        rollouts = []
        for number, (problem, each) in enumerate(zip(found, ended, strict=True)):
            prompt, copy = tuple(BYTES.prompt(problem.prompt)), number % self.config.group_size
            rollout = Rollout(problem.index, copy, prompt, each.output, each.made, b"")
            rollouts.append(scored(rollout, score_of(self.task, problem, each)))
        return grouped(rollouts)

    def _problems(self) -> list[int]:
        """Return the training problems: all of the pool, or those of them that are neither too hard nor too easy."""
        pool = list(range(self.settings.pool))
        if not self.variant.filters:
            return pool
        bounds = SolveRates(self.config.min_solve_rate, self.config.max_solve_rate)
        kept = [group.problem for group in self.groups(self.learner.model, pool) if bounds.have(group.solve_rate)]
        if not kept:
            raise ValueError("the model solves no problem of the pool neither too rarely nor too often; take another task")
        return kept


def judge(model: Decoder, task: Environment, settings: Settings) -> float:
    """Return the mean reward of problems that nobody trains on."""
    first = task.size - settings.judged
    problems = [task.problem(first + number) for number in range(settings.judged)]
    generator = torch.Generator().manual_seed(0)
    ended = sample(model, task, problems, settings.rl.max_tokens, generator)
    scores = [score_of(task, problem, each) for problem, each in zip(problems, ended, strict=True)]
    return sum(scores) / len(scores)


def warm_start(task: Environment, settings: Settings, seed: int) -> Tensor:
    """Return the parameters after supervised steps on examples outside the pool, until `warm_reward` is reached.

    Replies in the examples are not learned.
    """
    model = decoder(settings.model, seed)
    optimiser = AdamW(WholeParameters(model), adamw_config(RlConfig(clip_norm=1.0)))
    for step in range(settings.warm_steps):
        if step % settings.warm_look == 0 and judge(model, task, settings) >= settings.warm_reward:
            return model.flat.clone()
        first = settings.pool + step * settings.warm_rows
        rows = [example_tokens(task, first + number, BYTES) for number in range(settings.warm_rows)]
        length = max(len(row.prompt) + len(row.output) for row in rows)
        tokens, mask = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length, dtype=torch.bool)
        for number, row in enumerate(rows):
            start, stop = len(row.prompt), len(row.prompt) + len(row.output)
            tokens[number, :stop] = torch.tensor([*row.prompt, *row.output])
            mask[number, start:stop] = torch.tensor(row.made)
        loss = language_model_loss(model(tokens[:, :-1]), model.output_weight, tokens[:, 1:], mask=mask[:, 1:])
        loss.backward()
        optimiser.step(settings.warm_lr)
    if settings.is_hard:
        return model.flat.clone()
    raise ValueError(
        f"no mean reward of {settings.warm_reward} after {settings.warm_steps} supervised steps; take an easier task"
    )
