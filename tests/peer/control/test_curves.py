"""Curves of a run: folded from events, bounded, and read from the event log."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from peer.control.client import Stamped
from peer.control.curves import (
    MOST_POINTS,
    MOST_SAMPLED,
    MOST_SOURCES,
    LossPoint,
    RewardedAnswer,
    RunCurves,
    SampleHistory,
    Series,
    StepBack,
)
from protocol.events import events as ev

ME = "12D3KooWme"


def committed(round: int, loss: float, run_tokens: int = 0) -> Stamped:
    return Stamped(float(round), 0.0, ev.RoundCommitted(round, "aa", [ME], 100, loss, True, run_tokens=run_tokens))


def measured(rounds: int, loss: float, losses: dict[str, float] | None = None) -> Stamped:
    return Stamped(float(rounds), 0.0, ev.EvalLoss(rounds, loss, ME, losses or {}))


def curves_of(*events: Stamped) -> RunCurves:
    curves = RunCurves()
    for stamped in events:
        curves.apply(stamped)
    return curves


def test_losses_stand_at_the_tokens_of_the_run() -> None:
    curves = curves_of(committed(0, 4.0, 90), committed(1, 3.0, 180), measured(1, 3.9), measured(2, 3.1, {"web": 3.2}))
    assert curves.training.points == [LossPoint(0.0, 1, 90, 4.0), LossPoint(1.0, 2, 180, 3.0)]
    assert curves.held_out.points == [LossPoint(1.0, 1, 90, 3.9), LossPoint(2.0, 2, 180, 3.1)]
    assert curves.by_source["web"].points == [LossPoint(2.0, 2, 180, 3.2)]


def test_months_are_kept_in_few_points_and_the_newest_are_fine() -> None:
    series = Series()
    for number in range(50_000):
        series.add(LossPoint(float(number), number, number, 1.0))
    assert len(series.points) <= MOST_POINTS and series.points[0].rounds < 200
    places = [point.rounds for point in series.points]
    assert places[-1000:] == list(range(49_000, 50_000)) and places == sorted(places)
    assert max(later - before for before, later in pairwise(places)) <= 128, "even over the whole run"
    assert sum(point.weight for point in series.points) == 50_000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(value: float) -> None:
    curves = curves_of(committed(0, value), measured(1, value, {"web": value}))
    assert not curves.training.points and not curves.held_out.points and not curves.by_source["web"].points


def test_sources_are_bounded() -> None:
    assert len(curves_of(measured(1, 2.0, {str(each): 2.0 for each in range(999)})).by_source) == MOST_SOURCES


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"training": [], "held_out": []},
        {"training": [["a", 1, 1, 1, 1]], "held_out": [], "by_source": {}},
        {"training": [[1, 1, 1, None, 1]], "held_out": [], "by_source": {}},
    ],
)
def test_what_is_no_curves_is_a_value_error(given: Any) -> None:
    with pytest.raises(ValueError):
        RunCurves.from_fields(given)


def written(rounds: int, text: str = "x") -> Stamped:
    return Stamped(float(rounds), 0.0, ev.SamplesWritten(rounds, ME, {"a": text}))


def test_samples_are_kept_by_state_and_come_back_from_a_socket() -> None:
    curves = curves_of(written(1), written(3, "y"), written(2, "late"), written(3, "z"))
    assert [(each.rounds, each.completions["a"]) for each in curves.samples.states] == [(1, "x"), (3, "z")]
    again = RunCurves.from_fields(json.loads(json.dumps(curves.to_fields())))
    assert again.samples.states == curves.samples.states
    copied = curves.copy()
    curves.apply(written(4))
    assert len(copied.samples.states) == 2
    assert RunCurves.from_fields({"training": [], "held_out": [], "by_source": {}}).samples.states == []


def test_of_many_samples_the_first_and_the_newest_stay() -> None:
    found = SampleHistory()
    for rounds in range(10_000):
        found.add(0.0, rounds, ME, {"a": "x"})
    known = [each.rounds for each in found.states]
    assert len(known) <= MOST_SAMPLED and known[0] == 0 and known[-10:] == [*range(9990, 10_000)]
    assert known == sorted(known)


ANSWERS = [{"reward": 1.0, "prompt": "2 + 2", "text": "4"}, {"reward": 0.5, "prompt": "a" * 999, "text": "b" * 999}]


def learned(round: int, answers: list[dict[str, Any]]) -> Stamped:
    return Stamped(float(round), 0.0, ev.RolloutsUsed(round, ["aa"], 8, 0.5, "r", None, answers))


def test_the_answers_of_the_last_round_are_kept_and_come_back_from_a_socket() -> None:
    curves = curves_of(learned(1, ANSWERS), learned(2, ANSWERS[::-1]), learned(3, []))
    assert curves.answers is not None and curves.answers.round == 2
    assert curves.answers.best == RewardedAnswer(0.5, "a" * 300, "b" * 300) and curves.answers.typical.text == "4"
    again = RunCurves.from_fields(json.loads(json.dumps(curves.to_fields())))
    assert again.answers == curves.answers == curves.copy().answers


@pytest.mark.parametrize(
    "answers", [[{}], [{}, {}], [{"reward": "x", "prompt": "", "text": ""}] * 2, [{**ANSWERS[0], "reward": 1e400}] * 2]
)
def test_answers_of_another_form_are_none(answers: list[dict[str, Any]]) -> None:
    assert curves_of(learned(1, answers)).answers is None
    assert curves_of(learned(1, ANSWERS), learned(2, answers)).answers is not None


@pytest.mark.parametrize("state", [[], [1.0, 2], [1.0, 2, ME, ["a"]], [1.0, "x", ME, {}], ["x", 1, ME, {}], 7, None])
def test_samples_that_are_none_are_no_curves(state: object) -> None:
    with pytest.raises(ValueError):
        RunCurves.from_fields({"training": [], "held_out": [], "by_source": {}, "samples": [state]})


def test_rounds_that_are_given_up_leave_the_curves_and_a_mark_stays() -> None:
    made = [
        each
        for round in range(14)
        for each in (committed(round, 4.0, 90 * round + 90), measured(round + 1, 3.0, {"web": 3.0}))
    ]
    curves = curves_of(*made, written(10), written(13), Stamped(20.0, 20.0, ev.RolledBack(11, 3, ME)))
    for series in (curves.training, curves.held_out, curves.by_source["web"]):
        assert [point.rounds for point in series.points] == list(range(1, 12))
    assert [each.rounds for each in curves.samples.states] == [10]
    assert curves.steps_back == [StepBack(20.0, 11, 990, 3)]
    copied = curves.copy()
    curves.apply(committed(13, 2.0))  # rounds 11 and 12 of the other branch were fetched, not made here
    assert [point.rounds for point in curves.training.points] == [*range(1, 12), 14]
    curves.apply(Stamped(30.0, 30.0, ev.RolledBack(12, 2, "")))
    assert len(copied.steps_back) == 1 and len(curves.steps_back) == 2
    again = RunCurves.from_fields(json.loads(json.dumps(curves.to_fields())))
    assert again.to_fields() == curves.to_fields() and again.steps_back == curves.steps_back
