"""Asking the router for an open port by NAT-PMP (RFC 6886): two small questions over UDP.  Everything here blocks."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

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
