"""The addresses of this peer: at its interfaces, at outside ports that lead here, and behind relays."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from protocol.transport.ends import End, local_end, remote_end
from protocol.transport.host import ANY_IPV4, interface_addresses, transport_address
from protocol.transport.interface import Members
from protocol.transport.library import Connection, Host, peer_id_of
from protocol.transport.nat.reachability import is_public
from protocol.transport.way import is_dialled
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The addresses at which others have reached us.
#
# The local end of a connection that another peer dialled is a fact: the peer reached this address of this computer.  Behind
# a router only the other peer knows the address that it dialled; it tells us when it identifies itself (libp2p's
# `identify`), and that is a claim.  One claim is kept for each peer, and the caller says whose claims count.  A member's
# claim outweighs the claims of any number of strangers.


MAX_CLAIMS = 256
MAX_SEEN = 32


class ObservedAddresses:
    """Our addresses as other peers see them: multiaddrs without a peer ID, like /ip4/192.0.2.1/tcp/4001.

    members: tells members from strangers.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._claims: OrderedDict[PeerId, str] = OrderedDict()

    def watch(self, host: Host) -> None:
        """Take note here, from now on, of the addresses that others claim, which the library would announce as ours."""
        host._observed_addr_manager.record_observation = lambda conn, observed, local: self.on_claim(conn, str(observed))

    def on_connection(self, conn: Connection) -> None:
        """Take note of the local address of a new connection, if the peer has dialled us there."""
        end = local_end(conn) if is_dialled(conn) is False else None
        if end is not None and not _is_of_this_computer(conn, end[0]):
            address = transport_address(*end)
            self._seen[address] = None
            self._seen.move_to_end(address)
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)

    def on_claim(self, conn: Connection, address: str) -> None:
        """Take note that the other end claims to see us at `address`, if it has dialled us."""
        if is_dialled(conn) is not False or not is_public_form(address):
            return
        peer = peer_id_of(conn.muxed_conn.peer_id)
        self._claims[peer] = address
        self._claims.move_to_end(peer)
        if len(self._claims) > MAX_CLAIMS:
            strangers = (known for known in self._claims if not self._members.has_member(known))
            del self._claims[next(strangers, next(iter(self._claims)))]

    def addresses(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Return local addresses of inbound connections, the newest first, then claimed ones, by the number of members.

        counts: returns True if a peer's claim counts.
        """
        seen = list(reversed(self._seen))
        claims = [(self._members.has_member(peer), address) for peer, address in self._claims.items() if counts(peer)]
        by_members = Counter(address for is_member, address in claims if is_member)
        by_strangers = Counter(address for is_member, address in claims if not is_member)
        claimed = sorted({address: None for _, address in claims}, key=lambda it: (-by_members[it], -by_strangers[it]))
        return seen + [address for address in claimed if address not in self._seen]


def _is_of_this_computer(conn: Connection, ip: str) -> bool:
    """Return True if the other end is a program on this computer, which does not show that others can reach `ip`.

    False on loopback, where only programs on this computer are meant to connect.
    """
    remote = remote_end(conn)
    return remote is not None and remote[0] == ip and not ipaddress.ip_address(ip).is_loopback


def is_public_form(address: str) -> bool:
    """Return True if `address`, which may be any text, has an IP address and a TCP port that another computer could dial."""
    parts = address.split("/")
    if len(address) > 100 or len(parts) != 5 or parts[0] or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        return False
    try:
        ip, port = ipaddress.ip_address(parts[2]), int(parts[4])
    except ValueError:
        return False
    odd = ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local
    return not odd and 0 < port < 65536


# ------------------------------------------------------------------------------------------------------------------------


MAX_FOUND = 2
"""Most outside addresses that we announce: ones at which others reached us, then ones that a router maps to us."""


class OwnAddresses:
    """The addresses of our peer.

    host, port: the end at which it listens.  announce: multiaddrs at which others reach it, according to its owner.
    reached: the same, according to others.  circuits: its addresses behind relays.  on_mapped: called when a router leads
    from other addresses to it.
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
        """Return the multiaddrs that others can dial, each ending in /p2p/<peer ID>; addresses outside a router first."""
        return list(dict.fromkeys([*self._named(self._outside()), *self._circuits(), *self._named(self._inside())]))

    def nearby(self) -> list[str]:
        """Return the addresses that our owner names and the addresses of our interfaces."""
        return list(dict.fromkeys(self._named([*self._announce, *self._inside()])))

    def ends(self) -> list[End]:
        """Return the addresses that are dialled without a relay, as IP addresses and ports."""
        split = [address.split("/") for address in self.all()]
        ends = [(parts[2], int(parts[4])) for parts in split if len(parts) == 7 and parts[1] in ("ip4", "ip6")]
        return list(dict.fromkeys(ends))

    def ports(self) -> list[int]:
        """Return the ports at which others may find us: our own, and ports that lead to it from outside."""
        return [self.port, *(int(address.split("/")[4]) for address in [*self._mapped, *self._announce])]

    def need_a_router(self) -> bool:
        """Return True if this computer has no public IPv4 address of its own and our owner named none."""
        listening = (transport_address(host, self.port) for host in interface_addresses() if ":" not in host)
        return not self._announce and not any(is_public(address) for address in listening)

    def map(self, addresses: Sequence[str]) -> None:
        """Note that a router leads from these addresses to us, and from no others; public ones are announced."""
        self._mapped = list(addresses)
        self._on_mapped()

    def _outside(self) -> list[str]:
        """Return the addresses at which others reach us according to our owner, them and our router, without peer ID."""
        found = [address for address in [*self._reached(), *self._mapped] if is_public(address)]
        return list(dict.fromkeys([*self._announce, *dict.fromkeys(found[:MAX_FOUND])]))

    def _inside(self) -> list[str]:
        hosts = interface_addresses() if self._host == ANY_IPV4 else [self._host]
        return [transport_address(host, self.port) for host in hosts]

    def _named(self, addresses: Sequence[str]) -> list[str]:
        return [f"{address}/p2p/{self._peer}" for address in addresses]
