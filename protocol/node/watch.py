"""The clock of a node: it judges silence, starts checks of claims, and ends a round for a better branch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from protocol.chain.base import RoundSettings
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import FailureDetector
from protocol.membership.liveness import Membership
from protocol.node.current_round import CurrentRound
from protocol.node.round_runner import Behind, RoundRunner
from protocol.sync.following import Following
from protocol.transport.interface import Session

TICK_S = 0.25
SYNC_AFTER_S = 3.0
"""Seconds that a peer may be ahead before we fetch the records instead of waiting for the commit message."""
LAG_S = 0.5
"""The same in seconds if we take part in no exchange, so that no commit message is on its way to us."""


class LivenessTicker:
    """Ticks four times a second.  boot_clock: runs on while the computer is suspended."""

    def __init__(
        self,
        session: Session,
        rounds: RoundSettings,
        membership: Membership,
        detector: FailureDetector,
        activity: Activity,
        following: Following,
        current: CurrentRound,
        boot_clock: Callable[[], float],
    ) -> None:
        self._session, self._rounds, self._membership, self._activity = session, rounds, membership, activity
        self._boot_clock, self._detector = boot_clock, detector
        self._following, self._current = following, current
        self._ahead: tuple[RoundRunner | None, float] | None = None
        """The round in which a peer was first seen ahead, and the time of that."""

    async def run(self, nursery: trio.Nursery) -> None:
        """Tick until cancelled.  nursery: runs the checks of claims."""
        last, last_boot = trio.current_time(), self._boot_clock()
        while True:
            now, boot = trio.current_time(), self._boot_clock()
            if max(now - last, boot - last_boot) >= self._rounds.eviction_s:
                self._activity.was_away = True  # frozen or suspended: the others may have gone on without us
            if self._session.network.is_moving():
                self._membership.excuse(now - last, now)
            last, last_boot = now, boot
            self._detector.judge_silence(now)
            self._follow(now, nursery)
            await trio.sleep(TICK_S)

    def _follow(self, now: float, nursery: trio.Nursery) -> None:
        """Check claims beside the round.  It ends only when another branch is verified and its state is here."""
        runner, following = self._current.runner, self._following
        if runner is not None and runner.deciding:
            self._ahead = None
        elif following.move is not None:
            if runner is not None:
                runner.end(Behind())
        elif self._is_due(runner, now):
            for known in (True, False):
                wanted = following.has_claims(known=known) or (known and following.wants_back())
                if wanted and not following.is_looking(known=known):
                    nursery.start_soon(partial(following.look, known=known))

    def _is_due(self, runner: RoundRunner | None, now: float) -> bool:
        """Return True if a true claim's commit message would be here by now; between rounds none is on its way."""
        following = self._following
        if runner is None or following.wants_back():
            return True
        if not (following.has_claims(known=True) or following.has_claims(known=False)):
            self._ahead = None
            return False
        if self._ahead is None or self._ahead[0] is not runner:
            self._ahead = runner, now
        return now - self._ahead[1] > (SYNC_AFTER_S if runner.exchanges.any else LAG_S)
