"""The trainer process does one thing at a time: computing, generating, verifying, or taking a version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turn:
    """Of one trainer process; whoever asked first is next."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Within, nobody else asks the process for anything that takes it whole."""
        async with self._lock:
            yield
