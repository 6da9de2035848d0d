"""The learning rate: a warm-up, stable, decay schedule that follows the swarm's step, and the warm-up of joiners."""

from __future__ import annotations

import math

from trainer.config import InnerConfig


def scheduled_rate(config: InnerConfig, swarm_step: int) -> float:
    """Learning rate at a step of the swarm: linear warm-up, constant, then 1 - sqrt of the way to the end (WSD)."""
    if config.schedule != "wsd":
        raise ValueError(f"unknown schedule {config.schedule!r}: this version knows 'wsd'")
    if swarm_step < config.warmup_steps:
        return config.lr * (swarm_step + 1) / config.warmup_steps
    if swarm_step < config.stable_steps:
        return config.lr
    decay_steps = max(1, config.total_steps - config.stable_steps)
    return config.lr * max(0.0, 1.0 - math.sqrt((swarm_step - config.stable_steps) / decay_steps))


def warmed(step: int, warmup_steps: int) -> float:
    """Factor on the rate at the `step`-th step (from 0) of a warm-up; 1 without one."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
