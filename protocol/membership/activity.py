"""What this peer is doing, as its heartbeats and its status say: phase, reason, sentence, and the loss that it measured."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.events.events import Event, PhaseChanged
from protocol.wire.presence import Measurement, Phase, WhyIdle

# ------------------------------------------------------------------------------------------------------------------------
# Whether computing rests because the user said so.


class Pause:
    """A switch, off at first.  `wait` returns as soon as it is off."""

    def __init__(self) -> None:
        self.on = False
        self._over = trio.Event()

    def begin(self) -> None:
        """Switch on; nothing if it is on."""
        if not self.on:
            self.on, self._over = True, trio.Event()

    def end(self) -> None:
        """Switch off."""
        self.on = False
        self._over.set()

    async def wait(self) -> None:
        """Return at once when off, else as soon as it is switched off."""
        while self.on:
            await self._over.wait()


# ------------------------------------------------------------------------------------------------------------------------


WITHIN_A_ROUND = frozenset({Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases that follow from statements the others get anyway.  The others need to hear at once of every other phase."""


class Activity:
    """Components show here what they do; heartbeats and status read it.

    measured: the held-out loss to tell the others.  emit: gets a `PhaseChanged` for each change.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, ""
        self._beneath = self.phase, self.why, self.detail
        """What it would be doing if it were not paused."""
        self.measured: Measurement | None = None
        self.was_away = True
        """Whether we were restarted, frozen or suspended, with no record made since: others may have gone on without us."""
        self._urgent = trio.Event()

    @property
    def beneath(self) -> Phase:
        """What it does, or would be doing if it were not paused."""
        return self._beneath[0]

    def show(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        """From now on this is what we do.  While paused only other reasons for it and `STOPPING` are shown at once."""
        if self.phase is Phase.STOPPING:
            return
        if phase is not Phase.PAUSED:
            self._beneath = phase, why, detail
        if self.phase is not Phase.PAUSED or phase in (Phase.PAUSED, Phase.STOPPING):
            self._change(phase, why, detail)

    def resume(self) -> None:
        """The pause is over: we do what we would have done without it."""
        if self.phase is Phase.PAUSED:
            self._change(*self._beneath)

    def _change(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        if phase is not self.phase and phase not in WITHIN_A_ROUND:
            self.tell_now()
        if (phase, why, detail) != (self.phase, self.why, self.detail):
            self.phase, self.why, self.detail = phase, why, detail
            self._emit(PhaseChanged(phase.value, why.value, detail))

    def tell_now(self) -> None:
        """Something changed that others wait for: the next heartbeat goes out at once."""
        self._urgent.set()

    async def until_urgent(self, within_s: float) -> None:
        """Return when something changed that others wait for, or after `within_s` seconds."""
        with trio.move_on_after(within_s):
            await self._urgent.wait()
        self._urgent = trio.Event()
