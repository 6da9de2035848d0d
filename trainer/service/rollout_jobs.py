"""Jobs of a trainer in an RL run: keep a version, make a batch of rollouts, judge a batch, learn from batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.config import TrainingConfig
from trainer.environments.extended import Extended, TaskFile
from trainer.generate.choice import GeneratorName
from trainer.optim.moments import MomentsFile
from trainer.reading import environment_of, tokenizer_of
from trainer.rl.config import RlConfig
from trainer.rl.groups import Group
from trainer.rl.learner import AfterStep, Learner, LearnTask
from trainer.rl.targets import most_prompt_bytes, prompt_flaw
from trainer.rl.verification import Assignment, Judged
from trainer.rl.worker import F32, Between, OnProgress, RolloutTasks, RolloutWorker
from trainer.worker import Done, Task, Worker

VERDICTS_AT_ONCE = 32
"""Verdicts in one frame to the peer; they fit even with the longest details in any letters."""
MAX_DETAIL = 200
PROBLEMS_AT_ONCE = 1024

Tried = tuple[int, int, int, int, int, int]
"""A problem, its number of rollouts, of rollouts that solved it, of rollouts scored twice, of those with the same score both
times, and the place of their batch."""


class RolloutJobs:
    """Rollout jobs of one run.  worker: has the model that learns; None in a process that only makes and judges rollouts.

    moments: file of the learner's moments; None to keep none.  generator: makes the rollouts.
    """

    def __init__(
        self,
        config: TrainingConfig,
        rl: RlConfig,
        worker: Worker | None,
        device: torch.device,
        moments: MomentsFile | None = None,
        generator: GeneratorName = GeneratorName.BUILTIN,
    ) -> None:
        self._config, self._rl, self._worker, self._moments = config, rl, worker, moments
        self._environment = Extended(environment_of(config), rl.solve_rates)
        self._tokenizer = worker.tokenizer if worker is not None else tokenizer_of(config)
        tasks = RolloutTasks(self._environment, self._tokenizer, config.seed)
        self._rollouts = RolloutWorker(rl, config.model, tasks, device, generator=generator)
        self._learner: Learner | None = None

    def keep_version(self, version: int, theta: F32) -> None:
        """Copy the swarm's parameters as this version."""
        self._rollouts.keep_version(version, theta)

    def use_tasks(self, sets: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
        """Use only the problems of these sets; return the unusable sets, by their first problem, with the reason."""
        rl, files = self._rl, [TaskFile(**each) for each in sets]
        room = (rl.row_tokens, rl.max_tokens, rl.length_targets)
        unusable = self._environment.use(
            files, most_prompt_bytes(*room), lambda prompt: prompt_flaw(prompt, self._tokenizer, *room)
        )
        return [*unusable.items()]

    def generate(
        self, task: dict[str, Any], path: str, on_progress: OnProgress, between: Between = lambda: None
    ) -> dict[str, Any]:
        """Make a batch; return its numbers of rollouts and tokens."""
        assignment = _assignment(task)
        tokens = self._rollouts.generate(assignment, Path(path), on_progress, between)
        return {"rollouts": len(assignment.problems) * assignment.copies, "tokens": tokens}

    def verify(
        self,
        task: dict[str, Any],
        path: str,
        tell: Callable[[list[dict[str, Any]]], None],
        between: Between = lambda: None,
    ) -> dict[str, Any]:
        """Judge a batch; pass the verdicts to `tell` in order, some at a time."""
        judged = self._rollouts.verify(_assignment(task), Path(path), between)
        for some in _parts(judged):
            tell([_fields(each) for each in some])
        return {}

    def learn(
        self, task: Task, theta: F32, out: memoryview, after_step: AfterStep, tell: Callable[[list[Tried]], None]
    ) -> Done:
        """Learn from the batches of a round and encode the difference into `out`.

        tell: gets the results on problems from sets of tasks, some problems at a time.
        """
        assert self._worker is not None, "asked of a process that trains"
        if self._learner is None:
            self._worker.end_reading()
            self._learner = Learner(self._rl, self._worker.model, self._config.chunk_parameters)
            if self._moments is not None:
                self._moments.restore(self._learner.optimiser)
        groups = self._rollouts.groups([Path(task.rollouts_in) / name for name in task.rollouts])
        of_sets = [group for group in groups if group.members[0].rollout.problem >= self._environment.size]
        tried = [self._tried(group, task.round) for group in of_sets]
        for start in range(0, len(tried), PROBLEMS_AT_ONCE):
            tell(tried[start : start + PROBLEMS_AT_ONCE])
        learn = LearnTask(task.round, task.first_step, Path(task.reference) if task.reference else None)
        learnt = self._learner.compute(learn, groups, theta, out, after_step)
        # If all rewards of each group are equal, nothing is learned; the difference, all zeros, weighs one token.
        kl = learnt.kl if self._rl.kl_weight and learnt.steps else None
        return Done(max(1, learnt.tokens), max(1, learnt.steps), learnt.loss, learnt.norm, learnt.reward, kl)

    def store_moments(self) -> None:
        """Write the learner's moments to their file, for a later process."""
        if self._moments is not None and self._learner is not None:
            self._moments.store(self._learner.optimiser)

    def _tried(self, group: Group, round: int) -> Tried:
        """Count the results of a group; score one of its answers twice, a different one each round."""
        right = sum(member.solved > 0.5 for member in group.members)
        same = self._rollouts.is_repeatable(group.members[round % len(group.members)])
        problem, twice = group.members[0].rollout.problem, int(same is not None)
        return problem, len(group.members), right, twice, int(same is True), group.batch


def _assignment(task: dict[str, Any]) -> Assignment:
    return Assignment(bytes.fromhex(task["run"]), task["version"], task["peer"], tuple(task["problems"]), task["copies"])


def _parts(judged: Sequence[Judged]) -> Iterator[Sequence[Judged]]:
    return (judged[start : start + VERDICTS_AT_ONCE] for start in range(0, len(judged), VERDICTS_AT_ONCE))


def _fields(judged: Judged) -> dict[str, Any]:
    return {
        "reason": judged.reason.value if judged.reason else "",
        "detail": judged.detail[:MAX_DETAIL],
        "reward": judged.reward,
        "tokens": judged.tokens,
        "exact": judged.exact,
        "sure": judged.sure,
    }
