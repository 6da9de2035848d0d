"""Effects of the state machines are survived by a death there; of single deaths and of pairs a sample.

All of them: `python -m tests.simulation.crash_points --pairs`, or `make crash-matrix`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import pytest

from tests.simulation.crash_points import PAIRS, SINGLES, Death, Point, death

SAMPLE = 12
"""Pairs."""
EVERY = 3
"""Of so many single deaths one is a slow test."""
FAST = 3
"""Single deaths, each in another part of the list, that take the place of all in the fast tier."""


def deaths(entries: Sequence[tuple[Point, ...]]) -> list[Death]:
    with multiprocessing.get_context("spawn").Pool() as pool:
        return pool.map(death, entries, chunksize=4)


def test_a_death_at_some_effects_harms_nobody() -> None:
    outcomes = [death(points) for points in list(SINGLES)[:: len(SINGLES) // FAST]]
    assert [(str(outcome.points[0]), outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert all(outcome.reached for outcome in outcomes)


@pytest.mark.slow
def test_a_death_at_any_third_effect_harms_nobody() -> None:
    outcomes = deaths(list(SINGLES)[::EVERY])
    assert len(outcomes) > 33
    assert [(str(outcome.points[0]), outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert [str(outcome.points[0]) for outcome in outcomes if not outcome.reached] == []


@pytest.mark.slow
def test_a_sample_of_the_pairs_of_deaths_harms_nobody() -> None:
    outcomes = deaths(list(PAIRS[:: len(PAIRS) // SAMPLE]))
    assert [([str(point) for point in outcome.points], outcome.failure) for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.reached == 2 for outcome in outcomes) >= SAMPLE // 2
