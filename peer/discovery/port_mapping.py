"""The port at which this peer listens, opened in the router before it: by UPnP, or else by NAT-PMP.

The lease is asked for again every two minutes, long before it ends, so that a router that restarted has forgotten it for no
longer than that.  Nothing here is fatal: a router that cannot do it, says nonsense or never answers costs nothing but a
thread that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import trio

from protocol.events.events import Event, PortMapped

LEASE_S = 3600
AGAIN_S = 120.0
"""Between two times that the lease is asked for; also where there is no such router yet."""
ATTEMPT_S = 30.0
"""For one router to answer all that it is asked."""
CLOSE_S = 3.0
MOST_MISSES = 2
"""A mapping that could not be renewed so often in a row is taken to be gone."""

Answer = TypeVar("Answer")


class Router(Protocol):
    """A way to ask a router; both methods block, and raise OSError."""

    @property
    def name(self) -> str:
        """Of the way."""
        ...

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Open a port, or keep it open; the IP address and the port outside."""
        ...

    def close(self) -> None:
        """Close it, if it is open."""
        ...


class PortMapping:
    """Keeps `port` open while `keep` runs.  routers: in the order in which they are asked.

    announce: told of the address outside, like /ip4/192.0.2.1/tcp/4001, and of none when it is gone.
    """

    def __init__(
        self,
        port: int,
        routers: Sequence[Router],
        announce: Callable[[Sequence[str]], None],
        emit: Callable[[Event], None],
        again_s: float = AGAIN_S,
    ) -> None:
        self._port, self._routers = port, list(routers)
        self._announce, self._emit, self._again_s = announce, emit, again_s
        self._threads = trio.CapacityLimiter(1)
        """A thread that hangs keeps its place: there is never a second one."""
        self._address = ""
        self._misses = 0

    async def keep(self) -> None:
        """Until cancelled; then the port is closed."""
        try:
            while True:
                await self._open()
                await trio.sleep(self._again_s)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                for router in self._routers if self._address else []:
                    with suppress(OSError):
                        await self._in_a_thread(router.close)

    async def _open(self) -> None:
        """Ask the routers, the one that did it before first."""
        for router in list(self._routers):
            with suppress(OSError), trio.move_on_after(ATTEMPT_S):
                ip, outside = await self._in_a_thread(partial(router.open, self._port, LEASE_S))
                self._routers.sort(key=lambda other: other is not router)
                self._misses = 0
                self._tell(f"/ip4/{ip}/tcp/{outside}", router.name)
                return
        self._misses += 1
        if self._misses >= MOST_MISSES:
            self._tell("", "")

    async def _in_a_thread(self, work: Callable[[], Answer]) -> Answer:
        wait = partial(trio.to_thread.run_sync, work, limiter=self._threads)
        return await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio

    def _tell(self, address: str, by: str) -> None:
        if address != self._address:
            self._address = address
            self._announce([address] if address else [])
            self._emit(PortMapped(address, by))
