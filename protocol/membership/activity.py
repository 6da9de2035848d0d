"""Activity of this peer, for its heartbeats and its status: phase, reason, sentence, and measured loss."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import trio

from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.wire.presence import Measurement, Phase

# ------------------------------------------------------------------------------------------------------------------------
# Pause of the training on the user's request.


class Pause:
    """Switch for a pause, initially off.  `wait` returns once the switch is off."""

    def __init__(self) -> None:
        self.on = False
        self._over = trio.Event()

    def begin(self) -> None:
        """Switch the pause on; do nothing if it is on."""
        if not self.on:
            self.on, self._over = True, trio.Event()

    def end(self) -> None:
        """Switch the pause off."""
        self.on = False
        self._over.set()

    async def wait(self) -> None:
        """Wait until the pause is off."""
        while self.on:
            await self._over.wait()


# ------------------------------------------------------------------------------------------------------------------------


WITHIN_A_ROUND = frozenset({Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases that other peers can infer from other statements.  They must be told of any other phase at once."""


TRAINER_AWAITED = frozenset({Phase.STARTING, Phase.SYNCING, Phase.COMPUTING, Phase.GENERATING, Phase.VERIFYING})
"""Phases in which this peer waits for its trainer."""


PEERS_AWAITED = frozenset({WhyIdle.WAITING_FOR_PEERS, WhyIdle.WAITING_FOR_MEMBERS})
MAX_REFUSAL_CHARS = 300


class Activity:
    """Activity of this peer, set by components, and read by heartbeats and status.

    measured: the held-out loss that our heartbeats report.  emit: called with a `PhaseChanged` for each change.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, ""
        self._work = self.phase, self.why, self.detail
        """Activity that this peer has, or would have without a pause."""
        self._pause: tuple[Phase, WhyIdle, str] | None = None
        self._stall: tuple[WhyIdle, str] | None = None
        """Reason why our trainer waits while a round is agreed on, with a sentence."""
        self._trains_on, self._busy = False, ""
        self._refusal, self._is_admitted = "", False
        self.measured: Measurement | None = None
        self.was_away = True
        """True if we were restarted, frozen, suspended or cut off and no record was made since: others may have continued
        without us."""
        self.bound = 0
        """Number of our first rounds that we cannot give up, because our votes bind us to a provisional record."""
        self.back_at = -inf
        """Time (trio) at which this process continued after it was last frozen or suspended."""
        self._urgent = trio.Event()

    @property
    def beneath(self) -> Phase:
        """Phase of this peer, or the phase that it would have without a pause."""
        return self._work[0]

    def note_away(self, *, slept: bool) -> None:
        """Note that others may have continued without us: we slept (frozen, suspended), or long heard no member."""
        self.was_away = True
        if slept:
            self.back_at = trio.current_time()

    def note_present(self) -> None:
        """Note that a record was made while we were present, or that a lock of ours forbids us to leave our tip."""
        self.was_away = False

    def note_bound(self, rounds: int) -> None:
        """Note that our votes forbid us to give up the first `rounds` rounds, which are not all final."""
        self.bound = rounds

    def tell_measured(self, measured: Measurement | None) -> None:
        """Report this held-out loss in our heartbeats from now on; None to report no loss."""
        self.measured = measured

    def show(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        """Set our activity; during a pause, show only `PAUSED` or `STOPPING` at once, and the rest after the pause."""
        if self.phase is Phase.STOPPING:
            return
        if phase is Phase.PAUSED:
            self._pause = phase, why, detail
        else:
            self._work, self._stall = (phase, why, detail), None
            self._pause = None if phase is Phase.STOPPING else self._pause
        self._change()

    def resume(self) -> None:
        """End the pause, and show the activity that it has hidden."""
        self._pause = None
        self._change()

    def train_on(self, on: bool) -> None:
        """Note whether we train while a round is agreed on: then no step of the agreement is a reason to be idle."""
        if on is not self._trains_on:
            self._trains_on, self._stall = on, None
            self._change()

    def stall(self, why: WhyIdle, detail: str) -> None:
        """Show the reason why our trainer waits, instead of the stage of the round that runs beside the training."""
        if self.phase in WITHIN_A_ROUND:
            self._stall = why, detail
            self._change()
        else:
            self.show(Phase.COMPUTING, why, detail)

    def end_stall(self) -> None:
        """Show that our trainer continues."""
        if self.phase in WITHIN_A_ROUND:
            self._stall = None
            self._change()
        else:
            self.show(Phase.COMPUTING, WhyIdle.BUSY, "")

    def note_load(self, busy: str) -> None:
        """Show that our trainer is late because this computer is too busy.  busy: a sentence; empty if it is not."""
        self._busy = busy
        self._change()

    def note_greeted(self, refusal: str | None) -> None:
        """Note the answer to a greeting; until a peer accepts us, show the newest refusal as the reason for our wait."""
        self._is_admitted = self._is_admitted or refusal is None
        shown = "".join(each for each in refusal or "" if each.isprintable())[:MAX_REFUSAL_CHARS]
        self._refusal = "" if self._is_admitted else shown
        self._change()

    def _change(self) -> None:
        """Show the activity that follows from all notes, and emit an event if the activity has changed."""
        phase, why, detail = self._pause or self._work
        if phase in WITHIN_A_ROUND and self._stall is not None:
            why, detail = self._stall
        elif phase in WITHIN_A_ROUND and self._trains_on:
            why = WhyIdle.BUSY
        if self._refusal and (phase in (Phase.STARTING, Phase.SYNCING) or why in PEERS_AWAITED):
            why, detail = WhyIdle.CONNECTING, f"no peer has admitted this one: {self._refusal}"
        elif self._busy and phase in TRAINER_AWAITED:
            why, detail = WhyIdle.COMPUTER_BUSY, self._busy
        if phase is not self.phase and phase not in WITHIN_A_ROUND:
            self.tell_now()
        if (phase, why, detail) != (self.phase, self.why, self.detail):
            self.phase, self.why, self.detail = phase, why, detail
            self._emit(PhaseChanged(phase.value, why.value, detail))

    def tell_now(self) -> None:
        """Request the next heartbeat soon, because of a change for which other peers wait."""
        self._urgent.set()

    async def until_urgent(self, within_s: float) -> None:
        """Wait for a change for which other peers wait, but for at most `within_s` seconds."""
        with trio.move_on_after(within_s):
            await self._urgent.wait()
        self._urgent = trio.Event()
