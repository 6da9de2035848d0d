"""Reachability of this computer, and the router before it: asked of peers, and of the router itself."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from peer.discovery.port_mapping import NatPmp, PortMapping
from peer.discovery.upnp import Upnp
from peer.doctor.check import Check, CheckResult, ok
from protocol.events.events import Event, PortMapped
from protocol.transport.addresses import is_public
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.nat.reachability import Reachability
from protocol.transport.network import Libp2pNetwork

OPENING_S = 10.0
"""Seconds for the router to open a port; a silent router counts as unable."""
MIRRORS = 2
KEEPS = "it keeps ports, so holes can be punched through it"
RENUMBERS = "it gives each connection another port, so peers behind such routers meet through a relay"


class OpenedPort:
    """Port that the router opens for the time of a visit.  by: name of the protocol; empty if the port was not opened."""

    def __init__(self) -> None:
        self.by = ""
        self._asked, self._told = False, trio.Event()

    async def keep(self, network: Libp2pNetwork) -> None:
        """Ask the router until cancelled; then close the port."""
        self._asked = True
        await PortMapping(network.own.port, (Upnp(), NatPmp()), network.own.map, self._tell).keep()

    async def wait(self) -> None:
        """Wait until the router has answered, or counts as unable."""
        if self._asked:
            with trio.move_on_after(OPENING_S):
                await self._told.wait()

    def _tell(self, event: Event) -> None:
        if isinstance(event, PortMapped) and event.by:
            self.by = event.by
            self._told.set()


async def port_keeping(network: Libp2pNetwork) -> str:
    """Describe how the router translates ports, as peers see it; empty if nobody can tell."""
    from protocol.transport.nat.punching import ports_outside

    parts = [address.split("/") for address in network.reached_there()]
    ends = [
        (part[2], int(part[4])) for part in parts if len(part) > 4 and part[1] == "ip4" and is_public("/".join(part[:5]))
    ]
    try:
        ours, seen = await ports_outside(list(dict.fromkeys(ends))[:MIRRORS])
    except OSError:
        return ""
    if not seen:
        return ""
    return KEEPS if set(seen) == {ours} or len(seen) > 1 == len(set(seen)) else RENUMBERS


def reachable(found: Reachability, announced: Sequence[str] = (), opened_by: str = "", ports: str = "") -> list[Check]:
    """Return the checks of our reachability and our router, from the answers of peers.

    opened_by: protocol by which the router opened the port.  ports: how it translates ports.
    """
    seen = [address for address, verdict in found.verdicts.items() if verdict is not Reached.UNKNOWN]
    router = ok("router", "; ".join(filter(None, (_kind(found, announced, opened_by), ports if _translates(found) else ""))))
    match found.overall:
        case Reached.REACHABLE:
            return [ok("reachable", f"others reach {', '.join(found.reached[:2])}"), router]
        case Reached.UNREACHABLE:
            value = f"nobody reaches {', '.join(seen[:2])}"
            remedy = "forward this TCP port in your router; peers that can be reached work with you all the same"
            if opened_by:
                remedy = "another router stands before yours: ask the provider for a public address, or for IPv6"
            return [Check("reachable", CheckResult.WARN, value, "", remedy), router]
        case _:
            remedy = "nothing to do; `peer status` tells once the peer has run for a while"
            return [Check("reachable", CheckResult.UNKNOWN, "no peer could tell", "", remedy)]


def _translates(found: Reachability) -> bool:
    """Return True if others see us at another address than our own."""
    from protocol.transport.addresses import interface_addresses

    return not {address.split("/")[2] for address in found.verdicts if "/ip4/" in address} & set(interface_addresses())


def _kind(found: Reachability, announced: Sequence[str], opened_by: str) -> str:
    """Describe the router in the words of people who set routers up."""
    from protocol.transport.addresses import interface_addresses

    ours, seen = set(interface_addresses()), {address.split("/")[2] for address in found.verdicts}
    public = {address.split("/")[2] for address in found.verdicts if is_public(address)}
    reached = found.overall is Reached.REACHABLE
    if not public:
        return "the peers that were asked are on this network, too"
    if seen & ours & public:
        return "none: this computer has a public address" + ("" if reached else ", and a firewall that lets nobody in")
    if opened_by:
        return f"a router that opens the port by {opened_by}"
    forwarded = "that forwards the port" if reached else "or firewall that lets nobody in"
    return f"a router {forwarded}{' (announced)' if announced and reached else ''}"
