"""The schedule of the learning rate."""

from dataclasses import replace

import pytest

from tests.trainer import small
from trainer.optim.rate import scheduled_rate, warmed

INNER = replace(small.config().inner, lr=1.0, warmup_steps=10, stable_steps=100, total_steps=200)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.1), (9, 1.0), (10, 1.0), (99, 1.0), (100, 1.0), (125, 0.5), (200, 0.0), (900, 0.0)]
)
def test_rate_warms_up_stays_and_decays_with_the_root(step: int, rate: float) -> None:
    assert scheduled_rate(INNER, step) == pytest.approx(rate)


def test_joiners_warm_up_from_nothing() -> None:
    assert [warmed(step, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmed(0, 0) == 1.0
