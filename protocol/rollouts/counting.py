"""A peer's figures about rollouts, counted from its events as they are emitted, for its status and its heartbeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from protocol.events.events import BatchJudged, Event, RolloutsGenerated
from protocol.events.rollout_tally import ACCEPTED, REJECTED, STALE, RolloutTally
from protocol.events.status import RolloutStatus
from protocol.wire.identity import PeerId

RATE_S = 60.0
MOST_JUDGED = 4096
"""Judged batches that are remembered at most, for the rate over `RATE_S`."""
LAST_BATCHES = 8
"""Batches made last, over which the rate of generation is taken."""


class RolloutCounter:
    """Counter of one peer's events about rollouts.  emit: gets every event after it was counted."""

    def __init__(self, me: PeerId, emit: Callable[[Event], None]) -> None:
        self._me, self._emit, self._tally, self._began = me, emit, RolloutTally(me), trio.current_time()
        self._judged: deque[tuple[float, int]] = deque(maxlen=MOST_JUDGED)
        self._made: deque[tuple[int, float]] = deque(maxlen=LAST_BATCHES)

    def __call__(self, event: Event) -> None:
        """Count an event, then emit it."""
        self._tally.apply(event, 0.0)
        match event:
            case BatchJudged(validator=self._me, accepted=good, rejected=bad, inconclusive=unsure):
                self._judged.append((trio.current_time(), good + bad + unsure))
            case RolloutsGenerated(tokens=tokens, seconds=seconds):
                self._made.append((tokens, seconds))
        self._emit(event)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second, over the last batches."""
        return sum(tokens for tokens, _ in self._made) / max(1e-3, sum(seconds for _, seconds in self._made))

    @property
    def verified_per_s(self) -> float:
        """Rollouts verified here per second, over the last minute."""
        now = trio.current_time()
        recent = sum(rollouts for at, rollouts in self._judged if now - at <= RATE_S)
        return recent / max(1.0, min(RATE_S, now - self._began))

    def status(self, version: int, waiting: int) -> RolloutStatus:
        """Return the figures as `peer status` shows them.  waiting: batches that concern us and have no verdict."""
        tally = self._tally
        return RolloutStatus(
            version=version,
            reward=tally.rewards[-1][1] if tally.rewards else None,
            generated=tally.generated,
            accepted=tally.counts[ACCEPTED],
            rejected=tally.counts[REJECTED],
            stale=tally.counts[STALE],
            waiting=waiting,
            used=tally.used,
            accepted_tokens=tally.accepted_tokens,
            generated_tokens_per_s=self.tokens_per_s,
            verified_per_s=self.verified_per_s,
            set_aside=len({(aside.peer, aside.role) for aside in tally.aside}),
        )
