"""Announcements of this peer about itself: its heartbeats, and its goodbye.

A heartbeat goes out every few seconds, and soon after a change that others wait for.  It never follows the last one at once:
every peer reads each heartbeat, and a peer that greets us a hundred times must not make us speak a hundred times to all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from protocol.chain.history import History
from protocol.events.status import SwarmPeer
from protocol.membership.activity import Activity
from protocol.membership.liveness import Liveness, Membership
from protocol.run.settings import NodeSettings
from protocol.trainer_link import Progress
from protocol.transport.interface import NetworkError, Session
from protocol.wire.identity import PeerId
from protocol.wire.presence import Goodbye, Heartbeat, Phase, WhyIdle

# ------------------------------------------------------------------------------------------------------------------------
# Training speed of this peer: the last known rate, kept from round to round, and the time left that follows from it.


class Pace:
    """Training speed of this peer.

    tokens_per_s: 0 before the first inner step of this life.  tokens_per_step: tokens of one inner step.
    """

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self.tokens_per_s = 0.0

    def observe(self, progress: Progress) -> None:
        """Take note of an inner step."""
        self.tokens_per_s = progress.tokens_per_s

    def left_s(self, steps: int) -> float | None:
        """Return the seconds for so many more inner steps; None while no rate is known."""
        return max(0, steps) * self._tokens_per_step / self.tokens_per_s if self.tokens_per_s > 0 else None


# ------------------------------------------------------------------------------------------------------------------------


SOONEST = 0.1
"""Shortest pause between two heartbeats, whatever changes, as a fraction of the usual interval."""
GOODBYE_S = 2.0
"""Seconds for the goodbye to all peers together: a peer that does not confirm it by then misses our heartbeats later."""


class RoundProgress(Protocol):
    """Progress of our compute in the running round; zeros and no READY between rounds."""

    @property
    def steps(self) -> int:
        """Inner steps done."""
        ...

    @property
    def loss(self) -> float:
        """Mean loss so far, nats a token."""
        ...

    @property
    def ready_raw(self) -> bytes:
        """Our READY as it was sent; empty before."""
        ...


class Heartbeats:
    """Sender of our heartbeats and goodbye.  generating: returns tokens a second of a rollout peer, which does not train."""

    def __init__(
        self,
        session: Session,
        settings: NodeSettings,
        history: History,
        membership: Membership,
        pace: Pace,
        activity: Activity,
        progress: RoundProgress,
        generating: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._session, self._settings, self._history = session, settings, history
        self._membership, self._pace, self._activity, self._progress = membership, pace, activity, progress
        self._generating, self._seq = generating, 0

    async def run(self) -> None:
        """Publish heartbeats until cancelled.  READY is sent again with every beat, because gossip may lose it."""
        while True:
            await self._session.publish(self._heartbeat())
            if self._progress.ready_raw:
                await self._session.network.publish(self._progress.ready_raw)
            beat_s = self._membership.beat_s
            await trio.sleep(SOONEST * beat_s)
            await self._activity.until_urgent((1 - SOONEST) * beat_s)

    async def say_goodbye(self) -> int:
        """Say goodbye to all peers by gossip, and to connected peers also by request; return how many of these confirmed it.

        The connections close next, and gossip that is still on its way would be lost with them.
        """
        network = self._session.network
        raw = self._session.seal(Goodbye(incarnation=self._settings.incarnation, seq=self._seq + 1)).raw
        heard: list[PeerId] = []

        async def tell(peer: PeerId) -> None:
            with suppress(NetworkError):
                await network.request(peer, "goodbye", raw, timeout_s=GOODBYE_S)
                heard.append(peer)

        with trio.move_on_after(GOODBYE_S):
            await network.publish(raw)
            async with trio.open_nursery() as nursery:
                for peer in network.connected():
                    nursery.start_soon(tell, peer)
        return len(heard)

    @property
    def tokens_per_s(self) -> float:
        """Last known rate, as a round that has just begun has none of its own.  0 while paused."""
        return 0.0 if self._activity.phase is Phase.PAUSED else self._pace.tokens_per_s + self._generating()

    def _heartbeat(self) -> Heartbeat:
        settings, history, activity = self._settings, self._history, self._activity
        bandwidth = self._session.network.bandwidth()
        rests = activity.phase is Phase.PAUSED  # the reason, and the user's hours, are private
        self._seq += 1
        return Heartbeat(
            incarnation=settings.incarnation,
            seq=self._seq,
            name=settings.name[:40],
            role=settings.role,
            phase=activity.phase,
            why_idle=WhyIdle.PAUSED if rests else activity.why,
            round=history.length,
            tip=history.tip,
            steps=self._progress.steps,
            loss=self._progress.loss,
            tokens_per_s=self.tokens_per_s,
            up_bytes_per_s=bandwidth.up_bytes_per_s,
            down_bytes_per_s=bandwidth.down_bytes_per_s,
            addresses=list(self._session.network.addresses())[:8],
            version=settings.version[:40],
            was_away=activity.was_away,
            measured=activity.measured,
            admission=b"" if history.has_member(self._session.me) else settings.admission,
        )

    def neighbours(self) -> list[SwarmPeer]:
        """Return the other peers, as `peer status` shows them; unproven peers only if they are members."""
        now = trio.current_time()
        return [
            SwarmPeer(
                peer=peer,
                name=known.heartbeat.name,
                role=known.heartbeat.role.value,
                phase=known.heartbeat.phase.value,
                round=known.heartbeat.round,
                steps=known.heartbeat.steps,
                tokens_per_s=known.heartbeat.tokens_per_s,
                liveness=known.liveness.value,
                heard_s=now - known.heard,
                version=known.heartbeat.version,
                addresses=list(known.heartbeat.addresses),
                link=self._session.network.link(peer),
            )
            for peer, known in sorted(self._membership, key=lambda item: item[0])
            if known.liveness is not Liveness.UNPROVEN or self._membership.has_member(peer)
        ]
