"""Trio with a seeded scheduler: the same seed runs the same tasks in the same order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio

from tests.simulation.processes import PROCESS, clocks_of_their_own


@contextmanager
def deterministic_trio(seed: int) -> Iterator[None]:
    """Within, trio picks the order of runnable tasks from `seed` (the hook that hypothesis uses too)."""
    core: Any = importlib.import_module("trio._core._run")
    before = core._r, core._ALLOW_DETERMINISTIC_SCHEDULING
    core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = Random(seed), True
    try:
        with clocks_of_their_own():
            yield
    finally:
        core._r, core._ALLOW_DETERMINISTIC_SCHEDULING = before


async def inline(function: Any, *arguments: Any) -> Any:
    """In place of a worker thread: threads would finish in no fixed order.  A slow process takes its time for it."""
    process = PROCESS.get()
    await trio.sleep(process.slow_s if process is not None else 0.0)
    return function(*arguments)
