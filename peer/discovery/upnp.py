"""Asking the router for an open port by UPnP.  Everything here blocks, for some seconds at most where the router is sane.

Who in the home network answers first is taken for the router: UPnP has no identities.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

DISCOVER_MS = 2000
ATTEMPTS = 4
"""Ports outside that are tried: the one that we had or the same as inside, then others."""
PORTS = range(20_000, 60_000)
NAME = "manyhands"
"""How the router lists it."""


class Upnp:
    """One port of this computer, which a router with UPnP leads to."""

    name = "UPnP"

    def __init__(self) -> None:
        self._device: Any = None
        self._outside = 0

    def open(self, port: int, lease_s: int) -> tuple[str, int]:
        """Have `port` opened, or keep it open, for so long; the IP address and the port outside.  Raises OSError."""
        import miniupnpc

        device = miniupnpc.UPnP()
        device.discoverdelay = DISCOVER_MS
        try:
            device.discover()
            device.selectigd()
            outside = self._ask(device, port, lease_s)
            ip = str(ipaddress.IPv4Address(device.externalipaddress()))
        except Exception as error:  # noqa: BLE001 - the library raises bare exceptions, and the router says anything
            raise OSError(f"no port by UPnP: {error}") from error
        self._device, self._outside = device, outside
        return ip, outside

    def close(self) -> None:
        """Have it closed, if it is open.  Raises OSError."""
        device, self._device = self._device, None
        if device is not None:
            try:
                device.deleteportmapping(self._outside, "TCP")
            except Exception as error:  # noqa: BLE001 - see above
                raise OSError(f"the router keeps the port open: {error}") from error

    def _ask(self, device: Any, port: int, lease_s: int) -> int:
        """The port outside that the router gives us.  Raises what the library raises."""
        problem = OSError("it refuses")
        for outside in dict.fromkeys([self._outside or port, *random.sample(PORTS, ATTEMPTS - 1)]):
            for seconds in (lease_s, 0):  # some routers know no other lease than one without end
                try:
                    if device.addportmapping(outside, "TCP", device.lanaddr, port, NAME, "", seconds):
                        return outside
                except Exception as error:  # noqa: BLE001 - another computer may have that port
                    problem = OSError(str(error))
        raise problem
