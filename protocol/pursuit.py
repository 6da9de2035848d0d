"""Who is ahead of us, and following them: which chains are looked at, and which were judged already.

The looking itself, and the state, are `protocol.catch_up`'s.
"""

from __future__ import annotations

import trio

from protocol.canonical import Malformed
from protocol.catch_up import CatchUp, Followed
from protocol.events import Dropped, Notice, RolledBack
from protocol.identity import PeerId
from protocol.network import NetworkError
from protocol.parts import Parts

MAX_JUDGED = 1024
"""Tips remembered as lost forks or malformed chains."""
FOLLOW_AT_ONCE = 4


class Pursuit:
    """Compares live peers' tips, as their heartbeats say, with our chain."""

    def __init__(self, parts: Parts, catch_up: CatchUp) -> None:
        self._parts, self._catch_up = parts, catch_up
        self._judged: dict[bytes, None] = {}

    def rounds_of(self, peer: PeerId) -> int:
        """How many rounds a peer's last heartbeat claims."""
        known = self._parts.membership.get(peer)
        return known.heartbeat.round if known else 0

    def ahead(self) -> list[PeerId]:
        """Live peers whose tip is not in our chain, and is not one we judged; the longest chain first."""
        history, peers = self._parts.history, []
        for peer in self._parts.membership.live_peers():
            known = self._parts.membership.get(peer)
            assert known is not None
            rounds, tip = known.heartbeat.round, known.heartbeat.tip
            if tip in self._judged or (rounds == 0 and history.length > 0):
                continue
            if rounds > history.length or history.tip_at(rounds) != tip:
                peers.append(peer)
        return sorted(peers, key=self.rounds_of, reverse=True)

    async def follow(self) -> None:
        """Take over, or judge, the chains of those ahead."""
        for peer in self.ahead()[:FOLLOW_AT_ONCE]:
            await self._follow_one(peer)

    async def _follow_one(self, peer: PeerId) -> None:
        known = self._parts.membership.get(peer)
        if known is None:
            return
        tip = known.heartbeat.tip
        try:
            followed = await self._catch_up.follow(peer)
        except NetworkError as error:
            self._parts.emit(Notice("debug", f"could not follow {peer}: {error}"))
        except Malformed as error:
            self._judge(tip)
            self._parts.emit(Dropped(peer, "chain", str(error)))
        else:
            if followed is Followed.KEPT:
                self._judge(tip)

    async def give_up_what_is_lost(self, since: float) -> None:
        """Records whose results nobody alive has lead nowhere: after the eviction time, go back to the last state that
        can be reached.  Should somebody who has them come back, the fork is judged as any other."""
        parts = self._parts
        reached, length = parts.state.rounds, parts.history.length
        if trio.current_time() - since <= parts.rounds.eviction_s or reached >= length:
            return
        if not any(self.rounds_of(peer) > reached for peer in parts.membership.live_peers()):
            await parts.offload(parts.history.roll_back, reached)
            parts.emit(RolledBack(reached, length - reached, ""))

    def _judge(self, tip: bytes) -> None:
        if len(self._judged) >= MAX_JUDGED:
            self._judged.pop(next(iter(self._judged)))
        self._judged[tip] = None
