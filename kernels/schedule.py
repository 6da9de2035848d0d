"""Learning rate of an inner step: a warm-up, a stable phase, and a decay that ends with the run.

The trainer takes its steps with this rate, and the peer shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class RateSettings(Protocol):
    """Settings of a schedule.

    lr: peak rate.  warmup_steps: counted over the swarm (round * H + local step).  schedule: "wsd" or "cosine".  cooldown:
    final share of the run in which the rate of wsd comes down.
    """

    @property
    def lr(self) -> float: ...  # noqa: D102

    @property
    def warmup_steps(self) -> int: ...  # noqa: D102

    @property
    def schedule(self) -> str: ...  # noqa: D102

    @property
    def cooldown(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Place:
    """Place of an inner step in the run.

    step: the swarm's step, counted from the start of the run's current stage. share: completed share of that stage, 0 to 1.
    factor: on the scheduled rate.
    """

    step: int
    share: float
    factor: float = 1.0


class RatePhase(str, Enum):
    """Phase of the learning rate."""

    WARM_UP = "warm-up"
    STABLE = "stable"
    DECAY = "decay"


COSINE_END = 0.1
"""Share of the peak rate that is left at the end of a cosine schedule."""


def scheduled_rate(settings: RateSettings, place: Place) -> float:
    """Return a step's learning rate: linear warm-up, then the schedule, which ends with the run's current stage.

    wsd: constant, then 1 - sqrt of the cooldown (Hägele et al. 2024).  cosine: half a wave, down to `COSINE_END`.
    """
    rate = settings.lr * warmed(place.step, settings.warmup_steps) * place.factor
    if settings.schedule == "cosine":
        return rate * (COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * min(1.0, place.share))) / 2)
    if settings.schedule != "wsd":
        raise ValueError(f"unknown schedule {settings.schedule!r}: this version knows 'wsd' and 'cosine'")
    stable = 1.0 - settings.cooldown
    if place.share <= stable:
        return rate
    return rate * max(0.0, 1.0 - math.sqrt((place.share - stable) / settings.cooldown))


def rate_phase(settings: RateSettings, place: Place) -> RatePhase:
    """Return the phase of a step's learning rate; a cosine is in decay from the end of its warm-up."""
    if place.step < settings.warmup_steps:
        return RatePhase.WARM_UP
    is_stable = settings.schedule == "wsd" and place.share <= 1.0 - settings.cooldown
    return RatePhase.STABLE if is_stable else RatePhase.DECAY


def warmed(step: int, warmup_steps: int) -> float:
    """Return the factor on the learning rate at step `step` (from 0) of a warm-up; 1 without a warm-up."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
