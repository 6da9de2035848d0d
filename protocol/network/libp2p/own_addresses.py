"""Where others may find this peer: at its interfaces, at ports that lead here from outside, and behind relays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.network.libp2p.ends import End
from protocol.network.libp2p.host import ANY_IPV4, interface_addresses, transport_address
from protocol.network.libp2p.reachability import is_public
from protocol.wire.identity import PeerId

MAX_FOUND = 2
"""Addresses outside of a router that we announce: where others say that they reached us, and that it says to lead to us."""


class OwnAddresses:
    """Those of one peer.

    host, port: where it listens.  announce: multiaddrs at which its owner says that others reach it.  reached: the same, as
    others say.  circuits: its addresses behind relays.  on_mapped: called when a router leads from somewhere else to it.
    """

    def __init__(
        self,
        peer: PeerId,
        host: str,
        port: int,
        announce: Sequence[str],
        *,
        reached: Callable[[], Sequence[str]],
        circuits: Callable[[], Sequence[str]],
        on_mapped: Callable[[], None],
    ) -> None:
        self._peer, self._host, self.port, self._announce = peer, host, port, tuple(announce)
        self._reached, self._circuits, self._on_mapped = reached, circuits, on_mapped
        self._mapped: list[str] = []

    def all(self) -> list[str]:
        """Multiaddrs that others can dial, each ending in /p2p/<peer ID>: those outside of a router first."""
        return list(dict.fromkeys([*self._named(self._outside()), *self._circuits(), *self._named(self._inside())]))

    def nearby(self) -> list[str]:
        """Those of our interfaces, and those that our owner names."""
        return list(dict.fromkeys(self._named([*self._announce, *self._inside()])))

    def ends(self) -> list[End]:
        """Those that are dialled without a relay, as IP addresses and ports."""
        split = [address.split("/") for address in self.all()]
        ends = [(parts[2], int(parts[4])) for parts in split if len(parts) == 7 and parts[1] in ("ip4", "ip6")]
        return list(dict.fromkeys(ends))

    def ports(self) -> list[int]:
        """Where others may find us: our port, and those that lead to it from outside."""
        return [self.port, *(int(address.split("/")[4]) for address in [*self._mapped, *self._announce])]

    def need_a_router(self) -> bool:
        """Whether this computer has no IPv4 address of its own at which everybody could dial it, and nobody named one."""
        listening = (transport_address(host, self.port) for host in interface_addresses() if ":" not in host)
        return not self._announce and not any(is_public(address) for address in listening)

    def map(self, addresses: Sequence[str]) -> None:
        """A router leads from these addresses to us, and from no others; they are announced if they are public."""
        self._mapped = list(addresses)
        self._on_mapped()

    def _outside(self) -> list[str]:
        """Where others reach us as our owner, our router and they say, without our peer ID."""
        found = [address for address in [*self._reached(), *self._mapped] if is_public(address)]
        return list(dict.fromkeys([*self._announce, *dict.fromkeys(found[:MAX_FOUND])]))

    def _inside(self) -> list[str]:
        hosts = interface_addresses() if self._host == ANY_IPV4 else [self._host]
        return [transport_address(host, self.port) for host in hosts]

    def _named(self, addresses: Sequence[str]) -> list[str]:
        return [f"{address}/p2p/{self._peer}" for address in addresses]
