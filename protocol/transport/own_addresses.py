"""Where others may find this peer: at its interfaces, at ports that lead here from outside, and behind relays."""

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
# The local end of a connection that others have dialled is a fact: somebody connected to this address of this computer.
# Behind a router only the others know the address that they dialled; they tell it when they identify themselves (libp2p's
# `identify`), and that is a claim.  Claims are kept by peer, one each, and the caller says whose claims count.  A member's
# claim outweighs those of any number of strangers.


MAX_CLAIMS = 256
MAX_SEEN = 32


class ObservedAddresses:
    """The addresses of one peer, as multiaddrs without a peer ID, like /ip4/192.0.2.1/tcp/4001.

    members: tells members from strangers.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._claims: OrderedDict[PeerId, str] = OrderedDict()

    def watch(self, host: Host) -> None:
        """From now on take note here of the addresses that others claim, which the library would announce as ours."""
        host._observed_addr_manager.record_observation = lambda conn, observed, local: self.on_claim(conn, str(observed))

    def on_connection(self, conn: Connection) -> None:
        """A connection is complete: take note of its local address if the peer has dialled us there."""
        end = local_end(conn) if is_dialled(conn) is False else None
        if end is not None and not _is_of_this_computer(conn, end[0]):
            address = transport_address(*end)
            self._seen[address] = None
            self._seen.move_to_end(address)
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)

    def on_claim(self, conn: Connection, address: str) -> None:
        """The other end claims to see us at `address`; that counts only if it has dialled us."""
        if is_dialled(conn) is not False or not is_public_form(address):
            return
        peer = peer_id_of(conn.muxed_conn.peer_id)
        self._claims[peer] = address
        self._claims.move_to_end(peer)
        if len(self._claims) > MAX_CLAIMS:
            strangers = (known for known in self._claims if not self._members.has_member(known))
            del self._claims[next(strangers, next(iter(self._claims)))]

    def addresses(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Local addresses of inbound connections, the newest first, then claimed ones, those of most members first.

        counts: whether a peer's claim counts.
        """
        seen = list(reversed(self._seen))
        claims = [(self._members.has_member(peer), address) for peer, address in self._claims.items() if counts(peer)]
        by_members = Counter(address for is_member, address in claims if is_member)
        by_strangers = Counter(address for is_member, address in claims if not is_member)
        claimed = sorted({address: None for _, address in claims}, key=lambda it: (-by_members[it], -by_strangers[it]))
        return seen + [address for address in claimed if address not in self._seen]


def _is_of_this_computer(conn: Connection, ip: str) -> bool:
    """Whether the other end is a program on this computer, so that nothing says that others can reach `ip`.

    On loopback, where no other computer is meant to come in, it says all there is to know.
    """
    remote = remote_end(conn)
    return remote is not None and remote[0] == ip and not ipaddress.ip_address(ip).is_loopback


def is_public_form(address: str) -> bool:
    """Whether `address`, which can be anything, is an IP address and a TCP port that another computer could dial."""
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
