"""The queue of a round's machine: statements of peers, limited in bytes, and events of our own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import trio

from protocol.agreement.events import AmendmentHeld, Arrived, ExchangeMoved, RoundEvent, StateHashed
from protocol.events.events import Dropped
from protocol.transport.interface import Session
from protocol.wire.body import Body
from protocol.wire.envelope import Envelope
from protocol.wire.identity import PeerId

QUEUE = 4096
"""Events waiting to be handled; more are dropped, and senders of statements send again."""
QUEUE_BYTES = 16 << 20
QUEUE_BYTES_PER_PEER = 4 << 20
"""Bytes of one peer's waiting statements as they travelled; in memory they take up to 16 times as much."""


@dataclass(frozen=True)
class _Waiting:
    """A queued event.  size: bytes charged to the bringer until the event is taken."""

    event: RoundEvent
    bringer: PeerId
    size: int


class Inbox:
    """The queue of one round, read by one task.  Nothing here waits except `next`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._put, self._take = trio.open_memory_channel[_Waiting](QUEUE)
        self._bytes: Counter[PeerId] = Counter()
        self._noted: dict[type[RoundEvent], tuple[RoundEvent, float]] = {}

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a statement.  by: the peer that brought it, if not its sender."""
        bringer, size = by or sender, max(len(envelope.raw), QUEUE_BYTES // QUEUE)
        if self._bytes.total() + size > QUEUE_BYTES or self._bytes[bringer] + size > QUEUE_BYTES_PER_PEER:
            self._session.emit(Dropped(bringer, "statement", "too many bytes are waiting"))
        elif self._post(_Waiting(Arrived(sender, body, envelope.signature), bringer, size)):
            self._bytes[bringer] += size

    def tell(self, event: RoundEvent) -> None:
        """Queue an event of our own."""
        self._post(_Waiting(event, self._session.me, 0))

    def note(self, event: StateHashed | ExchangeMoved | AmendmentHeld) -> None:
        """Keep the event for the moment before the next queued one.

        The machine answers such events with nothing, so only the newest of a kind counts: chunks arrive by hundreds, and
        must not fill the queue.
        """
        self._noted[type(event)] = (event, trio.current_time())

    def take_notes(self) -> list[tuple[RoundEvent, float]]:
        """Return the events noted since the last call, each with its time."""
        notes = list(self._noted.values())
        self._noted.clear()
        return notes

    async def next(self) -> RoundEvent:
        """Wait for the next queued event and return it."""
        waiting = await self._take.receive()
        self._bytes[waiting.bringer] -= waiting.size
        return waiting.event

    async def aclose(self) -> None:
        """Close the queue: the round is over, and later events are dropped."""
        await self._take.aclose()

    def _post(self, waiting: _Waiting) -> bool:
        try:
            self._put.send_nowait(waiting)
            return True
        except trio.BrokenResourceError:
            return False  # the round is over
        except trio.WouldBlock:
            self._session.emit(Dropped(self._session.me, "statement", "too many are waiting"))
            return False
