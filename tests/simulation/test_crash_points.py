"""Every effect of the state machines is survived by a death there; of the pairs of deaths, a sample.

All pairs: `python -m tests.simulation.crash_points --pairs`, or `make crash-matrix`.
"""

from __future__ import annotations

import multiprocessing

import pytest

from tests.simulation.crash_points import PAIRS, SINGLES, Death, Point, death

SAMPLE = 40
FAST = 3
"""Single deaths, each in another part of the list, that take the place of all in the fast tier."""


def deaths(entries: list[tuple[Point, ...]]) -> list[Death]:
    with multiprocessing.get_context("spawn").Pool() as pool:
        return pool.map(death, entries, chunksize=4)


def test_a_death_at_some_effects_harms_nobody() -> None:
    outcomes = [death(points) for points in list(SINGLES)[:: len(SINGLES) // FAST]]
    assert [(str(outcome.points[0]), outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert all(outcome.reached for outcome in outcomes)


@pytest.mark.slow
def test_a_death_at_any_effect_in_any_role_harms_nobody() -> None:
    outcomes = deaths(list(SINGLES))
    assert len(outcomes) > 100
    assert [(str(outcome.points[0]), outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert [str(outcome.points[0]) for outcome in outcomes if not outcome.reached] == []


@pytest.mark.slow
def test_a_sample_of_the_pairs_of_deaths_harms_nobody() -> None:
    outcomes = deaths(list(PAIRS[:: len(PAIRS) // SAMPLE]))
    assert [([str(point) for point in outcome.points], outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.reached == 2 for outcome in outcomes) >= SAMPLE // 2
