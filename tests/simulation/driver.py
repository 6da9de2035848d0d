"""Runs the agenda of a world's wire between the steps of its tasks.

As a task, which trio wakes with a deadline, the agenda would take most of the time of a large world: three rounds of trio's
loop and a cancelled scope for each message.  Here the clock jumps to the next action as it would to the deadline, and the
action runs at once.  What the tasks see is the same: the same actions at the same times, each before what follows from it.
"""

from __future__ import annotations

import importlib
from math import inf
from typing import Any

import trio
from trio.testing import MockClock

from tests.simulation.wire import Agenda


class DrivenAgenda(Agenda):
    """Run by a `Driver`; its task only waits for what goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._failed = trio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Until cancelled; raises what an action raised."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    def run_safely(self) -> None:
        """Run what is due: trio would only log what an instrument raises."""
        try:
            self.run_due()
        except BaseException as error:  # noqa: BLE001 - it is raised again, by the task
            self._error = error
            self._failed.set()


class Driver(trio.abc.Instrument):
    """Jumps to the next action whenever no task can run before it.  clock: of the run, with an autojump threshold of 0."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self._core: Any = importlib.import_module("trio._core._run")
        self.agenda: DrivenAgenda | None = None

    def after_io_wait(self, timeout: float) -> None:
        """Trio has looked for events, and is about to run tasks; without any, to jump to the next deadline."""
        agenda, clock = self.agenda, self._clock
        if agenda is None:
            return
        runner = self._core.GLOBAL_RUN_CONTEXT.runner  # `trio.lowlevel.current_statistics` takes ten times as long
        while not runner.runq and agenda.next_at != inf:
            now = clock.current_time()
            left_s = agenda.next_at - now
            if left_s > runner.deadlines.next_deadline() - now:
                return
            clock.jump(max(left_s, 0.0))
            agenda.run_safely()
