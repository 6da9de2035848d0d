"""When accusations are published: new ones soon, all of them again and again, and never many at once.

Others take few messages a second of one author, heartbeats included: whoever sacrifices hundreds of keys must not make
us use that up.  Accusations of members go first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from protocol.wire.envelope import Envelope
from protocol.wire.identity import PeerId

AGAIN_S = 30.0
"""Newcomers did not hear it."""
SPACING_S = 2.0
"""Between two accusations."""


@dataclass
class _Announcement:
    envelope: Envelope
    is_member: bool
    due: float


class Announcements:
    """The accusations that we stand for."""

    def __init__(self) -> None:
        self._of: dict[PeerId, _Announcement] = {}
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._of)

    def add(self, accused: PeerId, envelope: Envelope, *, is_member: bool) -> None:
        """A new accusation, to be published at once."""
        self._of[accused] = _Announcement(envelope, is_member, trio.current_time())
        self._changed.set()

    def remove(self, accused: PeerId) -> None:
        """It is not announced any more."""
        self._of.pop(accused, None)

    async def _next(self) -> Envelope:
        """Wait for the next one that is due, and put it off."""
        while True:
            now = trio.current_time()
            first = min(self._of.values(), key=lambda each: (each.due > now, not each.is_member, each.due), default=None)
            if first is not None and first.due <= now:
                first.due = now + max(AGAIN_S, SPACING_S * len(self._of))
                return first.envelope
            self._changed = trio.Event()
            with trio.move_on_at(min((each.due for each in self._of.values()), default=trio.current_time() + AGAIN_S)):
                await self._changed.wait()

    async def run(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Publish what is due, until cancelled."""
        while True:
            await publish((await self._next()).raw)
            await trio.sleep(SPACING_S)
