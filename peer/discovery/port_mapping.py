"""The port at which this peer listens, opened in the router before it: by UPnP, or else by NAT-PMP.

The lease is asked for again every two minutes, long before it ends, so that a router that restarted has forgotten it for no
longer than that.  Nothing here is fatal: a router that cannot do it, says nonsense or never answers costs nothing but a
thread that waits.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from protocol.events.events import Event, PortMapped

# ------------------------------------------------------------------------------------------------------------------------
# Asking the router for an open port by NAT-PMP (RFC 6886): two small questions over UDP.  Everything here blocks.


ROUTES = Path("/proc/net/route")
PORT = 5351
TIMES_S = (0.25, 0.5, 1.0, 2.0)
"""How long each of the tries waits for its answer."""
_ADDRESS, _TCP, _IS_ANSWER = 0, 2, 128
_ASK_ADDRESS, _ADDRESS_ANSWER = struct.Struct(">BB"), struct.Struct(">BBHI4s")
_ASK_PORT, _PORT_ANSWER = struct.Struct(">BBHHHI"), struct.Struct(">BBHIHHI")
_UP, _GATEWAY = 0x1, 0x2


class NatPmp:
    """One port of this computer, which a router with NAT-PMP leads to.  routes: the kernel's table of ways."""

    name = "NAT-PMP"

    def __init__(self, routes: Path = ROUTES) -> None:
        self._routes = routes
        self._inside = 0

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Have `port` opened, or keep it open, for so long; the IP address and the port outside.  Raises OSError."""
        router = default_router(self._routes.read_text())
        if router is None:
            raise OSError("no way out of here leads through a router")
        answer = ask(router, _ASK_ADDRESS.pack(0, _ADDRESS), _ADDRESS_ANSWER)
        ip = str(ipaddress.IPv4Address(answer[4]))
        outside = ask(router, _ASK_PORT.pack(0, _TCP, 0, port, port, lease_s), _PORT_ANSWER)[5]
        self._inside = port
        return ip, outside

    def close(self) -> None:
        """Have it closed, if it is open.  Raises OSError."""
        inside, self._inside = self._inside, 0
        router = default_router(self._routes.read_text()) if inside else None
        if router is not None:
            ask(router, _ASK_PORT.pack(0, _TCP, 0, inside, 0, 0), _PORT_ANSWER)


def ask(router: str, question: bytes, form: struct.Struct) -> tuple[int, int, int, int, bytes | int, int, int]:
    """The fields of the router's answer.  Raises OSError when there is none, or a refusal."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((router, PORT))
        for wait_s in TIMES_S:
            sock.settimeout(wait_s)
            sock.send(question)
            try:
                answer = sock.recv(64)
            except TimeoutError:
                continue
            if len(answer) != form.size or answer[1] != question[1] | _IS_ANSWER:
                continue
            fields = form.unpack(answer)
            if fields[2] != 0:
                raise OSError(f"the router refuses with code {fields[2]}")
            return fields + (0,) * (7 - len(fields))
    raise OSError("the router does not answer NAT-PMP")


def default_router(routes: str) -> str | None:
    """The router of the default way, in the kernel's table; None when there is none."""
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & (_UP | _GATEWAY) == _UP | _GATEWAY:
            return str(ipaddress.IPv4Address(struct.pack("<I", int(fields[2], 16))))
    return None


# ------------------------------------------------------------------------------------------------------------------------


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
