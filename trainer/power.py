"""Keeps what a GPU draws, on average, below a number of watts: the trainer waits between steps.

Only the driver's owner may set a card's own limit (`nvidia-smi -pl`); waiting needs no such right, works in a container, and
counts what all programs draw on that card.  The card's own counter of energy is what is believed
(`nvmlDeviceGetTotalEnergyConsumption`, Volta and later).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

LOOK_S = 0.05
"""The counter is read so often while waiting; cards bring it up to date every 20 to 100 ms."""
SMOOTHED_S = 1.0
"""What was not drawn in the last so many seconds may be drawn now."""
MOST_TIMES = 9.0
"""A wait is at most so many times as long as the work before it: a limit that the card exceeds idle stops nothing."""

Meter = Callable[[], float | None]
"""Joules since any moment; None when nobody can tell."""


class Pace:
    """How long to wait.  watts: the limit; 0 for none.  clock: seconds."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter, self._clock = meter, clock
        self.watts = 0.0
        self._at, self._joules, self._debt = clock(), meter(), 0.0

    @property
    def measures(self) -> bool:
        """Whether there is a counter."""
        return self._joules is not None

    def begin(self) -> None:
        """Work begins now: what was drawn while there was none counts for nothing."""
        self._at, self._joules = self._clock(), self._meter()

    def keep(self, wait: Callable[[float], bool]) -> None:
        """After some work: wait until, on average, no more than `watts` was drawn.

        wait: waits so many seconds; True when something has come in that cannot wait.
        """
        worked = self._clock() - self._at
        self._count()
        deadline = self._at + MOST_TIMES * worked
        while self.watts and self._debt > 0 and self._at < deadline and not wait(LOOK_S):
            self._count()
        self._debt = min(0.0, self._debt) if self._at >= deadline else self._debt

    def _count(self) -> None:
        now, joules = self._clock(), self._meter()
        if joules is None or self._joules is None:
            self._debt = 0.0
        else:
            drawn = self._debt + joules - self._joules - self.watts * (now - self._at)
            self._debt = max(drawn, -self.watts * SMOOTHED_S)
        self._at, self._joules = now, joules


def meter_of(device: torch.device) -> Meter:
    """Of the GPU on which a trainer computes; one that cannot tell, for a CPU."""
    if device.type != "cuda":
        return lambda: None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    except Exception:  # no library, no driver, a slice of a card: each version of it says so in its own way
        return lambda: None
    return lambda: _joules(pynvml, handle)


def _joules(nvml: Any, handle: Any) -> float | None:
    try:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except Exception:  # an older card, or one that is lost
        return None
