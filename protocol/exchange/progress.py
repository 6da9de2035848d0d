"""Events about an exchange for people and programs: its progress, and its time and bytes at the end."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.events import Event, ExchangeFinished, ExchangeProgress
from protocol.exchange.machine import ExchangeMachine

PROGRESS_EVERY_S = 0.25


class ProgressReport:
    """Emits at most one `ExchangeProgress` in `PROGRESS_EVERY_S` until all results are here, then every one."""

    def __init__(self, machine: ExchangeMachine, emit: Callable[[Event], None]) -> None:
        self._machine, self._emit = machine, emit
        self._begun = trio.current_time()
        self._seconds: float | None = None
        self._shown = -1.0

    def complete(self) -> None:
        """All results are here: the time that the exchange took is fixed."""
        self._seconds = trio.current_time() - self._begun

    def show(self) -> None:
        """Say how far it is, unless that was said just now."""
        now = trio.current_time()
        if now - self._shown >= PROGRESS_EVERY_S or self._seconds is not None:
            self._shown = now
            self._emit(
                ExchangeProgress(
                    self._machine.plan.round,
                    len(self._machine.entries),
                    self._machine.chunks,
                    list(self._machine.waiting_for()),
                )
            )

    def finish(self, up_bytes: int, down_bytes: int) -> None:
        """The exchange ends here, with all results or without."""
        seconds = trio.current_time() - self._begun if self._seconds is None else self._seconds
        self._emit(ExchangeFinished(self._machine.plan.round, seconds, up_bytes, down_bytes))
