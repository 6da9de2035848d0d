"""Activity of this peer, for its heartbeats and its status: phase, reason, sentence, and measured loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import trio

from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.wire.identity import PeerId
from protocol.wire.presence import Measurement, Phase

# ------------------------------------------------------------------------------------------------------------------------
# The permit to compute.


class WorkPermit:
    """Permit of this peer to compute, suspended while there is a reason to rest.

    The trainer, the work with rollouts, the service to others and the shown activity watch it.
    """

    def __init__(self) -> None:
        self._reasons: dict[WhyIdle, str] = {}
        self._restored = trio.Event()
        self._watchers: list[tuple[Callable[[], None], bool]] = []

    @property
    def is_granted(self) -> bool:
        """True while there is no reason to rest."""
        return not self._reasons

    @property
    def reason(self) -> tuple[WhyIdle, str] | None:
        """The reason to show and its sentence: the user's own pause, or else the first reason; None if there is none."""
        if not self._reasons:
            return None
        why = WhyIdle.PAUSED if WhyIdle.PAUSED in self._reasons else next(iter(self._reasons))
        return why, self._reasons[why]

    def watch(self, watcher: Callable[[], None], *, sentences: bool = False) -> None:
        """Call `watcher` whenever the permit is suspended or restored, and now if it is suspended.

        sentences: True to call it also if only a reason or its sentence changes.
        """
        self._watchers.append((watcher, sentences))
        if self._reasons:
            watcher()

    def suspend(self, why: WhyIdle, detail: str) -> None:
        """Compute nothing for this reason, until `restore`.  detail: a sentence that names the end of the rest."""
        was_granted = self.is_granted
        self._reasons[why] = detail
        if was_granted:
            self._restored = trio.Event()
        self._tell(is_turn=was_granted)

    def restore(self, why: WhyIdle) -> None:
        """Remove this reason; compute again unless another one remains."""
        if self._reasons.pop(why, None) is not None:
            if self.is_granted:
                self._restored.set()
            self._tell(is_turn=self.is_granted)

    async def granted(self) -> None:
        """Wait until there is no reason to rest."""
        while self._reasons:
            await self._restored.wait()

    def _tell(self, *, is_turn: bool) -> None:
        for watcher, sentences in self._watchers:
            if is_turn or sentences:
                watcher()


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
    permit: while it is suspended, the phase is `PAUSED`, except at the end.
    """

    def __init__(self, emit: Callable[[Event], None], permit: WorkPermit | None = None) -> None:
        self._emit = emit
        self.permit = permit if permit is not None else WorkPermit()
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, ""
        self._work = self.phase, self.why, self.detail
        """Activity that this peer has, or would have without a rest."""
        self._stall: tuple[WhyIdle, str] | None = None
        """Reason why our trainer waits while a round is agreed on, with a sentence."""
        self._trains_on, self._busy = False, ""
        self._refusal, self._is_admitted = "", False
        self.measured: Measurement | None = None
        self.aside: list[PeerId] = []
        self.was_away = True
        """True if we were restarted, frozen, suspended or cut off and no record was made since: others may have continued
        without us."""
        self.bound = 0
        """Number of our first rounds that we cannot give up, because our votes bind us to a provisional record."""
        self.back_at = -inf
        """Time (trio) at which this process continued after it was last frozen or suspended."""
        self._urgent = trio.Event()
        self.permit.watch(self._change, sentences=True)

    @property
    def beneath(self) -> Phase:
        """Phase of this peer, or the phase that it would have without a rest."""
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

    def tell_aside(self, peers: Sequence[PeerId]) -> None:
        """Name these members as set aside in our heartbeats from now on."""
        self.aside = list(peers)

    def show(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        """Set our activity; while the permit is suspended, only `STOPPING` is shown at once, other phases afterwards."""
        if self.phase is not Phase.STOPPING:
            self._work, self._stall = (phase, why, detail), None
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
        phase, why, detail = self._work
        if (rest := self.permit.reason) is not None and phase is not Phase.STOPPING:
            phase, why, detail = Phase.PAUSED, rest[0], rest[1][:200]
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
