"""Rewards, advantages and filters, by their formulas."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rl.groups import (
    Group,
    Scored,
    advantages,
    grouped,
    informative,
    scored,
)
from trainer.rl.rollout import Rollout


def rollout(problem: int = 0, copy: int = 0, made: tuple[bool, ...] = (True,)) -> Rollout:
    return Rollout(problem, copy, (1,), (2,) * len(made), made, b"")


def group(*rewards: float) -> Group:
    return Group(0, tuple(Scored(rollout(copy=copy), reward, reward) for copy, reward in enumerate(rewards)))


def test_advantages_are_differences_from_the_mean_over_the_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 0.5]
    mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
    assert advantages(rewards) == pytest.approx([(reward - mean) / (std + 1e-6) for reward in rewards], rel=1e-12)
    assert advantages(rewards, divide_by_std=False) == pytest.approx([0.625, -0.375, -0.375, 0.125])


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.booleans())
def test_advantages_sum_to_nothing_and_keep_the_order(rewards: list[float], divide: bool) -> None:
    got = advantages(rewards, divide)
    assert sum(got) == pytest.approx(0, abs=1e-6)
    assert [advantage for _, advantage in sorted(zip(rewards, got, strict=True))] == sorted(got)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, 1 / 3])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_equal_rewards_are_no_advantage_at_all(reward: float, size: int) -> None:
    assert advantages([reward] * size) == [0.0] * size
    assert not group(*[reward] * size).is_informative
    groups = [group(*[reward] * size), group(1.0, 0.0)]
    assert informative(groups) == groups[1:]


def test_rollouts_are_grouped_by_problem_in_the_order_of_copies() -> None:
    pieces = [Scored(rollout(problem, copy), 1.0, 1.0) for problem, copy in [(7, 1), (2, 0), (7, 0), (2, 5)]]
    assert [(each.problem, [member.rollout.copy for member in each.members]) for each in grouped(pieces)] == [
        (2, [0, 5]),
        (7, [0, 1]),
    ]
    with pytest.raises(ValueError, match="problem 7 has its copy 1 twice"):
        grouped([*pieces, pieces[0]])


def test_the_solve_rate_is_of_the_task_alone() -> None:
    members = tuple(
        scored(rollout(copy=copy, made=(True,) * 4), solved, 10, 0.01) for copy, solved in enumerate((1.0, 0.0, 1.0, 0.5))
    )
    assert Group(0, members).solve_rate == 0.625
    assert Group(0, members).rewards == pytest.approx([0.94, -0.06, 0.94, 0.44])


@pytest.mark.parametrize(
    ("made", "solved", "target", "reward"),
    [
        ((True,) * 9, 1.0, 10, 0.9),
        ((True,) * 11, 1.0, 10, 0.9),
        ((True,) * 10, 0.0, 10, 0.0),
        ((True, False, False, True), 1.0, 2, 1.0),
        ((True, False), 0.5, None, 0.5),
    ],
    ids=["shorter", "longer", "as long", "what the model chose", "no target"],
)
def test_each_token_beside_the_target_length_costs_the_same(
    made: tuple[bool, ...], solved: float, target: int | None, reward: float
) -> None:
    assert scored(rollout(made=made), solved, target, 0.1).reward == pytest.approx(reward)
