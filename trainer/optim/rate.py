"""The learning rate: a warm-up, stable, decay schedule whose end is the run's, and the warm-up of joiners."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.config import InnerConfig


@dataclass(frozen=True)
class Place:
    """The place of an inner step in the run.

    step: of the swarm, from the beginning of the present stage of the run.  share: of that stage, from 0 to 1.
    """

    step: int
    share: float


def scheduled_rate(config: InnerConfig, place: Place) -> float:
    """Learning rate of a step: linear warm-up, constant, then 1 - sqrt of the way to the end (WSD, Hägele et al. 2024)."""
    if config.schedule != "wsd":
        raise ValueError(f"unknown schedule {config.schedule!r}: this version knows 'wsd'")
    rate = config.lr * warmed(place.step, config.warmup_steps)
    stable = 1.0 - config.cooldown
    if place.share <= stable:
        return rate
    return rate * max(0.0, 1.0 - math.sqrt((place.share - stable) / config.cooldown))


def warmed(step: int, warmup_steps: int) -> float:
    """Factor on the rate at the `step`-th step (from 0) of a warm-up; 1 without one."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
