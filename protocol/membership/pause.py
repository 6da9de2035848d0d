"""Whether computing rests because the user said so."""

from __future__ import annotations

import trio


class Pause:
    """A switch, off at first.  `wait` returns as soon as it is off."""

    def __init__(self) -> None:
        self.on = False
        self._over = trio.Event()

    def begin(self) -> None:
        """Switch on; nothing if it is on."""
        if not self.on:
            self.on, self._over = True, trio.Event()

    def end(self) -> None:
        """Switch off."""
        self.on = False
        self._over.set()

    async def wait(self) -> None:
        """Return at once when off, else as soon as it is switched off."""
        while self.on:
            await self._over.wait()
