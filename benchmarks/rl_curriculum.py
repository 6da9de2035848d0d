"""Gain of a curriculum: problems that taught nothing rest, against draws that are equal for all problems.

A tiny byte-level model learns by GRPO to write words backwards, with the real learner and generator.  The words have one to
`letters` letters, so the supervised start solves some always, some never, and some in between.  A version draws its problems
from a pool.  With a curriculum, a problem whose group had equal rewards is not drawn for `rest` versions.  A draw takes a
resting problem only if too few others are left.  Every group counts at once, as if a record told all peers its outcome: this
is the most that a curriculum by solve rates can gain.

    rests     0 for equal draws; more versions than the run has for rests until its end
    rated     problems outside 0.1 to 0.8 at the start are left out of the pool, as `peer tasks rate` does, or not
    pool      number of problems: in small pools a problem returns often

Printed for each: the share of groups with equal rewards, and the mean reward of the last five versions at problems of the
same lengths that nobody trains on.  Numbers of rollouts are equal.

    python -m benchmarks.rl_curriculum [--rests 0 4 1000] [--rated no yes] [--seeds 0 1 2] [--pools 128] [--versions 40]
        [--letters 4] [--jobs 1]
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from benchmarks.rl_ablation import MODEL, RL
from benchmarks.rl_bench import LAST, Reverse, Settings, Trial, Variant, judge, warm_start
from trainer.environments.environment import Problem
from trainer.environments.records import SolveRates
from trainer.rl.groups import Group
from trainer.rl.learner import LearnTask

START = 0.4
"""Mean reward of the supervised start."""


class Words(Reverse):
    """A task that asks for a word of one to `letters` letters backwards."""

    def problem(self, index: int) -> Problem:
        word = "".join(random.Random(index).choices("abcdefgh", k=1 + index % self._letters))
        return Problem(index, word + "=", word[::-1])


@dataclass(frozen=True)
class Case:
    """A run to do.  rest: number of versions for which a problem rests that taught nothing; 0 for equal draws."""

    seed: int
    pool: int
    is_rated: bool
    versions: int
    rest: int
    letters: int


class Outcome(NamedTuple):
    """Result of a run.  flat: share of groups with equal rewards.  problems: number of problems that were drawn from."""

    flat: float
    reward: float
    problems: int


def teaches(group: Group) -> bool:
    """Return True if the rewards of a group differ."""
    return len({member.reward for member in group.members}) > 1


def run_of(case: Case) -> Outcome:
    """Do the run of a case; runs of one seed begin with the same parameters."""
    torch.set_num_threads(1)
    task, settings = Words(case.letters), Settings(MODEL, RL, case.versions, START, pool=case.pool, judged=280, prompts=16)
    trial = Trial(task, settings, Variant("gspo"), case.seed)
    model, pick = trial.learner.model, random.Random(case.seed)
    model.flat.copy_(warm_start(task, settings, case.seed))
    problems = list(range(case.pool))
    if case.is_rated:
        bounds = SolveRates(RL.min_solve_rate, RL.max_solve_rate)
        problems = [each.problem for each in trial.groups(model, problems) if bounds.have(each.solve_rate)]
    rests_until: dict[int, int] = {}
    flat, made, rewards = 0, 0, list[float]()
    for version in range(case.versions):
        awake = [each for each in problems if rests_until.get(each, 0) <= version]
        chosen = pick.sample(awake, min(len(awake), settings.prompts))
        resting = [each for each in problems if each not in chosen]
        chosen += pick.sample(resting, min(len(resting), settings.prompts - len(chosen)))
        groups = [replace(group, age=0) for group in trial.groups(model, chosen)]
        equal = [group.problem for group in groups if not teaches(group)]
        rests_until |= dict.fromkeys(equal, version + 1 + case.rest)
        flat, made = flat + len(equal), made + len(groups)
        trial.learner.learn(LearnTask(order=version, first_step=trial.learner.optimiser.steps, behaviours={}), groups)
        if version >= case.versions - LAST:
            rewards.append(judge(model, task, settings))
    return Outcome(flat / made, statistics.fmean(rewards), len(problems))


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rests", type=int, nargs="+", default=[0, 4, 1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pools", type=int, nargs="+", default=[128])
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--letters", type=int, default=4)
    parser.add_argument("--rated", choices=["yes", "no"], nargs="+", default=["no", "yes"])
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    options = parser.parse_args()
    kinds = [*itertools.product(options.pools, [each == "yes" for each in options.rated], options.rests)]
    print("| pool | rated | rest | equal rewards | reward | by seed |\n|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        cases = [
            Case(seed, size, rated, options.versions, rest, options.letters)
            for size, rated, rest in kinds
            for seed in options.seeds
        ]
        done = pool.map(run_of, cases)
        for size, rated, rest in kinds:
            found = [next(done) for _ in options.seeds]
            left = f"yes, {statistics.fmean(each.problems for each in found):.0f} left" if rated else "no"
            flat, reward = (statistics.fmean(each[at] for each in found) for at in (0, 1))
            by_seed = ", ".join(f"{each.reward:.3f}" for each in found)
            print(f"| {size} | {left} | {rest} | {flat:.0%} | {reward:.3f} | {by_seed} |", flush=True)


if __name__ == "__main__":
    main()
