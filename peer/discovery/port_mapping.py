"""Port mapping: opens our listening port in the router, by UPnP, or else by NAT-PMP.

The lease is renewed every two minutes, long before it expires, so that a restarted router lacks it for at most two minutes.
No failure is fatal: a router that cannot map ports, sends invalid answers or never answers costs only a waiting thread.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from peer.discovery.upnp import Upnp
from protocol.events.events import Event, PortMapped

# ------------------------------------------------------------------------------------------------------------------------
# NAT-PMP (RFC 6886): two small requests to the router over UDP.  Everything here blocks.


ROUTES = Path("/proc/net/route")
PORT = 5351
TIMES_S = (0.25, 0.5, 1.0, 2.0)
"""Seconds that each try waits for an answer."""
_ADDRESS, _TCP, _IS_ANSWER = 0, 2, 128
_ASK_ADDRESS, _ADDRESS_ANSWER = struct.Struct(">BB"), struct.Struct(">BBHI4s")
_ASK_PORT, _PORT_ANSWER = struct.Struct(">BBHHHI"), struct.Struct(">BBHIHHI")
_UP, _GATEWAY = 0x1, 0x2


class NatPmp:
    """One port of this computer, mapped by a router with NAT-PMP.  routes: the kernel's routing table."""

    name = "NAT-PMP"

    def __init__(self, routes: Path = ROUTES) -> None:
        self._routes = routes
        self._inside = 0

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Open `port`, or renew it, for `lease_s`; return the external IP address and port.  Raises OSError."""
        router = default_router(self._routes.read_text())
        if router is None:
            raise OSError("no way out of here leads through a router")
        answer = ask(router, _ASK_ADDRESS.pack(0, _ADDRESS), _ADDRESS_ANSWER)
        ip = str(ipaddress.IPv4Address(answer[4]))
        outside = ask(router, _ASK_PORT.pack(0, _TCP, 0, port, port, lease_s), _PORT_ANSWER)[5]
        self._inside = port
        return ip, outside

    def close(self) -> None:
        """Close the port if it is open.  Raises OSError."""
        inside, self._inside = self._inside, 0
        router = default_router(self._routes.read_text()) if inside else None
        if router is not None:
            ask(router, _ASK_PORT.pack(0, _TCP, 0, inside, 0, 0), _PORT_ANSWER)


def ask(router: str, question: bytes, form: struct.Struct) -> tuple[int, int, int, int, bytes | int, int, int]:
    """Return the fields of the router's answer.  Raises OSError if there is none, or if the router refuses."""
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
    """Return the router of the default route in the kernel's table; None if there is none."""
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & (_UP | _GATEWAY) == _UP | _GATEWAY:
            return str(ipaddress.IPv4Address(struct.pack("<I", int(fields[2], 16))))
    return None


# ------------------------------------------------------------------------------------------------------------------------


LEASE_S = 3600
AGAIN_S = 120.0
"""Seconds between two renewals of the lease; also between tries while no router answers."""
ATTEMPT_S = 30.0
"""Seconds for one router to answer all requests."""
CLOSE_S = 3.0
MOST_MISSES = 2
"""Failed renewals in a row after which a mapping counts as gone."""

Answer = TypeVar("Answer")


class PortMapping:
    """Mapping of `port`, open while `keep` runs.  routers: in the order in which they are asked.

    announce: called with the external address, such as /ip4/192.0.2.1/tcp/4001, and with no address once it is lost.
    """

    def __init__(
        self,
        port: int,
        routers: Sequence[Upnp | NatPmp],
        announce: Callable[[Sequence[str]], None],
        emit: Callable[[Event], None],
        again_s: float = AGAIN_S,
    ) -> None:
        self._port, self._routers = port, list(routers)
        self._announce, self._emit, self._again_s = announce, emit, again_s
        self._threads = trio.CapacityLimiter(1)
        """Limit of one thread: a thread that hangs keeps its place, so that no second thread starts."""
        self._address = ""
        self._misses = 0

    async def keep(self) -> None:
        """Keep the port open until cancelled; then close it."""
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
        """Ask the routers, starting with the last successful one."""
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
