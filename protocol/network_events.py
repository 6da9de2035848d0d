"""Events about the ways between this peer and others; `protocol.events` has them, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.event import Event


@dataclass(frozen=True)
class ReachabilityChanged(Event):
    """Peers that were asked to dial back have found something else than before.

    reachable: whether others reach this peer: reachable, unreachable or unknown.  addresses: the same of each address at
    which they see it.
    """

    reachable: str
    addresses: dict[str, str]


@dataclass(frozen=True)
class LinkChanged(Event):
    """A peer is connected, or is so in another way than before.

    link: direct (one of the two dialled an address of the other), reversed (it was asked to dial us), punched (both dialled
    each other through their routers) or relayed (through a third peer).
    """

    peer: str
    link: str


@dataclass(frozen=True)
class PortMapped(Event):
    """The router before this peer leads from an address outside to it, or does so no more.

    address: the one outside; empty when the router does so no more.  by: UPnP or NAT-PMP.
    """

    address: str
    by: str


@dataclass(frozen=True)
class StrangersClosed(Event):
    """Connections from outside that were closed since this was told last, at most once a minute.

    silent: their peer did not greet in time.  crowded: there was no room.  busiest: the address that most were from.
    """

    silent: int
    crowded: int
    busiest: str


@dataclass(frozen=True)
class NobodyAnswers(Event):
    """No peer of the invitation has answered yet.

    seconds: since the search began.  tried: maps of address, times and problem (a phrase).  check: what the person can do.
    """

    seconds: float
    tried: list[dict[str, Any]]
    check: str
