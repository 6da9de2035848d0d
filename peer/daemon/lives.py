"""Sequence of a peer's stays in its run; between two stays, a full disk or a used-up quota keeps the peer away."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from peer.daemon.participation import Participation
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.paths import run_dir
from peer.resources.room import DiskRoom
from peer.rests.keeper import Rest, in_a_thread
from peer.rests.reasons import MonthlyQuota, MonthTraffic, TimedPause
from peer.rests.sensors import Sensors
from protocol.disk import StoreFull
from protocol.events.events import Event, PhaseChanged
from protocol.events.status import NodeStatus, WhyIdle
from protocol.node.node import Node
from protocol.transport.nat.reachability import AddressVerdict
from protocol.wire.identity import Identity
from protocol.wire.presence import Phase

# ------------------------------------------------------------------------------------------------------------------------
# Reasons to stay out of a run for a while: a full disk, or a month's quota that is used up.
#
# The peer leaves, so that no peer waits for it and nothing large is transferred.  It joins again when the reason is gone.


LOOK_S = 5.0
SHORT_S = 600.0
"""Seconds below which a stay counts as short: after two short stays in a row that a full disk ended, waits get longer."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0


def full_disk(error: BaseException) -> Rest | None:
    """Return the reason to rest after this error, which may be a group; None if no disk is full."""
    if isinstance(error, BaseExceptionGroup):
        return next((rest for inner in error.exceptions if (rest := full_disk(inner)) is not None), None)
    if isinstance(error, StoreFull):
        sentence = str(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"the disk that holds {error.filename}" if error.filename else "a disk"
        sentence = f"{where} is full: make room there"
    else:
        return None
    return Rest(WhyIdle.DISK_FULL, f"{sentence}; the peer resumes by itself when there is room")


class Away:
    """Decision on the time to join again.

    state: returns the run's folder, the bytes of a state (0 while unknown), and those of the files in place of memory.
    """

    def __init__(self, quota: MonthlyQuota, room: DiskRoom, state: Callable[[], tuple[Path, int, int]]) -> None:
        self._quota, self._room, self._state = quota, room, state
        self._changed = trio.Event()
        self._short_stays = 0

    def look_now(self) -> None:
        """Check the reason again at once, because a setting has changed."""
        self._changed.set()

    def stayed(self, seconds: float) -> None:
        """Record the length of a stay that a full disk ended."""
        self._short_stays = self._short_stays + 1 if seconds < SHORT_S else 0

    async def until_over(self, rest: Rest, tell: Callable[[Rest], None]) -> None:
        """Wait until nothing keeps the peer away.  tell: called with each new reason or sentence."""
        wait_s = FIRST_WAIT_S * 2 ** (self._short_stays - 2) if self._short_stays > 1 else 0.0
        earliest = trio.current_time() + (min(wait_s, LONGEST_WAIT_S) if rest.why is WhyIdle.DISK_FULL else 0.0)
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()
                earliest = 0.0
            found = await self.reason()
            if found is not None and found != rest:
                rest = found
                tell(rest)
            elif found is None and trio.current_time() >= earliest:
                return

    async def reason(self) -> Rest | None:
        """Return the present reason to stay away, as far as it can be detected outside the run."""
        rest = await self._quota.rest()
        if rest is not None:
            return rest
        folder, state_bytes, scratch_bytes = self._state()
        if not state_bytes:
            return None
        problem = await trio.to_thread.run_sync(self._room.problem, folder, state_bytes, scratch_bytes)
        return full_disk(StoreFull(problem)) if problem else None


# ------------------------------------------------------------------------------------------------------------------------


class Lives:
    """All stays of a peer, in `run`.  part: the present stay, or the last one.  traffic: traffic of the present month."""

    def __init__(
        self, settings: DaemonSettings, identity: Identity, choice: RunChoice, emit: Callable[[Event], None]
    ) -> None:
        self._settings, self._identity, self._emit = settings, identity, emit
        self._folder = run_dir(settings.data_dir, choice.run)
        live = settings.live
        live.on_change(self._apply)
        self._room = DiskRoom(settings.data_dir, lambda: live.now.max_disk)
        self.traffic = MonthTraffic(settings.data_dir)
        self._quota = MonthlyQuota(self.traffic, in_a_thread(Sensors().now), lambda: live.now.monthly_quota)
        self._away = Away(self._quota, self._room, self._state)
        self._rest: Rest | None = None
        """Reason to stay away or to leave."""
        self._is_away, self._leaving = False, False
        self._paused: TimedPause | None = None
        self._moved = (0, 0)
        """Bytes sent and received in earlier stays."""
        self.part = self._participation(choice)

    def _participation(self, choice: RunChoice) -> Participation:
        return Participation(self._settings, self._identity, choice, self._room, self._emit)

    async def run(self, opened: Callable[[], None]) -> None:
        """Run until the peer has left for good; `opened` is called whenever the network listens.  Raises PeerError."""
        self._rest = await self._quota.rest()
        while True:
            if self._rest is None:
                await self._stay(opened)
            if self._rest is None or self._leaving:
                return
            await self._stay_away(self._rest)
            self._rest = None
            self.part = self._participation(self.part.choice)

    async def _stay(self, opened: Callable[[], None]) -> None:
        """Stay in the run until the peer has left for good, or until it must stay away; set the reason as `_rest`."""
        part, begun = self.part, trio.current_time()
        if self._paused is not None:
            part.pause(self._paused.detail(time.time()))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._quota.watch, partial(_line_bytes, part), partial(self._spent, part, nursery.cancel_scope)
                )
                await part.run(opened)
                nursery.cancel_scope.cancel()
        except Exception as error:
            self._rest = full_disk(error)
            if self._rest is None or self._leaving:
                raise
            self._away.stayed(trio.current_time() - begun)

    def _spent(self, part: Participation, stay: trio.CancelScope, rest: Rest) -> None:
        """Leave because the month's quota is used up."""
        self._rest = rest
        if not part.leave(at_once=True):
            stay.cancel()

    async def _stay_away(self, rest: Rest) -> None:
        known = self.part.status()
        self._moved = (self._moved[0] + known.up_bytes, self._moved[1] + known.down_bytes)
        self._is_away = True
        self._tell(rest)
        await self._away.until_over(rest, self._tell)
        self._is_away = False
        self._emit(PhaseChanged(Phase.STARTING.value, WhyIdle.STARTING.value, "joining anew"))

    def _tell(self, rest: Rest) -> None:
        self._rest = rest
        self._emit(PhaseChanged(Phase.PAUSED.value, rest.why.value, rest.detail))

    def _apply(self) -> None:
        """Apply the present settings."""
        self._away.look_now()
        if not self._is_away:
            self.part.apply()

    # -- requests of the person ---------------------------------------------------------------------------------------

    def leave(self) -> bool:
        """Let the peer say goodbye; `run` then returns.  Return False if no node runs: the caller then cancels `run`."""
        self._leaving = True
        return not self._is_away and self.part.leave()

    @property
    def leaving(self) -> bool:
        """True once `leave` was called."""
        return self._leaving

    def pause(self, pause: TimedPause) -> None:
        """Compute nothing until `resume`, also in later stays."""
        self._paused = pause
        self.part.pause(pause.detail(time.time()))

    def resume(self) -> None:
        """Compute again after a pause."""
        self._paused = None
        self.part.resume()

    # -- status -------------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node | None:
        """Node of the present stay; None while the peer is not in the run."""
        return None if self._is_away else self.part.node

    @property
    def is_working(self) -> bool:
        """True while the peer may compute."""
        return not self._is_away and self.part.is_working

    @property
    def next_rest(self) -> str:
        """Description of the end of a pause, or of the rests that the settings plan; empty if there are none."""
        if self._paused is not None:
            return f"paused {self._paused.end(time.time())}"
        return self.part.next_rest

    @property
    def away(self) -> str:
        """Reason for staying out of the run, a sentence; empty if there is none."""
        return self._rest.detail if self._is_away and self._rest is not None else ""

    def status(self) -> NodeStatus:
        """Return the node's status; while away, the last status, marked as paused."""
        known = self.part.status()
        up, down = self._moved
        if not self._is_away or self._rest is None:
            return replace(known, up_bytes=up + known.up_bytes, down_bytes=down + known.down_bytes)
        return replace(
            known,
            phase=Phase.PAUSED.value,
            why_idle=self._rest.why.value,
            why_detail=self._rest.detail,
            peers=0,
            swarm=[],
            tokens_per_s=0.0,
            round_left_s=None,
            trainer_pid=None,
            up_bytes=up,
            down_bytes=down,
        )

    def addresses(self) -> list[str]:
        """Return the addresses at which this peer listens."""
        return [] if self._is_away else self.part.addresses()

    def reachability(self) -> tuple[str, dict[str, str]]:
        """Return the verdict on our reachability, and a verdict for each address."""
        return (AddressVerdict.UNKNOWN.value, {}) if self._is_away else self.part.reachability()

    def _state(self) -> tuple[Path, int, int]:
        signed = self.part.choice.signed
        stored = signed.manifest.stored_bytes if signed is not None else 0
        return self._folder, stored, self.part.scratch_bytes


def _line_bytes(part: Participation) -> int:
    """Return the bytes carried for this peer, both ways, since its network was opened."""
    return part.network.line_bytes() if part.network is not None else 0
