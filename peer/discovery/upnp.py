"""Requests to the router for an open port by UPnP.  Everything here blocks, for at most `ANSWER_S`.

UPnP has no identities: the first device in the home network to answer counts as the router.  The library reads
answers of any size, for any time.  So it runs in a separate process, which may use little memory and is killed after
`ANSWER_S`.
"""

from __future__ import annotations

import ipaddress
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from peer.environment import ChildKind, child_environment

DISCOVER_MS = 2000
ANSWER_S = 20.0
MEMORY_BYTES = 256 << 20
"""Memory limit of the asking process, Python and its libraries included."""
ATTEMPTS = 4
"""Number of external ports to try: the previous or the internal port first, then other ports."""
PORTS = range(20_000, 60_000)
NAME = "manyhands"
"""Name under which the router lists the port."""


class Upnp:
    """One port of this computer, mapped by a router with UPnP."""

    name = "UPnP"

    def __init__(self) -> None:
        self._outside, self._where = 0, ""

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Open `port`, or renew it, for `lease_s`; return the external IP address and port.  Raises OSError."""
        answer = ask("open", port, lease_s, self._outside or port)
        try:
            address, taken, where = answer.split(maxsplit=2)
            ip, outside = str(ipaddress.IPv4Address(address)), int(taken)
        except ValueError as error:
            raise OSError("no port by UPnP: the router's answer makes no sense") from error
        self._outside, self._where = outside, where.strip()
        return ip, outside

    def close(self) -> None:
        """Close the port if it is open.  Raises OSError."""
        outside, self._outside = self._outside, 0
        if outside:
            ask("close", outside, self._where)


def ask(*words: str | int) -> str:
    """Return the asking process's one line of output.  Raises OSError if it fails or takes too long."""
    command = [sys.executable, "-m", "peer.discovery.upnp", *map(str, words)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, env=child_environment(ChildKind.HELPER)
        )
    except subprocess.TimeoutExpired as error:
        raise OSError("no port by UPnP: the router did not finish its answer") from error
    if done.returncode != 0:
        raise OSError(f"no port by UPnP: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout.decode(errors="replace")


def main(words: Sequence[str]) -> str:
    """Ask the router (runs in the asking process).  Raises any exception, because the library does."""
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
            device.selectigd(where)  # there is no time to search for the router again
            device.deleteportmapping(int(outside), "TCP")
    return ""


def _open(device: Any, port: int, lease_s: int, wanted: int) -> int:
    """Return the external port that the router gives us.  Raises the library's exceptions."""
    problem: Exception = OSError("it refuses")
    for outside in dict.fromkeys([wanted, *random.sample(PORTS, ATTEMPTS - 1)]):
        for seconds in (lease_s, 0):  # some routers support only endless leases
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
        return  # the system has no such limits: only `ANSWER_S` applies


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except Exception as error:  # noqa: BLE001 - bare exceptions of the library, and MemoryError
        sys.exit(f"{error}")
