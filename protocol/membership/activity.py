"""Activity of this peer, as its heartbeats and its status show it: phase, reason, sentence, and measured loss."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.wire.presence import Measurement, Phase

# ------------------------------------------------------------------------------------------------------------------------
# Pause of the computing at the user's wish.


class Pause:
    """Switch for a pause, off at first.  `wait` returns as soon as it is off."""

    def __init__(self) -> None:
        self.on = False
        self._over = trio.Event()

    def begin(self) -> None:
        """Switch on; do nothing if it is on."""
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
"""Phases that follow from statements that other peers get anyway.  Any other phase they need to hear of at once."""


class Activity:
    """Activity of this peer: components set it; heartbeats and status read it.

    measured: the held-out loss to tell the others.  emit: gets a `PhaseChanged` for each change.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, ""
        self._beneath = self.phase, self.why, self.detail
        """Activity of this peer if it were not paused."""
        self.measured: Measurement | None = None
        self.was_away = True
        """True if we were restarted, frozen or suspended, with no record made since: others may have gone on without us."""
        self._urgent = trio.Event()

    @property
    def beneath(self) -> Phase:
        """Phase of this peer, or its phase if it were not paused."""
        return self._beneath[0]

    def note_away(self) -> None:
        """Note that we were frozen or suspended: others may have gone on without us."""
        self.was_away = True

    def note_record(self) -> bool:
        """Note that a record was made with us here; return True if we had been away before."""
        was_away, self.was_away = self.was_away, False
        return was_away

    def tell_measured(self, measured: Measurement | None) -> None:
        """Tell the others this held-out loss from now on, or none."""
        self.measured = measured

    def show(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        """Set our activity.  During a pause only another reason for it, or `STOPPING`, is shown at once."""
        if self.phase is Phase.STOPPING:
            return
        if phase is not Phase.PAUSED:
            self._beneath = phase, why, detail
        if self.phase is not Phase.PAUSED or phase in (Phase.PAUSED, Phase.STOPPING):
            self._change(phase, why, detail)

    def resume(self) -> None:
        """End the pause: show the activity that it has hidden."""
        if self.phase is Phase.PAUSED:
            self._change(*self._beneath)

    def _change(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        if phase is not self.phase and phase not in WITHIN_A_ROUND:
            self.tell_now()
        if (phase, why, detail) != (self.phase, self.why, self.detail):
            self.phase, self.why, self.detail = phase, why, detail
            self._emit(PhaseChanged(phase.value, why.value, detail))

    def tell_now(self) -> None:
        """Send the next heartbeat at once, because something changed that others wait for."""
        self._urgent.set()

    async def until_urgent(self, within_s: float) -> None:
        """Return when something changed that others wait for, or after `within_s` seconds."""
        with trio.move_on_after(within_s):
            await self._urgent.wait()
        self._urgent = trio.Event()
