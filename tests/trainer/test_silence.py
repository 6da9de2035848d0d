"""The clock by which a silent child is judged: children that hang, spin, compute and wait, on idle and on busy computers."""

from __future__ import annotations

import pytest

from trainer.silence import LONGEST, LOOK_S, SilenceClock

LIMIT_S, CORES = 180.0, 2
BUSY, IDLE = 50.0, 1.0
FAIR = CORES / BUSY
"""Share of a core that a process gets beside fifty others."""


def ended_at(used_a_second: float, load: float, until_s: float = 40 * LIMIT_S, computes_s: float = 1e9) -> float | None:
    """Seconds after which a silent child is ended that gets so much processor time in its first `computes_s`, else None."""
    clock, now = SilenceClock(0.0, 100.0, CORES), 0.0
    while now < until_s:
        now += LOOK_S
        clock.look(now, 100.0 + used_a_second * min(now, computes_s), load)
        if clock.is_over(LIMIT_S):
            return now
    return None


CHILDREN = {
    "hangs": (0.0, IDLE, LIMIT_S),
    "hangs on a busy computer": (0.0, BUSY, LIMIT_S),
    "looks for work": (0.01, IDLE, LIMIT_S),
    "spins": (1.0, IDLE, LIMIT_S),
    "gets half a core": (0.5, 4.0, 2 * LIMIT_S),
    "spins for ever on a busy computer": (FAIR, BUSY, LONGEST * LIMIT_S),
    "spins at a low priority": (FAIR / 3, BUSY, LONGEST * LIMIT_S),
}
"""Processor time that a child uses in a second, the load, and the seconds after which it is ended."""


@pytest.mark.parametrize("child", CHILDREN)
def test_a_silent_child_is_ended_once_it_had_the_limit_of_a_core_or_did_nothing(child: str) -> None:
    used_a_second, load, expected_s = CHILDREN[child]
    assert ended_at(used_a_second, load) == pytest.approx(expected_s, abs=LOOK_S)


def test_a_start_of_ten_processor_seconds_is_left_alone_beside_fifty_processes() -> None:
    assert 10.0 / FAIR > LIMIT_S, "the wall alone would end it"
    assert ended_at(FAIR, BUSY, until_s=10.0 / FAIR) is None


def test_a_child_that_hangs_after_it_has_computed_gets_no_more_than_the_limit_from_then_on() -> None:
    at = ended_at(FAIR, BUSY, computes_s=100.0)
    assert at is not None and LIMIT_S < at <= 100.0 + LIMIT_S


def test_the_wait_is_named_only_while_the_child_gets_too_little() -> None:
    clock = SilenceClock(0.0, 0.0, CORES)
    clock.look(5.0, 0.2, BUSY)
    assert clock.busy == "this computer is too busy (load 50 on 2 cores)"
    assert clock.describe() == "for 5 s, in which it computed for 0 s"
    for now, used_s, load in ((10.0, 5.2, BUSY), (15.0, 5.2, BUSY), (20.0, 5.4, IDLE)):
        clock.look(now, used_s, load)
        assert not clock.busy
