"""Events about the ways between this peer and others; `protocol.events` has them, too."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.event import Event


@dataclass(frozen=True)
class ReachabilityChanged(Event):
    """Peers that were asked to dial back have found something else than before.

    reachable: whether others reach this peer: reachable, unreachable or unknown.  addresses: the same of each address at
    which they see it.
    """

    reachable: str
    addresses: dict[str, str]
