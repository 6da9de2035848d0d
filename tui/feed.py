"""Feed of events and status from a running peer, read from its control socket in separate threads.

Messages of the peer wait in a bounded queue until the interface takes them: a slow terminal never delays the peer.  When
the peer stops, the feed reports this and keeps looking for the peer, until closed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from peer.control.client import ControlClient, ControlError, EventStream, NotRunning, Stamped, StillStarting
from peer.control.curves import RunCurves
from protocol.events.status import PeerStatus
from tui.contributions import Contributions

STATUS_S = 1.0
LEDGER_S = 10.0
"""Shortest time between two questions for the ledger, which changes with each round."""
RETRY_S = 1.0
MOST_WAITING = 20_000
STARTING = "the peer is starting"


@dataclass(frozen=True)
class PeerFound:
    """Message that the peer runs.  Its status follows, then its recent events, except for events delivered before."""


@dataclass(frozen=True)
class Stopped:
    """Message that the peer does not run, or does not answer.  reason: a sentence."""

    reason: str


Told = PeerFound | Stopped | PeerStatus | Stamped | RunCurves | Contributions
"""Messages of a feed; curves come from the peer's log, which goes back further than its recent events."""


class FeedSource(Protocol):
    """Source of all data that the interface draws, and recipient of its commands."""

    def start(self) -> None:
        """Begin to follow the peer."""

    def take(self) -> list[Told]:
        """Return all messages since the last call."""

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """Send the peer a command and return its answer; blocks.  Raises ControlError."""

    def close(self) -> None:
        """Stop following the peer."""


class Feed:
    """Source that follows the peer with this data directory.  is_starting: True if that peer has just been started."""

    def __init__(self, data_dir: Path, *, is_starting: bool = False) -> None:
        self._is_starting = is_starting
        self._client = ControlClient(data_dir)
        self._waiting: deque[Told] = deque(maxlen=MOST_WAITING)
        self._closed = threading.Event()
        self._stream: EventStream | None = None
        self._running = threading.Event()
        self._newest = 0.0
        """Wall-clock time of our newest event: after a broken stream, the next stream begins with older events."""

    def start(self) -> None:
        """Begin to follow the peer."""
        for work in (self._follow, self._look):
            threading.Thread(target=work, daemon=True).start()

    def take(self) -> list[Told]:
        """Return all messages since the last call."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """Send the peer a command and return its answer; blocks.  Raises ControlError."""
        return self._client.request(command, **fields)

    def close(self) -> None:
        """Stop following the peer."""
        self._closed.set()
        if (stream := self._stream) is not None:
            stream.close()

    def _follow(self) -> None:
        """Read the peer's events; open a new stream each time that a stream ends."""
        while not self._closed.is_set():
            try:
                with self._client.events() as stream:
                    self._stream = stream
                    self._waiting.extend([PeerFound(), stream.status, *self._curves()])
                    self._running.set()
                    self._is_starting = False
                    for stamped in chain([each for each in stream.recent if each.at > self._newest], stream):
                        self._waiting.append(stamped)
                        self._newest = max(self._newest, stamped.at)
                    reason = stream.end
            except StillStarting:
                reason = STARTING
            except NotRunning as error:
                reason = STARTING if self._is_starting else error.with_remedy
            except (ControlError, OSError) as error:
                reason = str(error)
            self._running.clear()
            self._waiting.append(Stopped(reason))
            self._closed.wait(RETRY_S)

    def _curves(self) -> list[RunCurves]:
        """Return the run's curves so far; nothing from a peer that does not tell them."""
        try:
            return [RunCurves.from_fields(self._client.request("curves"))]
        except (ControlError, OSError, ValueError):
            return []

    def _look(self) -> None:
        """Read the peer's status once a second while it runs, and its ledger after rounds."""
        asked, counted = -LEDGER_S, (-1, -1)
        while not self._closed.wait(STATUS_S):
            if not self._running.wait(STATUS_S):
                continue
            try:
                status = self._client.status()
                self._waiting.append(status)
                rounds = status.round, status.state_rounds
                if rounds != counted and (now := time.monotonic()) >= asked + LEDGER_S:
                    asked, counted = now, rounds
                    self._waiting.append(Contributions.from_fields(self._client.request("ledger")))
            except (ControlError, OSError, ValueError):
                continue  # `_follow` reports the stop when the events end
