"""Following peers that are ahead of us: whose claims are believed, and which forks were judged already.

A heartbeat can claim any tip.  A peer that claims to be ahead and cannot show it with certified records is not believed for
a while, longer each time.  `protocol.sync.catch_up` fetches the records and the state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import trio

from protocol.events import Dropped, Notice, RolledBack
from protocol.membership.liveness import Membership
from protocol.network.interface import NetworkError
from protocol.network.session import Session
from protocol.state.disk import StoreFailed
from protocol.state.replica import Replica
from protocol.sync.catch_up import CatchUp, Followed
from protocol.sync.standpoints import Standpoints
from protocol.trainer_link import TrainerDied, TrainerGaveUp
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId

MAX_JUDGED = 1024
"""Tips remembered as lost forks or malformed chains; peers remembered as not believed."""
FOLLOW_AT_ONCE = 4
DISBELIEF_S = 5.0
MAX_DISBELIEF_S = 600.0
WAIT_S = 2.0
"""Until a provisional record that we did not take over is looked at again: who is heard changes."""
HOPE_S = 60.0
"""A newcomer waits for a chain that is claimed until its claimant has failed to show it for about so long."""
OURS = (StoreFailed, TrainerDied, TrainerGaveUp)
"""What can fail meanwhile that has nothing to do with the peer that is followed."""
T = TypeVar("T")


class Watching(Protocol):
    """What catches failures while a remote statement is handled (`protocol.node.guard`)."""

    def watch(
        self, sender: PeerId, what: str, *, passing: tuple[type[Exception], ...]
    ) -> AbstractContextManager[object, bool]:
        """A context that ends early when the statement of `sender` makes its handler raise; `passing` goes through."""
        ...


class Following:
    """Compares live peers' tips, as their heartbeats say, with our chain."""

    def __init__(
        self,
        session: Session,
        guard: Watching,
        replica: Replica,
        membership: Membership,
        catch_up: CatchUp,
        standpoints: Standpoints,
    ) -> None:
        self._session, self._guard, self._replica = session, guard, replica
        self._membership, self._catch_up, self._standpoints = membership, catch_up, standpoints
        self._judged: dict[bytes, None] = {}
        self._disbelieved: dict[PeerId, tuple[float, float]] = {}

    def rounds_of(self, peer: PeerId) -> int:
        """How many rounds a peer's last heartbeat claims."""
        known = self._membership.get(peer)
        return known.heartbeat.round if known else 0

    def ahead(self) -> list[PeerId]:
        """Live, believed peers whose tip is not in our chain, and is not one we judged; the longest chain first."""
        history, peers, now = self._replica.history, [], trio.current_time()
        for peer in self._membership.live_peers():
            known = self._membership.get(peer)
            assert known is not None
            rounds, tip = known.heartbeat.round, known.heartbeat.tip
            if tip in self._judged or (rounds == 0 and history.length > 0):
                continue
            if now < self._disbelieved.get(peer, (0.0, 0.0))[0]:
                continue
            if rounds > history.length or history.tip_at(rounds) != tip:
                peers.append(peer)
        return sorted(peers, key=self.rounds_of, reverse=True)

    def has_news(self) -> bool:
        """Whether others have gone on without us, or we without them."""
        return bool(self.ahead()) or self.back_to() is not None

    def back_to(self) -> int | None:
        """The round whose provisional record, and all after it, we should give up."""
        return self._standpoints.back_to()

    async def go_back(self) -> None:
        """Give up provisional records that most of their electors, as they are heard now, do not stand on."""
        rounds = self.back_to()
        if rounds is not None:
            await self._catch_up.go_back(rounds)

    def hopes(self) -> bool:
        """Whether somebody who is not believed just now may still show the way to a peer that has no record at all."""
        for peer in self._membership.live_peers():
            known = self._membership.get(peer)
            patience = self._disbelieved.get(peer, (0.0, 0.0))[1]
            if known and known.heartbeat.round > 0 and known.heartbeat.tip not in self._judged and patience < HOPE_S:
                return True
        return False

    async def follow(self) -> None:
        """Take over, or judge, the chains of those ahead."""
        for peer in self.ahead()[:FOLLOW_AT_ONCE]:
            followed = await self._look(peer, self._catch_up.follow)
            if followed in (Followed.EXTENDED, Followed.SWITCHED):
                self._disbelieved.pop(peer, None)
            elif followed is Followed.WAITING:
                self._disbelieved[peer] = (trio.current_time() + WAIT_S, 0.0)
            else:
                self._disbelieve(peer)
            if followed is Followed.KEPT:
                self._judge(peer)

    async def scout(self) -> bool:
        """Whether somebody ahead has certified records that we lack, or a fork that wins over ours."""
        for peer in self.ahead()[:FOLLOW_AT_ONCE]:
            if await self._look(peer, self._catch_up.scout):
                return True
            self._disbelieve(peer)
        return False

    async def _look(self, peer: PeerId, look: Callable[[PeerId], Awaitable[T]]) -> T | None:
        with self._guard.watch(peer, "chain", passing=OURS):
            try:
                return await look(peer)
            except NetworkError as error:
                self._session.emit(Notice("debug", f"could not follow {peer}: {error}"))
            except Malformed as error:
                self._judge(peer)
                self._session.emit(Dropped(peer, "chain", str(error)))
        return None

    async def give_up_what_is_lost(self, since: float) -> None:
        """Records whose results nobody alive has lead nowhere: after the eviction time, go back to the last state that
        can be reached.  Should somebody who has them come back, the fork is judged as any other."""
        reached, length = self._replica.state.rounds, self._replica.history.length
        if trio.current_time() - since <= self._replica.rounds.eviction_s or reached >= length:
            return
        if not any(self.rounds_of(peer) > reached for peer in self._membership.live_peers()):
            await self._catch_up.offload(self._replica.history.roll_back, reached)
            self._session.emit(RolledBack(reached, length - reached, ""))

    def _judge(self, peer: PeerId) -> None:
        known = self._membership.get(peer)
        if known is not None:
            if len(self._judged) >= MAX_JUDGED:
                self._judged.pop(next(iter(self._judged)))
            self._judged[known.heartbeat.tip] = None

    def _disbelieve(self, peer: PeerId) -> None:
        """What it claims is not looked at again for a while, twice as long as the last time."""
        _, patience = self._disbelieved.pop(peer, (0.0, DISBELIEF_S / 2))
        patience = min(patience * 2, MAX_DISBELIEF_S)
        if len(self._disbelieved) >= MAX_JUDGED:
            self._disbelieved.pop(next(iter(self._disbelieved)))
        self._disbelieved[peer] = (trio.current_time() + patience, patience)
