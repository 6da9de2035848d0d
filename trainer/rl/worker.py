"""Rollout work of a trainer process in an RL run: keeping versions of the weights; making, judging, learning from rollouts.

Batches of rollouts are files that the peer process passes on. The peer process decides which batches are trusted, and which
trainer learns from which batch. A batch holds its rollouts in the order of the assignment: by problem, then by copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.toploc import prove_all
from protocol.formats.model import ModelConfig
from protocol.formats.results import RatedAnswer
from protocol.formats.rl import Precision, RlConfig
from trainer.config import SLOTS, SPARE_VERSIONS, TrainingConfig
from trainer.data.tokens import Tokenizer
from trainer.device import default_dtype, is_gpu
from trainer.environments.environment import Environment, ReplyUnavailable, read_turns, reply_tokens
from trainer.environments.records import SolveRates
from trainer.environments.task_file import ExtendedEnvironment, TaskFile
from trainer.generate.choice import GeneratorName, choose_generator
from trainer.generate.engine import Engine
from trainer.generate.generator import Completion, Generator, Request, Slots, complete
from trainer.models.llama.model import Decoder, FrozenBase
from trainer.parameters import load
from trainer.reading import environment_of, tokenizer_of
from trainer.rl.groups import (
    Group,
    Scored,
    TargetedEnvironment,
    best_and_typical,
    grouped,
    most_prompt_bytes,
    prompt_flaw,
    scored,
)
from trainer.rl.learner import AfterStep, Learner, LearnTask
from trainer.rl.policy import check_lengths
from trainer.rl.rollout import MAX_BYTES, Rollout
from trainer.rl.verification import Assignment, FormChecker, Judged, RejectionReason, Verifier
from trainer.samples import MOST_CHARACTERS
from trainer.weights.base import load_base
from trainer.worker import Done, Task

# ------------------------------------------------------------------------------------------------------------------------
# Encoding of a batch: the rollouts that a peer submits together, in sequence.
#
# head     number of rollouts (4 bytes, unsigned, big-endian)
# each     its size in bytes (4), then `Rollout.encode`


MAX_ROLLOUTS = 1 << 16
_LENGTH = 4


def encode_batch(rollouts: Sequence[Rollout]) -> bytes:
    """Return the bytes of these rollouts, at most `MAX_ROLLOUTS`."""
    assert 0 < len(rollouts) <= MAX_ROLLOUTS
    encoded = [rollout.encode() for rollout in rollouts]
    return len(encoded).to_bytes(_LENGTH, "big") + b"".join(len(each).to_bytes(_LENGTH, "big") + each for each in encoded)


def decode_batch(data: bytes) -> list[Rollout]:
    """Return the rollouts in `data`, at least one. Raises ValueError for bytes that `encode_batch` cannot produce."""
    count = _number(data, 0)
    if not 0 < count <= MAX_ROLLOUTS:
        raise ValueError(f"a batch has 1 to {MAX_ROLLOUTS} rollouts, not {count}")
    rollouts: list[Rollout] = []
    at = _LENGTH
    for _ in range(count):
        size = _number(data, at)
        at += _LENGTH
        if size > MAX_BYTES or at + size > len(data):
            raise ValueError(f"rollout {len(rollouts)} of a batch has {size} bytes, more than the batch has left")
        rollouts.append(Rollout.decode(data[at : at + size]))
        at += size
    if at != len(data):
        raise ValueError(f"a batch has {len(data) - at} bytes after its last rollout")
    return rollouts


def _number(data: bytes, at: int) -> int:
    if at + _LENGTH > len(data):
        raise ValueError("a batch ends within its rollouts")
    return int.from_bytes(data[at : at + _LENGTH], "big")


# ------------------------------------------------------------------------------------------------------------------------


F32 = npt.NDArray[np.float32]

OnProgress = Callable[[int, int], None]
"""Function called with the number of rollouts done and their total; may raise an exception to stop the work."""
Between = Callable[[], None]
"""Function called between the steps of generating and verifying; may wait, or raise an exception to stop the work."""
PROBLEMS_AT_ONCE = 1024

Tried = tuple[int, int, int, int, int, int]
"""Results on a problem: the problem, the numbers of rollouts, of rollouts that solved it, of rollouts scored twice, and of
rollouts that got the same score both times, and the index of their batch."""


@dataclass(frozen=True)
class RolloutTasks:
    """Environment and tokenizer of rollouts.  seed: used to draw the target lengths in prompts."""

    environment: Environment
    tokenizer: Tokenizer
    seed: int = 0


class RolloutWorker:
    """Rollout worker of one run on one device.

    versions: bf16 parameters (n) by version number, for the newest `max_async` + `SPARE_VERSIONS`; in a run with an adapter,
    its factors.  They wait in the computer's memory: on the device is only what a generator or a verification uses.

    Factors are kept in bf16 too, though fp32 would take little memory: a GPU's products and vLLM take them in bf16, so a CPU
    that computed with fp32 factors would have other weights, and would use up some of its proofs' tolerance.
    """

    def __init__(
        self,
        config: RlConfig,
        model: ModelConfig,
        tasks: RolloutTasks,
        device: torch.device,
        slots: int = SLOTS,
        generator: GeneratorName = GeneratorName.BUILTIN,
        base: FrozenBase | None = None,
    ) -> None:
        """Make a worker.

        slots: number of sequences generated at a time.  generator: name of the generator to use.  base: the frozen model of
        a run with an adapter, in the device's default precision.
        """
        self._slots, self._wanted = slots, generator
        self.config, self._model, self._tokenizer, self._device = config, model, tasks.tokenizer, device
        self._sets = ExtendedEnvironment(tasks.environment, SolveRates(config.min_solve_rate, config.max_solve_rate))
        self._environment = TargetedEnvironment(self._sets, config.length_targets, tasks.seed)
        self._forms = FormChecker(model, self._environment, tasks.tokenizer, config)
        self.versions: dict[int, Tensor] = {}
        self._engine: tuple[int, Generator] | None = None
        """(Maximum tokens of a sequence, generator)."""
        self._loaded: int | None = None
        self._problems: list[int] = []
        """Problems of the current batch's requests, by request number."""
        self._dtype, self._base = default_dtype(device), base

    @classmethod
    def of(
        cls,
        config: TrainingConfig,
        device: torch.device,
        tokenizer: Tokenizer | None = None,
        generator: GeneratorName = GeneratorName.BUILTIN,
        base: FrozenBase | None = None,
    ) -> Self:
        """Make the worker of a run.

        tokenizer: the run's tokenizer, if it is already loaded.  base: the frozen model that the trainer of this process
        uses on the device; another one is loaded only if its precision differs.  Raises the errors of `reading` and
        `load_base`.
        """
        assert config.rl is not None
        tasks = RolloutTasks(environment_of(config), tokenizer or tokenizer_of(config), config.seed)
        dtype, slots = default_dtype(device), SLOTS // 2 if config.spares_memory else SLOTS
        if config.adapter is not None and (base is None or base.dtype != dtype):
            base = load_base(config, device, dtype)
        if config.adapter is not None and config.base_format != "bf16" and generator is not GeneratorName.BUILTIN:
            if generator is GeneratorName.VLLM:
                raise ValueError(f"vLLM does not have this run's {config.base_format} weights; set generator = builtin")
            generator = GeneratorName.BUILTIN
        return cls(config.rl, config.model, tasks, device, slots, generator, base)

    def use_tasks(self, files: Sequence[TaskFile]) -> dict[int, str]:
        """Use the problems of these sets only, besides the environment's own, as `ExtendedEnvironment.use` does."""
        room = (self.config.row_tokens, self.config.max_tokens, self.config.length_targets)
        return self._sets.use(files, most_prompt_bytes(*room), lambda prompt: prompt_flaw(prompt, self._tokenizer, *room))

    def keep_version(self, version: int, theta: F32) -> None:
        """Copy `theta` (n) as the weights of this version; forget versions that are no longer needed.

        Later versions belong to an abandoned branch. If they were kept, this version would be evicted as the oldest.
        """
        weights = torch.empty(len(theta), dtype=torch.bfloat16)
        load(theta, weights)
        self.versions = {kept: its for kept, its in self.versions.items() if kept < version} | {version: weights}
        if self._loaded not in self.versions or self._loaded == version:
            self._loaded = None
        for old in sorted(self.versions)[: -(self.config.max_async + SPARE_VERSIONS)]:
            del self.versions[old]

    def generate(
        self,
        assignment: Assignment,
        path: Path,
        on_progress: OnProgress = lambda done, total: None,
        between: Between = lambda: None,
    ) -> int:
        """Make the rollouts of an assignment and write the batch to `path`; return the number of tokens that the model made.

        Raises ValueError if the version is not kept.
        """
        weights, requests = self._weights(assignment.version), list(self._requests(assignment))
        self._problems = [problem for problem, _ in _places(assignment)]
        length = max(len(request.prompt) for request in requests) + self.config.max_tokens
        engine = self._loaded_engine(length, assignment.version, weights)
        done: dict[int, Completion] = {}
        try:
            for completion in complete(engine, requests, between):
                done[completion.id] = completion
                on_progress(len(done), len(requests))
        finally:
            if len(done) < len(requests):
                self.close()  # drops the unfinished sequences in its slots
        rollouts = [_rollout(assignment, request, done[request.id]) for request in requests]
        path.write_bytes(encode_batch(rollouts))
        return sum(sum(rollout.made) for rollout in rollouts)

    def verify(self, assignment: Assignment, path: Path, between: Between = lambda: None) -> list[Judged]:
        """Return a verdict for each assigned rollout, in order, for any bytes in the batch file `path`.

        Raises ValueError if the version is not kept.
        """
        weights = self._weights(assignment.version).to(self._device, self._dtype)
        model = Decoder(self._model, self._device, weights, self._base)
        places = list(_places(assignment))
        try:
            rollouts = decode_batch(path.read_bytes())
        except ValueError as error:
            return [Judged(RejectionReason.MALFORMED, str(error))] * len(places)
        if [(rollout.problem, rollout.copy) for rollout in rollouts] != places:
            return [Judged(RejectionReason.WRONG_PROMPT, "the batch does not have the assigned rollouts")] * len(places)
        verifier = Verifier(model, self._environment, self._tokenizer, self.config, self.precision)
        return verifier.verify(assignment, rollouts, between)

    def learn(
        self,
        task: Task,
        learner: Learner,
        theta: F32,
        out: memoryview,
        after_step: AfterStep,
        tell: Callable[[list[Tried]], None] = lambda tried: None,
    ) -> Done:
        """Learn from the batches of a round, and encode the difference into `out`.

        tell: called with the results on problems from sets of tasks, in groups.  If all rewards of each group are equal,
        nothing is learned; the difference is then all zeros, with a weight of one token.
        """
        ages = [None if version is None else task.round - version for version in task.versions]
        groups = [
            replace(group, age=ages[group.batch])
            for group in self.groups([Path(task.rollouts_in) / name for name in task.rollouts])
        ]
        of_sets = [group for group in groups if group.members[0].rollout.problem >= self._sets.size]
        tried = [self._tried(group, task.round) for group in of_sets]
        for start in range(0, len(tried), PROBLEMS_AT_ONCE):
            tell(tried[start : start + PROBLEMS_AT_ONCE])
        reference = Path(task.reference) if task.reference else None
        behaviours = {task.round - version: weights for version, weights in self.versions.items() if version < task.round}
        learn = LearnTask(task.round, task.first_step, reference, behaviours, task.rate_factor)
        learnt = learner.compute(learn, groups, theta, out, after_step)
        kl = learnt.kl if self.config.kl_weight and learnt.steps else None
        tokens, steps = max(1, learnt.tokens), max(1, learnt.steps)
        answers, told = tuple(self.answers(groups)), sum(group.is_informative for group in groups)
        return Done(
            tokens,
            steps,
            learnt.loss,
            learnt.norm,
            learnt.reward,
            kl,
            answers=answers,
            informative=told,
            policy=learnt.figures,
        )

    def groups(self, paths: Sequence[Path]) -> list[Group]:
        """Return the groups in these batches, with rewards that are computed here.

        A batch may have been accepted on a validator's word alone, so the form of each batch is checked again. A malformed
        batch is skipped, with a line in the log.
        """
        groups: list[Group] = []
        for place, path in enumerate(paths):
            try:
                rollouts = decode_batch(path.read_bytes())
                check_lengths(rollouts, self.config.row_tokens)
                groups += [replace(group, batch=place) for group in grouped(map(self._scored, rollouts))]
            except Exception as error:  # noqa: BLE001 - strangers' bytes, and environments that fail
                print(f"the batch {path.name} is left out: {error}", file=sys.stderr)
        return [replace(group, problem=number) for number, group in zip(count(), groups, strict=False)]

    def answers(self, groups: Sequence[Group]) -> list[RatedAnswer]:
        """Return the best answer in these groups and a typical one, as texts; none if there are no groups."""
        found = best_and_typical(groups)
        if found is None:
            return []
        answers = []
        for member in found:
            try:
                problem, turns = self._forms.read(member.rollout)
            except ReplyUnavailable as error:  # a program that gave the same reply before
                print(f"an answer is not shown: {error}", file=sys.stderr)
                continue
            try:
                expected = self._environment.expected(problem)
            except Exception as error:  # noqa: BLE001 - a failing environment must not stop learning
                print(f"no right answer to problem {problem.index} is known: {error}", file=sys.stderr)
                expected = ""
            texts = (text[:MOST_CHARACTERS] for text in (problem.prompt, "\n".join(turns), expected))
            answers.append(RatedAnswer(member.reward, *texts))
        return answers

    # -- parts --------------------------------------------------------------------------------------------------------

    def _tried(self, group: Group, round: int) -> Tried:
        """Count the results of a group; score one of its answers twice, a different one each round.

        Scores that are exact are not computed again.  An environment that fails proves nothing about a text.
        """
        right = sum(member.solved > 0.5 for member in group.members)
        member, twice, same = group.members[round % len(group.members)], False, False
        if not self._environment.is_exact(self._environment.problem(member.rollout.problem)):
            with suppress(Exception):
                same = self._environment.score(*self._forms.read(member.rollout)) == member.solved
                twice = True
        return member.rollout.problem, len(group.members), right, int(twice), int(same), group.batch

    @property
    def precision(self) -> Precision:
        """Precision of the matrix products that generate and verify."""
        return Precision(str(self._dtype).removeprefix("torch."))

    def _weights(self, version: int) -> Tensor:
        if version not in self.versions:
            raise ValueError(
                f"the weights of version {version} are no longer here; the newest version is {max(self.versions, default=0)}"
            )
        return self.versions[version]

    def _loaded_engine(self, length: int, version: int, weights: Tensor) -> Generator:
        """Return a generator with the weights of this version.

        If vLLM fails, the built-in generator replaces it, unless the settings name vLLM.
        """
        try:
            if self._engine is None or self._engine[0] < length:
                self.close()  # first, because both may not fit, and vLLM allows one at a time
                self._engine = length, self._new_engine(length)
            engine = self._engine[1]
            engine.temperature = self.config.temperature
            if self._loaded != version:
                engine.load(weights)
                self._loaded = version
        except Exception as error:  # any exception of vLLM
            if self._wanted is not GeneratorName.AUTO:
                raise
            print(f"vLLM does not work here, so the built-in generator is used: {error}", file=sys.stderr)
            self.close()
            self._wanted = GeneratorName.BUILTIN
            return self._loaded_engine(length, version, weights)
        return engine

    def close(self) -> None:
        """Free the generator's memory; the next batch makes another generator."""
        engine, self._engine, self._loaded = self._engine, None, None
        if engine is not None:
            engine[1].close()

    def _new_engine(self, length: int) -> Generator:
        chosen, why = choose_generator(self._wanted, is_gpu(self._device))
        print(f"rollouts are generated by {chosen}: {why}", file=sys.stderr)
        shared: dict[str, Any] = {
            "slots": Slots(self._slots, length),
            "prove_all": lambda hidden: prove_all(hidden, self.config.top_k, self.config.chunk_tokens),
            "reply": self._reply,
            "base": self._base,
        }
        if chosen is GeneratorName.BUILTIN:
            return Engine(self._model, self._device, dtype=self._dtype, **shared)
        from trainer.generate.vllm import VllmEngine  # imported here because few computers have vLLM

        return VllmEngine(self._model, self._device, **shared)

    def _requests(self, assignment: Assignment) -> Iterator[Request]:
        tokenizer = self._tokenizer
        prompts = {index: tuple(tokenizer.prompt(self._environment.problem(index).prompt)) for index in assignment.problems}
        for number, (index, copy) in enumerate(_places(assignment)):
            key = assignment.key(index, copy)
            limits = self.config.max_tokens, tokenizer.ends, self.config.max_turn_tokens
            yield Request(number, prompts[index], key, *limits)

    def _reply(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> Sequence[int] | None:
        """Return the tokens of the environment's reply after a turn in the current batch, as `reply_tokens` does."""
        environment, problem = self._environment, self._environment.problem(self._problems[request.id])
        turns = read_turns(environment, problem, output, made, self._tokenizer)
        return reply_tokens(environment, problem, turns, self._tokenizer)

    def _scored(self, rollout: Rollout) -> Scored:
        problem, turns = self._forms.read(rollout)
        solved = self._environment.score(problem, turns)
        return scored(rollout, solved, self._environment.target(rollout.problem), self.config.length_weight)


def _places(assignment: Assignment) -> Iterator[tuple[int, int]]:
    """Return an iterator over (problem, copy) of a batch's rollouts."""
    return ((index, copy) for index in assignment.problems for copy in range(assignment.copies))


def _rollout(assignment: Assignment, request: Request, completion: Completion) -> Rollout:
    problem, copy = divmod(request.id, assignment.copies)
    return Rollout(assignment.problems[problem], copy, request.prompt, completion.output, completion.made, completion.proofs)
