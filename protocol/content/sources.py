"""How much each source is asked for, and which one first.

Pure.  Policy:

* **Score.**  A source is worth its success (an exponential average over its chunks: 1 brought, 0 failed) times its rate
  (an exponential average of bytes a second).  A failure lowers both.  Where places are few, the best score comes first; in
  one of twenty cases chance decides, so that a source that was bad once is seen to be good again.  A new source counts
  as the best one until it is known.
* **Window.**  Each source is asked for a few chunks at a time: one more for each that came soon (within `SOON_S`, so its
  line may have stood idle), one less for each that came late, half as many after a failure (additive increase,
  multiplicative decrease).
* **Deadline.**  A chunk is overdue after four times what the measured rate says for all that the source owes us, and others
  are asked for it; it is still taken if it comes.  A source whose rate is not known is believed to be slow.
* **Pause.**  A source on a fast line is asked for several chunks together, instead of one question for each chunk that
  arrives: a peer answers at most a hundred questions a second.
* **Busy.**  A source that says so is asked again after a moment, longer each time; that is no failure.
* **Rest.**  Two failures in a row, and a source is left alone for a while, twice as long each time.  A chunk with wrong
  bytes, and it is set aside for good.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf

from protocol.wire.identity import PeerId

MEMORY = 0.3
"""Weight of the newest observation in the averages (SHARDCAST's)."""
EXPLORE = 0.05
FIRST_WINDOW, MOST_IN_WINDOW = 2, 64
FAST_WINDOW, PAUSE_S = 8, 0.04
SOON_S, LATE_S = 1.0, 4.0
DEADLINE_TIMES = 4.0
LEAST_DEADLINE_S, MOST_DEADLINE_S = 2.0, 60.0
FIRST_DUE_S, FIRST_BYTES_PER_S = 2.0, 512 << 10
BUSY_S, MOST_BUSY_S = 0.25, 0.5
FAILURES = 2
REST_S, MOST_REST_S = 4.0, 120.0


@dataclass
class Source:
    """rate: bytes a second, 0 while none is known.  window: chunks that it is asked for at a time."""

    success: float = 1.0
    rate: float = 0.0
    window: int = FIRST_WINDOW
    owed_bytes: int = 0
    failures: int = 0
    rests_until: float = -inf
    asked_at: float = -inf
    rest_s: float = REST_S
    busy_s: float = BUSY_S

    def score(self, best_rate: float) -> float:
        """What it is worth.  best_rate: of all sources, for one that is not known."""
        return self.success * (self.rate or best_rate)

    def due_s(self, size: int) -> float:
        """How long it is expected to take for all that it owes us and `size` bytes more."""
        owed = self.owed_bytes + size
        return owed / self.rate if self.rate else max(FIRST_DUE_S, owed / FIRST_BYTES_PER_S)

    def may_be_asked(self, now: float) -> bool:
        """Neither at rest nor asked a moment ago, while it has enough to send."""
        pauses = self.window >= FAST_WINDOW and self.owed_bytes > 0 and now - self.asked_at < PAUSE_S
        return self.rests_until <= now and not pauses


class Sources:
    """The sources of one blob.  `now` is trio time."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._known: dict[PeerId, Source] = {}
        self.barred: set[PeerId] = set()
        """Set aside for good: their bytes were wrong."""

    def __contains__(self, peer: PeerId) -> bool:
        """Whether it is a source, at rest or not."""
        return peer in self._known

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def all(self) -> list[PeerId]:
        """All of them, also those at rest."""
        return [*self._known]

    def window(self, peer: PeerId) -> int:
        """How many chunks it may owe us at a time."""
        return self._known[peer].window

    def add(self, peer: PeerId) -> None:
        """A peer has something of the blob."""
        if peer not in self.barred:
            self._known.setdefault(peer, Source())

    def remove(self, peer: PeerId) -> None:
        """It is gone."""
        self._known.pop(peer, None)

    def bar(self, peer: PeerId) -> None:
        """Its bytes were wrong: it is no source any more."""
        self.barred.add(peer)
        self.remove(peer)

    def awake(self, now: float) -> list[PeerId]:
        """Those that may be asked, in the order in which to ask them."""
        peers = [peer for peer, source in self._known.items() if source.may_be_asked(now)]
        if self._random.random() < EXPLORE:
            self._random.shuffle(peers)
            return peers
        best = max((self._known[peer].rate for peer in peers), default=0.0) or 1.0
        return sorted(peers, key=lambda peer: -self._known[peer].score(best))

    def asked(self, peer: PeerId, size: int, now: float) -> int:
        """A source owes us `size` more bytes; returns how many in all."""
        source = self._known[peer]
        source.owed_bytes += size
        source.asked_at = now
        return source.owed_bytes

    def settled(self, peer: PeerId, size: int) -> None:
        """It owes us `size` bytes less, whether it brought them or not."""
        if peer in self._known:
            self._known[peer].owed_bytes -= size

    def deadline(self, peer: PeerId, now: float) -> float:
        """When what it was asked for last is overdue."""
        source = self._known[peer]
        expected = DEADLINE_TIMES * source.due_s(0)
        return now + min(max(LEAST_DEADLINE_S, expected), MOST_DEADLINE_S)

    def brought(self, peer: PeerId, owed: int, waited_s: float) -> None:
        """A chunk came, and was right.

        owed: bytes that the source owed us when it was asked for this chunk, with it.  They and the time since then give
        the rate, whether the source sends one after the other or all at once.
        """
        source = self._known.get(peer)
        if source is None:
            return
        rate = owed / max(waited_s, 1e-3)
        source.rate = rate if not source.rate else source.rate + MEMORY * (rate - source.rate)
        source.success += MEMORY * (1 - source.success)
        source.failures, source.rest_s, source.busy_s = 0, REST_S, BUSY_S
        if waited_s < SOON_S:
            source.window = min(source.window + 1, MOST_IN_WINDOW)
        elif waited_s > LATE_S:
            source.window = max(source.window - 1, 1)

    def failed(self, peer: PeerId, now: float) -> None:
        """A chunk did not come in time, or a question was not answered."""
        source = self._known.get(peer)
        if source is None:
            return
        source.success *= 1 - MEMORY
        source.rate *= 1 - MEMORY
        source.window = max(source.window // 2, 1)
        source.failures += 1
        if source.failures >= FAILURES:
            source.failures = 0
            source.rests_until = now + source.rest_s
            source.rest_s = min(2 * source.rest_s, MOST_REST_S)

    def busy(self, peer: PeerId, now: float) -> None:
        """It says that it has no time for us now."""
        source = self._known.get(peer)
        if source is not None:
            source.window = max(source.window // 2, 1)
            source.rests_until = max(source.rests_until, now + source.busy_s * (0.5 + self._random.random()))
            source.busy_s = min(2 * source.busy_s, MOST_BUSY_S)

    def due_s(self, peer: PeerId, size: int) -> float:
        """How long it is expected to take for a chunk of `size` bytes that it is asked for now."""
        return self._known[peer].due_s(size)
