"""Power limit: the trainer waits between steps to keep a GPU's average power below a number of watts.

Only an administrator may set a card's own limit (`nvidia-smi -pl`); waiting needs no such right, works in a container, and
counts the power of all programs on that card.  The measure is the card's own counter of energy
(`nvmlDeviceGetTotalEnergyConsumption`, Volta and later).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

LOOK_S = 0.05
"""Seconds between two readings of the counter while waiting; cards update it every 20 to 100 ms."""
SMOOTHED_S = 1.0
"""Seconds over which power is averaged: energy that was allowed but not drawn in them may be drawn now."""
MOST_TIMES = 9.0
"""Longest wait, as a multiple of the work before it: a limit below the card's idle power must not stop the work."""

Meter = Callable[[], float | None]
"""Function that returns joules since any fixed moment, or None if they are unknown."""


class PowerPace:
    """Pace of the work under a power limit.  watts: the limit; 0 for none.  clock: seconds."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter, self._clock = meter, clock
        self.watts = 0.0
        self._at, self._joules, self._debt = clock(), meter(), 0.0

    @property
    def measures(self) -> bool:
        """True if the device has a counter of energy."""
        return self._joules is not None

    def begin(self) -> None:
        """Begin to count: energy drawn before, without work, does not count."""
        self._at, self._joules = self._clock(), self._meter()

    def keep(self, wait: Callable[[float], bool]) -> None:
        """Wait, after some work, until the average power is at most `watts`.

        wait: waits so many seconds; returns True if something urgent has come in.
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
    """Return the energy meter of the GPU on which a trainer computes; for a CPU, one that always returns None."""
    if device.type != "cuda":
        return lambda: None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    except Exception:  # no library, no driver, a slice of a card: errors differ by version
        return lambda: None
    return lambda: _joules(pynvml, handle)


def _joules(nvml: Any, handle: Any) -> float | None:
    try:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except Exception:  # an older or a lost card
        return None
