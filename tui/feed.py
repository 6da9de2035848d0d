"""Follows a running peer over its control socket, from threads of its own.

What a peer tells waits in a bounded queue until the interface takes it: a slow terminal never holds the peer up.  When the
peer stops, the feed says so and looks for it again, until closed.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from peer.control.client import ControlClient, ControlError, EventStream, NotRunning, Stamped
from protocol.events.status import PeerStatus

STATUS_S = 1.0
RETRY_S = 1.0
MOST_WAITING = 20_000
STARTING = "the peer is starting"


@dataclass(frozen=True)
class Found:
    """The peer runs; its status follows, and those of its last events that were not told yet."""


@dataclass(frozen=True)
class Stopped:
    """The peer does not run, or does not answer.  reason: a sentence."""

    reason: str


Told = Found | Stopped | PeerStatus | Stamped


class Source(Protocol):
    """What the interface draws from, and asks."""

    def start(self) -> None:
        """Begin to follow."""

    def take(self) -> list[Told]:
        """What was told since the last call."""

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """A command to the peer; blocks.  Raises ControlError."""

    def close(self) -> None:
        """Follow no longer."""


class Feed:
    """Of the peer whose data directory is given.  is_starting: that peer was started just now."""

    def __init__(self, data_dir: Path, *, is_starting: bool = False) -> None:
        self._is_starting = is_starting
        self._client = ControlClient(data_dir)
        self._waiting: deque[Told] = deque(maxlen=MOST_WAITING)
        self._closed = threading.Event()
        self._stream: EventStream | None = None
        self._running = threading.Event()
        self._newest = 0.0
        """When the last event was that we have, wall clock: a stream that breaks off begins anew with older ones."""

    def start(self) -> None:
        """Begin to follow."""
        for work in (self._follow, self._look):
            threading.Thread(target=work, daemon=True).start()

    def take(self) -> list[Told]:
        """What was told since the last call."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        """A command to the peer; blocks.  Raises ControlError."""
        return self._client.request(command, **fields)

    def close(self) -> None:
        """Follow no longer."""
        self._closed.set()
        if (stream := self._stream) is not None:
            stream.close()

    def _follow(self) -> None:
        """The events, life after life."""
        while not self._closed.is_set():
            try:
                with self._client.events() as stream:
                    self._stream = stream
                    self._waiting.extend([Found(), stream.status])
                    self._running.set()
                    self._is_starting = False
                    for stamped in chain([each for each in stream.recent if each.at > self._newest], stream):
                        self._waiting.append(stamped)
                        self._newest = max(self._newest, stamped.at)
                    reason = stream.end
            except NotRunning as error:
                reason = STARTING if self._is_starting else error.with_remedy
            except (ControlError, OSError) as error:
                reason = str(error)
            self._running.clear()
            self._waiting.append(Stopped(reason))
            self._closed.wait(RETRY_S)

    def _look(self) -> None:
        """The status, once a second while the peer runs."""
        while not self._closed.wait(STATUS_S):
            if not self._running.wait(STATUS_S):
                continue
            try:
                self._waiting.append(self._client.status())
            except (ControlError, OSError):
                continue  # that it stopped is what the end of its events says
