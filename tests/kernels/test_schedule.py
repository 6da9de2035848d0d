"""The schedule of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kernels.schedule import Place, RatePhase, rate_phase, scheduled_rate, warmed


@dataclass(frozen=True)
class Settings:
    """Settings of a schedule."""

    lr: float = 1.0
    warmup_steps: int = 10
    schedule: str = "wsd"
    cooldown: float = 0.4


INNER = Settings()


PLAIN = [(0, 0.0, 0.1), (9, 0.1, 1.0), (10, 0.1, 1.0), (99, 0.6, 1.0), (125, 0.7, 0.5), (200, 1.0, 0.0), (4, 0.7, 0.25)]
COSINE = [(4, 0.0, 0.5), (99, 0.5, 0.55), (200, 1.0, 0.1)]


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        (INNER, PLAIN),
        (replace(INNER, cooldown=0.0), [(999, 1.0, 1.0)]),
        (replace(INNER, cooldown=1.0), [(99, 0.25, 0.5)]),
        (replace(INNER, schedule="cosine"), COSINE),
    ],
    ids=["decays with the root", "never comes down", "comes down all the time", "comes down to a tenth"],
)
def test_the_rate_warms_up_and(settings: Settings, rates: list[tuple[int, float, float]]) -> None:
    found = [scheduled_rate(settings, Place(step, share)) for step, share, _ in rates]
    assert found == pytest.approx([rate for *_, rate in rates])


def test_joiners_warm_up_from_nothing() -> None:
    assert [warmed(step, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmed(0, 0) == 1.0


@pytest.mark.parametrize(
    ("schedule", "step", "share", "phase"),
    [
        ("wsd", 9, 0.1, RatePhase.WARM_UP),
        ("wsd", 10, 0.1, RatePhase.STABLE),
        ("wsd", 99, 0.61, RatePhase.DECAY),
        ("cosine", 9, 0.1, RatePhase.WARM_UP),
        ("cosine", 10, 0.1, RatePhase.DECAY),
    ],
)
def test_a_step_is_in_one_phase_of_the_schedule(schedule: str, step: int, share: float, phase: RatePhase) -> None:
    assert rate_phase(replace(INNER, schedule=schedule), Place(step, share)) is phase
