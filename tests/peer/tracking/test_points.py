"""Points of curves: which are due, what they hold, and that strangers' numbers and names do no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from peer.control.curves import StepBack
from peer.control.history import HeldOut, Round, RunHistory
from peer.tracking.points import LATE_ROUNDS, Point
from peer.tracking.points import points_due as due_of


@dataclass
class Measured:
    """Rounds and held-out losses, written by hand."""

    rounds: list[Round]
    held_out: dict[int, HeldOut] = field(default_factory=dict)
    steps_back: list[StepBack] = field(default_factory=list)


def points_due(run: Measured, after: int, *, is_end: bool) -> list[Point]:
    return due_of(cast(RunHistory, run), after, is_end=is_end)


def made(number: int, losses: Mapping[str, float] = {}, loss: float = 2.0, reward: float | None = None) -> Round:
    return Round(number, 1000 * number, 3, loss, losses, reward)


def test_a_point_waits_for_its_held_out_loss_for_some_rounds_and_not_at_the_end() -> None:
    run = Measured([made(number) for number in range(1, 5)])
    assert LATE_ROUNDS == 2
    assert [point.step for point in points_due(run, 0, is_end=False)] == [1, 2]
    assert [point.step for point in points_due(run, 2, is_end=True)] == [3, 4]
    run.held_out[3] = HeldOut(1.5, {})
    (point,) = points_due(run, 2, is_end=False)
    assert point.step == 3
    assert point.values == {"tokens": 3000.0, "members": 3.0, "loss/training": 2.0, "loss/held_out": 1.5}
    assert points_due(run, 9, is_end=True) == [], "as after a rollback"


def test_losses_by_source_and_rewards_are_curves_of_their_own() -> None:
    run = Measured([made(1, {"web": 2.5, "code": 1.5}, reward=0.25)], {1: HeldOut(1.5, {"web": 3.0})})
    (point,) = points_due(run, 0, is_end=False)
    assert point.values["loss/training/web"] == 2.5 and point.values["loss/training/code"] == 1.5
    assert point.values["loss/held_out/web"] == 3.0 and point.values["reward"] == 0.25


def test_values_that_are_no_numbers_and_names_that_are_no_names_do_no_harm() -> None:
    names = {"\x1b[31mred\u202e": 1.0, "a" * 100_000: 2.0, "": 3.0}
    run = Measured([made(1, names, loss=float("inf"), reward=float("nan"))])
    (point,) = points_due(run, 0, is_end=True)
    assert "loss/training" not in point.values and "reward" not in point.values
    assert len(point.values) == 2 + len(names)
    assert all(name.isprintable() and len(name) < 80 for name in point.values), point.values


def steps(run: Measured, after: int = 0) -> list[tuple[int, float, float]]:
    due = points_due(run, after, is_end=True)
    return [(each.step, each.values["rounds"], each.values["rounds_given_up"]) for each in due]


def test_rounds_that_replace_others_come_behind_them_as_a_tracker_takes_no_step_twice() -> None:
    run = Measured([made(number) for number in range(1, 15)])
    written = points_due(run, 0, is_end=True)[-1].step
    assert written == 14
    run.rounds = [made(number) for number in range(1, 14)]
    run.steps_back = [StepBack(1.0, 11, 0, 3)]  # rounds 12 to 14 are given up, of which 12 and 13 are made anew
    assert steps(run, written) == [(15, 12.0, 3.0), (16, 13.0, 3.0)]
    assert steps(run)[10:] == [(11, 11.0, 0.0), (15, 12.0, 3.0), (16, 13.0, 3.0)], "a new tracker has a gap there"


def test_steps_back_behind_and_before_each_other_never_repeat_a_step() -> None:
    run = Measured([made(number) for number in range(1, 31)])
    run.steps_back = [StepBack(1.0, 10, 0, 10), StepBack(2.0, 5, 0, 10), StepBack(3.0, 25, 0, 2)]
    told = steps(run)
    assert [step for step, *_ in told] == sorted({step for step, *_ in told})
    assert told[4] == (5, 5.0, 0.0) and told[5] == (26, 6.0, 20.0), "steps up to 25 were taken by rounds given up"
    assert told[24] == (45, 25.0, 20.0) and told[25] == (48, 26.0, 22.0)
