"""The schedule of the learning rate."""

from dataclasses import replace

import pytest

from tests.trainer import small
from trainer.optim import Place, scheduled_rate, warmed

INNER = replace(small.config().inner, lr=1.0, warmup_steps=10, cooldown=0.4)


@pytest.mark.parametrize(
    ("step", "share", "rate"),
    [(0, 0.0, 0.1), (9, 0.1, 1.0), (10, 0.1, 1.0), (99, 0.6, 1.0), (125, 0.7, 0.5), (200, 1.0, 0.0), (4, 0.7, 0.25)],
)
def test_rate_warms_up_stays_and_decays_with_the_root(step: int, share: float, rate: float) -> None:
    assert scheduled_rate(INNER, Place(step, share)) == pytest.approx(rate)


def test_rate_without_a_cooldown_never_comes_down() -> None:
    assert scheduled_rate(replace(INNER, cooldown=0.0), Place(999, 1.0)) == 1.0


def test_rate_that_cools_down_all_the_time_begins_at_once() -> None:
    assert scheduled_rate(replace(INNER, cooldown=1.0), Place(99, 0.25)) == pytest.approx(0.5)


def test_joiners_warm_up_from_nothing() -> None:
    assert [warmed(step, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmed(0, 0) == 1.0


@pytest.mark.parametrize(("step", "share", "rate"), [(4, 0.0, 0.5), (99, 0.5, 0.55), (200, 1.0, 0.1)])
def test_cosine_comes_down_to_a_tenth(step: int, share: float, rate: float) -> None:
    assert scheduled_rate(replace(INNER, schedule="cosine"), Place(step, share)) == pytest.approx(rate)
