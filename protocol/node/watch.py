"""The clock of a node: it judges silence, and ends a round that the swarm finished without us."""

from __future__ import annotations

import trio

from protocol.membership.activity import Activity
from protocol.membership.liveness import Liveness, Membership
from protocol.network.session import Session
from protocol.node.current_round import CurrentRound
from protocol.node.round_runner import Behind, RoundRunner
from protocol.state.base import RoundSettings
from protocol.sync.following import Following
from protocol.wire.identity import PeerId

TICK_S = 0.25
SYNC_AFTER_S = 3.0
"""How long a peer may be ahead before we stop waiting for the commit message and fetch the records."""
LAG_S = 0.5
"""The same when we take part in no exchange, so that no commit message is on its way to us."""


class Watch:
    """Ticks four times a second."""

    def __init__(
        self,
        session: Session,
        rounds: RoundSettings,
        membership: Membership,
        activity: Activity,
        following: Following,
        current: CurrentRound,
    ) -> None:
        self._session, self._rounds, self._membership, self._activity = session, rounds, membership, activity
        self._following, self._current = following, current
        self._ahead: tuple[RoundRunner, float] | None = None
        """The round in which a peer was first seen ahead, and since when."""
        self._scouting = False

    async def run(self, nursery: trio.Nursery) -> None:
        """Until cancelled.  nursery: where it is looked whether a peer is ahead indeed."""
        last = trio.current_time()
        while True:
            now = trio.current_time()
            if now - last >= self._rounds.eviction_s:
                self._activity.was_away = True  # frozen: the others may have gone on without us
            last = now
            before = {peer: known.liveness for peer, known in self._membership}
            for event in self._membership.tick(now):
                self._session.emit(event)
            self._tell_round(before)
            self._notice_ahead(now, nursery)
            await trio.sleep(TICK_S)

    def _tell_round(self, before: dict[PeerId, Liveness]) -> None:
        for peer, known in self._membership:
            if known.liveness is not before.get(peer) and known.liveness is not Liveness.ALIVE:
                self._current.peer_dead(peer)

    def _notice_ahead(self, now: float, nursery: trio.Nursery) -> None:
        """A round that the swarm finished without us is not worth going on with."""
        runner = self._current.runner
        if runner is not None and not runner.deciding and self._following.back_to() is not None:
            runner.end(Behind())
        elif runner is None or runner.deciding or not self._following.ahead():
            self._ahead = None
        elif self._ahead is None or self._ahead[0] is not runner:
            self._ahead = runner, now
        elif now - self._ahead[1] > (SYNC_AFTER_S if runner.exchanges.any else LAG_S) and not self._scouting:
            self._scouting = True
            nursery.start_soon(self._scout, runner)

    async def _scout(self, runner: RoundRunner) -> None:
        """Any peer can claim to be ahead: the round ends only for a certified record."""
        try:
            if await self._following.scout() and not runner.deciding:
                runner.end(Behind())
        finally:
            self._scouting = False
