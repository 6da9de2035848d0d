"""Peers as processes: tasks that can be stopped, continued, and killed between any two awaits.

Every trio task that is started within a process belongs to it.  A stopped process (SIGSTOP, a suspended laptop) runs no
step until it is continued; a killed one never runs again, so no `finally` of its tidies anything up.  Each process has its
own idea of the time: `trio.current_time` differs by `ahead_s` within it.

Works by an instrument that, before a task's step, puts the step aside when its process does not run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
from trio.lowlevel import Abort, Task

from protocol.wire.identity import PeerId

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that the running task belongs to; None for the world."""


class Killed(BaseException):
    """Raised where a process dies in the middle of a step: in a disk operation, or at a crash point."""


class Process:
    """The tasks of one life of `peer`.  `died` is called once, when it is killed."""

    def __init__(self, peer: PeerId, died: Callable[[], None]) -> None:
        self.peer = peer
        self.alive = True
        self.steps = 0
        self.ahead_s = 0.0
        self.slow_s = 0.0
        """What every blocking operation of it takes."""
        self.least_sleep_s = 0.0
        """Shortest sleep of its tasks, so that hours in which little happens are simulated with few ticks."""
        self.dies_at: int | None = None
        """Dies instead of running this step."""
        self._died = died
        self.stopped = False
        self._ended = False
        self._held: list[tuple[Task, Any, Any]] = []

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        """Runs again; what became due meanwhile happens now, all at once."""
        self.stopped = False
        if self.alive:
            self._release()

    def kill(self) -> None:
        """As by SIGKILL: nothing of it ever runs again."""
        if self.alive:
            self.alive = False
            self._died()

    def die(self) -> None:
        """Kill the process from within its own step."""
        self.kill()
        raise Killed

    def bury(self) -> None:
        """The world ends: let the remains be cancelled."""
        self._ended = True
        self._release()

    @property
    def runs(self) -> bool:
        return self._ended or (self.alive and not self.stopped)

    def before_step(self, task: Task) -> None:
        self.steps += 1
        if self.dies_at is not None and self.steps >= self.dies_at and not self._ended:
            self.kill()
        if not self.runs:
            step: Any = task
            self._held.append((task, step._next_send_fn, step._next_send))
            step._next_send_fn, step._next_send = _park, None

    def _release(self) -> None:
        held, self._held = self._held, []
        for task, send, value in held:
            step: Any = task
            step._abort_func = None
            step._next_send_fn, step._next_send = send, value
            step._runner.runq.append(task)


def _park(_: object) -> Any:
    """In place of a step: the task blocks, and takes no cancellation, until it is released."""
    return importlib.import_module("trio._core._traps").WaitTaskRescheduled(lambda _: Abort.FAILED)


MOST_STEPS = 2_000_000
"""Most steps of tasks at one moment of virtual time.  A loop that waits for nothing would stop the clock for ever."""


class Overseer(trio.abc.Instrument):
    """Sees every step of every task.

    scope: cancelled if the tasks take more than `MOST_STEPS` at one moment.  busy: the task that took the last of them.
    """

    def __init__(self, clock: trio.abc.Clock) -> None:
        self.scope: trio.CancelScope | None = None
        self.busy: str | None = None
        self._clock, self._steps, self._moment = clock, 0, 0.0

    def before_task_step(self, task: Task) -> None:
        self._steps += 1
        if self._steps % MOST_STEPS == 0 and self.scope is not None and self.busy is None:
            now = self._clock.current_time()
            if now == self._moment:
                self.busy = task.name
                self.scope.cancel()
            self._moment = now
        process = task.context.get(PROCESS)
        if process is not None:
            process.before_step(task)


@contextmanager
def clocks_of_their_own() -> Iterator[None]:
    """Within, `trio.current_time` is the running process's own clock."""
    world_time = trio.current_time

    def current_time() -> float:
        process = PROCESS.get()
        return world_time() + (process.ahead_s if process is not None else 0.0)

    async def sleep(seconds: float) -> None:
        if seconds:
            process = PROCESS.get()
            await trio.sleep_until(world_time() + max(seconds, process.least_sleep_s if process is not None else 0.0))
        else:
            await trio.lowlevel.checkpoint()

    def move_on_at(deadline: float, **options: Any) -> trio.CancelScope:
        return until_world_time(deadline - current_time() + world_time(), **options)

    until_world_time = trio.move_on_at
    before = trio.current_time, trio.sleep, trio.move_on_at
    trio.current_time, trio.sleep, trio.move_on_at = current_time, sleep, move_on_at
    try:
        yield
    finally:
        trio.current_time, trio.sleep, trio.move_on_at = before
