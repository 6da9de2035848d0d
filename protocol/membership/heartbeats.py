"""What a peer says of itself: its phase, its heartbeats, its goodbye.

A heartbeat goes out every few seconds, and at once when something changed that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import trio

from protocol.events import PhaseChanged
from protocol.membership.liveness import beat_interval_s
from protocol.network.interface import NetworkError
from protocol.node.parts import Parts
from protocol.wire.identity import PeerId
from protocol.wire.messages import Goodbye, Heartbeat, Measurement, Phase, WhyIdle, pack

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
    """Speaks for the peer made of `parts`.  `doing` tells what the running round's compute does, None between rounds.

    measured: the held-out loss to tell the others.
    """

    def __init__(self, parts: Parts, doing: Callable[[], Doing | None]) -> None:
        self._parts, self._doing = parts, doing
        self.phase, self.why, self.detail = Phase.STARTING, WhyIdle.STARTING, "starting"
        self.measured: Measurement | None = None
        self._seq = 0
        self._now = trio.Event()

    def set_phase(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        if phase is not self.phase and phase not in WITHIN_A_ROUND:
            self.beat_now()
        if (phase, why, detail) != (self.phase, self.why, self.detail):
            self.phase, self.why, self.detail = phase, why, detail
            self._parts.emit(PhaseChanged(phase.value, why.value, detail))

    def beat_now(self) -> None:
        """Something changed that others wait for."""
        self._now.set()

    async def run(self) -> None:
        """Until cancelled.  A READY is said again with every beat: gossip may lose it."""
        parts = self._parts
        while True:
            await parts.network.publish(pack(parts.identity, parts.run, self._heartbeat()).raw)
            doing = self._doing()
            if doing is not None and doing.ready_raw:
                await parts.network.publish(doing.ready_raw)
            with trio.move_on_after(beat_interval_s(len(parts.membership.live_peers()) + 1)):
                await self._now.wait()
            self._now = trio.Event()

    async def say_goodbye(self) -> int:
        """To everybody by gossip; to those we are connected to also as a question, for the connections close next and
        gossip on its way would be lost with them.  How many of them confirmed it."""
        parts = self._parts
        raw = pack(parts.identity, parts.run, Goodbye(incarnation=parts.settings.incarnation, seq=self._seq + 1)).raw
        heard: list[PeerId] = []

        async def tell(peer: PeerId) -> None:
            with suppress(NetworkError):
                await parts.network.request(peer, "goodbye", raw, timeout_s=GOODBYE_S)
                heard.append(peer)

        with trio.move_on_after(GOODBYE_S):
            await parts.network.publish(raw)
            async with trio.open_nursery() as nursery:
                for peer in parts.network.connected():
                    nursery.start_soon(tell, peer)
        return len(heard)

    @property
    def tokens_per_s(self) -> float:
        """The last known rate: a round that has just begun has none of its own.  0 while paused."""
        return 0.0 if self.phase is Phase.PAUSED else self._parts.pace.tokens_per_s

    @property
    def round_left_s(self) -> float | None:
        """Seconds until our last inner step of this round; None when we do not train now, or know no rate yet."""
        doing = self._doing()
        if doing is None or self.phase is not Phase.COMPUTING:
            return None
        return self._parts.pace.left_s(self._parts.manifest.rounds.inner_steps - doing.steps)

    def _heartbeat(self) -> Heartbeat:
        parts, settings, doing = self._parts, self._parts.settings, self._doing()
        bandwidth = parts.network.bandwidth()
        self._seq += 1
        return Heartbeat(
            incarnation=settings.incarnation, seq=self._seq, name=settings.name[:40], role=settings.role,
            phase=self.phase, why_idle=self.why, why_detail=self.detail[:200], round=parts.history.length,
            tip=parts.history.tip, steps=doing.steps if doing else 0, loss=doing.loss if doing else 0.0,
            tokens_per_s=self.tokens_per_s, up_bytes_per_s=bandwidth.up_bytes_per_s,
            down_bytes_per_s=bandwidth.down_bytes_per_s,
            addresses=list(parts.network.addresses())[:8], version=settings.version[:40],
            measured=self.measured)

    def neighbours(self) -> list[dict[str, Any]]:
        """The other peers, as `peer status` shows them."""
        now = trio.current_time()
        return [{"peer": peer, "name": known.heartbeat.name, "role": known.heartbeat.role.value,
                 "phase": known.heartbeat.phase.value, "round": known.heartbeat.round, "steps": known.heartbeat.steps,
                 "tokens_per_s": known.heartbeat.tokens_per_s, "liveness": known.liveness.value,
                 "heard_s": now - known.heard, "version": known.heartbeat.version,
                 "addresses": list(known.heartbeat.addresses)}
                for peer, known in sorted(self._parts.membership, key=lambda item: item[0])]
