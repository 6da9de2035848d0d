"""Asking the router for an open port by UPnP.  Everything here blocks, for `ANSWER_S` at most.

Who in the home network answers first is taken for the router: UPnP has no identities.  So the library, which reads whatever
comes for as long as it comes, asks in a process of its own, which may use little memory and is killed after that time.
"""

from __future__ import annotations

import ipaddress
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from peer.installation import child_environment

DISCOVER_MS = 2000
ANSWER_S = 20.0
MEMORY_BYTES = 256 << 20
"""Of the process that asks, Python and its libraries included."""
ATTEMPTS = 4
"""Ports outside that are tried: the one that we had or the same as inside, then others."""
PORTS = range(20_000, 60_000)
NAME = "manyhands"
"""How the router lists it."""


class Upnp:
    """One port of this computer, which a router with UPnP leads to."""

    name = "UPnP"

    def __init__(self) -> None:
        self._outside, self._where = 0, ""

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Have `port` opened, or keep it open, for so long; the IP address and the port outside.  Raises OSError."""
        answer = ask("open", port, lease_s, self._outside or port)
        try:
            address, taken, where = answer.split(maxsplit=2)
            ip, outside = str(ipaddress.IPv4Address(address)), int(taken)
        except ValueError as error:
            raise OSError("no port by UPnP: the router says nonsense") from error
        self._outside, self._where = outside, where.strip()
        return ip, outside

    def close(self) -> None:
        """Have it closed, if it is open.  Raises OSError."""
        outside, self._outside = self._outside, 0
        if outside:
            ask("close", outside, self._where)


def ask(*words: str | int) -> str:
    """What the process that asks says in one line.  Raises OSError when it fails, or takes too long."""
    command = [sys.executable, "-m", "peer.discovery.upnp", *map(str, words)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, env=child_environment(os.environ)
        )
    except subprocess.TimeoutExpired as error:
        raise OSError("no port by UPnP: the router does not end its answer") from error
    if done.returncode != 0:
        raise OSError(f"no port by UPnP: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout.decode(errors="replace")


def main(words: Sequence[str]) -> str:
    """In the process that asks.  Raises what the library raises, which is anything."""
    import miniupnpc

    use_little_memory()
    device = miniupnpc.UPnP()
    match words:
        case ["open", port, lease_s, wanted]:
            device.discoverdelay = DISCOVER_MS
            device.discover()
            where = device.selectigd()
            outside = _open(device, int(port), int(lease_s), int(wanted))
            return f"{device.externalipaddress()} {outside} {where}"
        case ["close", outside, where]:
            device.selectigd(where)  # there is no time to look for it again
            device.deleteportmapping(int(outside), "TCP")
    return ""


def _open(device: Any, port: int, lease_s: int, wanted: int) -> int:
    """The port outside that the router gives us.  Raises what the library raises."""
    problem: Exception = OSError("it refuses")
    for outside in dict.fromkeys([wanted, *random.sample(PORTS, ATTEMPTS - 1)]):
        for seconds in (lease_s, 0):  # some routers know no other lease than one without end
            try:
                if device.addportmapping(outside, "TCP", device.lanaddr, port, NAME, "", seconds):
                    return outside
            except Exception as error:  # noqa: BLE001 - another computer may have that port
                problem = error
    raise problem


def use_little_memory() -> None:
    """Limit the memory of this process to `MEMORY_BYTES`."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):
        return  # a system without such limits: `ANSWER_S` is what there is


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except Exception as error:  # noqa: BLE001 - bare exceptions of the library, and MemoryError
        sys.exit(f"{error}")
