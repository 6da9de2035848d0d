"""What a peer says of itself: its phase, its heartbeats, its goodbye.

A heartbeat goes out every few seconds, and at once when something changed that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from protocol.events import PhaseChanged
from protocol.membership.liveness import Membership, beat_interval_s
from protocol.membership.pace import Pace
from protocol.network.interface import NetworkError
from protocol.network.session import Session
from protocol.run.settings import NodeSettings
from protocol.state.history import History
from protocol.status import SwarmPeer
from protocol.wire.identity import PeerId
from protocol.wire.messages import Goodbye, Heartbeat, Measurement, Phase, WhyIdle

GOODBYE_S = 2.0
"""For the goodbye, to all together: who does not confirm it by then misses our heartbeats."""

WITHIN_A_ROUND = frozenset({Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases that follow from statements the others get anyway.  They need to hear at once who begins a round, or does not."""


class Doing(Protocol):
    """How far this round's compute is (`protocol.node.round_runner.Work`)."""

    steps: int
    loss: float
    ready_raw: bytes


class Pulse:
    """Speaks for this peer.  `doing` tells what the running round's compute does, None between rounds.

    measured: the held-out loss to tell the others.
    """

    def __init__(self, session: Session, settings: NodeSettings, history: History, membership: Membership,
                 pace: Pace, doing: Callable[[], Doing | None]) -> None:
        self._session, self._settings, self._history = session, settings, history
        self._membership, self._pace, self._doing = membership, pace, doing
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, "starting"
        self.measured: Measurement | None = None
        self._seq = 0
        self._now = trio.Event()

    def set_phase(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        if phase is not self.phase and phase not in WITHIN_A_ROUND:
            self.beat_now()
        if (phase, why, detail) != (self.phase, self.why, self.detail):
            self.phase, self.why, self.detail = phase, why, detail
            self._session.emit(PhaseChanged(phase.value, why.value, detail))

    def beat_now(self) -> None:
        """Something changed that others wait for."""
        self._now.set()

    async def run(self) -> None:
        """Until cancelled.  A READY is said again with every beat: gossip may lose it."""
        while True:
            await self._session.publish(self._heartbeat())
            doing = self._doing()
            if doing is not None and doing.ready_raw:
                await self._session.network.publish(doing.ready_raw)
            with trio.move_on_after(beat_interval_s(len(self._membership.live_peers()) + 1)):
                await self._now.wait()
            self._now = trio.Event()

    async def say_goodbye(self) -> int:
        """To everybody by gossip; to those we are connected to also as a question, for the connections close next and
        gossip on its way would be lost with them.  How many of them confirmed it."""
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
        """The last known rate: a round that has just begun has none of its own.  0 while paused."""
        return 0.0 if self.phase is Phase.PAUSED else self._pace.tokens_per_s

    def _heartbeat(self) -> Heartbeat:
        settings, history, doing = self._settings, self._history, self._doing()
        bandwidth = self._session.network.bandwidth()
        self._seq += 1
        return Heartbeat(
            incarnation=settings.incarnation, seq=self._seq, name=settings.name[:40], role=settings.role,
            phase=self.phase, why_idle=self.why, why_detail=self.detail[:200], round=history.length,
            tip=history.tip, steps=doing.steps if doing else 0, loss=doing.loss if doing else 0.0,
            tokens_per_s=self.tokens_per_s, up_bytes_per_s=bandwidth.up_bytes_per_s,
            down_bytes_per_s=bandwidth.down_bytes_per_s,
            addresses=list(self._session.network.addresses())[:8], version=settings.version[:40],
            measured=self.measured)

    def neighbours(self) -> list[SwarmPeer]:
        """The other peers, as `peer status` shows them."""
        now = trio.current_time()
        return [SwarmPeer(
            peer=peer, name=known.heartbeat.name, role=known.heartbeat.role.value, phase=known.heartbeat.phase.value,
            round=known.heartbeat.round, steps=known.heartbeat.steps, tokens_per_s=known.heartbeat.tokens_per_s,
            liveness=known.liveness.value, heard_s=now - known.heard, version=known.heartbeat.version,
            addresses=list(known.heartbeat.addresses))
            for peer, known in sorted(self._membership, key=lambda item: item[0])]
