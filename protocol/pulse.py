"""What a peer says of itself: its phase, its heartbeats, its goodbye.

A heartbeat goes out every few seconds, and at once when something changed that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from protocol.events import PhaseChanged
from protocol.membership import beat_interval_s
from protocol.messages import Goodbye, Heartbeat, Measurement, Phase, WhyIdle, pack
from protocol.parts import Parts

WITHIN_A_ROUND = frozenset({Phase.READY, Phase.EXCHANGING, Phase.VOTING, Phase.APPLYING})
"""Phases that follow from statements the others get anyway.  They need to hear at once who begins a round, or does not."""


class Doing(Protocol):
    """How far this round's compute is (`protocol.round_runner.Work`)."""

    steps: int
    loss: float
    tokens_per_s: float
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

    async def say_goodbye(self) -> None:
        parts = self._parts
        bye = Goodbye(incarnation=parts.settings.incarnation, seq=self._seq + 1)
        await parts.network.publish(pack(parts.identity, parts.run, bye).raw)

    def _heartbeat(self) -> Heartbeat:
        parts, settings, doing = self._parts, self._parts.settings, self._doing()
        bandwidth = parts.network.bandwidth()
        self._seq += 1
        return Heartbeat(
            incarnation=settings.incarnation, seq=self._seq, name=settings.name[:40], role=settings.role,
            phase=self.phase, why_idle=self.why, why_detail=self.detail[:200], round=parts.history.length,
            tip=parts.history.tip, steps=doing.steps if doing else 0, loss=doing.loss if doing else 0.0,
            tokens_per_s=doing.tokens_per_s if doing else 0.0, up_bytes_per_s=bandwidth.up_bytes_per_s,
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
