"""Addresses of peers: their parsing, the rules for dialling them, DNS names, and our own addresses.

An address is a multiaddr that ends in a peer ID: /ip4/192.0.2.1/tcp/4001/p2p/PEER, or, behind a relay,
/ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum

import trio

from protocol.bounds import BoundedDict
from protocol.transport.interface import Members
from protocol.transport.library import Connection, Host, peer_id_of
from protocol.transport.sockets import End, Socket, is_dialled, local_end, local_end_of, remote_end, remote_end_of
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId, public_key_of

# ------------------------------------------------------------------------------------------------------------------------
# Addresses of peers behind a relay: /ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER.


MAX_ADDRESS_CHARS = 200
_CIRCUIT = "/p2p-circuit"


@dataclass(frozen=True)
class CircuitAddress:
    """The address of a peer behind a relay.  at: the relay's multiaddr without its peer ID."""

    at: str
    relay: PeerId
    peer: PeerId

    def __str__(self) -> str:
        return f"{self.relay_address}{_CIRCUIT}/p2p/{self.peer}"

    @property
    def relay_address(self) -> str:
        """The relay's own address."""
        return f"{self.at}/p2p/{self.relay}"


def circuit_address(address: str) -> CircuitAddress | None:
    """Parse the address of a peer behind a relay; return None for any other text."""
    before, found, after = address.partition(_CIRCUIT)
    relay, peer = direct_address(before), after.removeprefix("/p2p/")
    if not found or relay is None or not after.startswith("/p2p/") or len(address) > MAX_ADDRESS_CHARS:
        return None
    return CircuitAddress(*relay, PeerId(peer)) if is_peer_id(peer) and peer != relay[1] else None


def direct_address(address: str) -> tuple[str, PeerId] | None:
    """Split a direct address into the multiaddr that is dialled and the peer ID; return None for any other text."""
    transport, separator, name = address.rpartition("/p2p/")
    if len(address) > MAX_ADDRESS_CHARS or not separator or "/tcp/" not in transport or "/p2p" in transport:
        return None
    if not transport.startswith(("/ip4/", "/ip6/", "/dns4/", "/dns6/", "/dns/")):
        return None
    return (transport, PeerId(name)) if is_peer_id(name) else None


def is_peer_id(text: str) -> bool:
    """Return True if `text` is the peer ID of a key that we can check."""
    try:
        public_key_of(PeerId(text))
    except Malformed:
        return False
    return True


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def own_addresses() -> set[Address]:
    """Return all current addresses of this computer; an empty set if the system does not report them."""
    import psutil

    with suppress(OSError):
        return {ip for each in psutil.net_if_addrs().values() for entry in each if (ip := address_of(entry.address))}
    return set()


def address_of(text: str) -> Address | None:
    """Parse an IP address; an IPv4-mapped address becomes IPv4.  Return None for other text, such as hardware addresses."""
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"


def listening_hosts(host: str) -> list[str]:
    """Return the hosts at which we listen.  "All IPv4 addresses" includes all IPv6 addresses if this computer has IPv6."""
    return [ANY_IPV4, ANY_IPV6] if host == ANY_IPV4 and has_ipv6() else [host]


def has_ipv6() -> bool:
    """Return True if programs on this computer can listen at IPv6 addresses."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def transport_address(host: str, port: int) -> str:
    """Return the multiaddr of a port at an IP address."""
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


def at_interfaces(ends: Sequence[End]) -> list[End]:
    """Return the endpoints whose addresses belong to this computer.

    Leaves out an address at which, by our settings or other peers' reports, a router forwards to us: such an address may
    also lead to other computers.  Returns all endpoints if none belongs to this computer.
    """
    own = set(interface_addresses())
    found = [end for end in ends if end[0] in own or ipaddress.ip_address(end[0]).is_loopback]
    return found or list(ends)


class InterfaceKind(IntEnum):
    """The kind of an interface, in the order in which we announce addresses of each kind."""

    PLAIN = 0
    VPN = 1
    """An interface that only the members of one private network can reach."""
    CONTAINERS = 2
    """A bridge to containers and virtual machines of this computer; never announced beside other addresses."""


_VPN = re.compile(r"(utun|tun|tap|wg|tailscale|zt|ipsec|nordlynx|proton|cscotun|gpd|warp|nebula|hamachi)[\w-]*", re.I)
_CONTAINERS = re.compile(
    r"(docker|podman|veth|virbr|vmnet|vnet|vboxnet|lxcbr|lxdbr|incusbr|cni|flannel|cali|cilium_|kube-|crc|waydroid)[\w.-]*"
    r"|br-[0-9a-f]{12}|bridge1\d\d|(vethernet|virtualbox|vmware) .*",
    re.I,
)
_ROUTED = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation, to which only a default route leads."""


@dataclass(frozen=True)
class LinkAddress:
    """An address of an interface.  name: the interface's name.  is_default: True if the default route leaves from it."""

    ip: Address
    name: str
    is_default: bool = False

    @property
    def kind(self) -> InterfaceKind:
        """Kind of the interface by its name; a bridge with the default route joins this computer to its network."""
        if _VPN.fullmatch(self.name):
            return InterfaceKind.VPN
        is_bridge = not self.is_default and _CONTAINERS.fullmatch(self.name)
        return InterfaceKind.CONTAINERS if is_bridge else InterfaceKind.PLAIN


def in_order(links: Iterable[LinkAddress]) -> list[LinkAddress]:
    """Sort addresses by the chance that another computer reaches them: by kind, then IPv4 and the default route first."""
    return sorted(links, key=lambda link: (link.kind, link.ip.version, not link.is_default, link.ip.packed))


def link_addresses() -> list[LinkAddress]:
    """Return the addresses of our interfaces in order, without loopback and link-local addresses."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    routed = _routed_addresses()
    found = {
        (ipaddress.ip_address(entry.address.partition("%")[0]), name)
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    usable = [each for each in found if not (each[0].is_loopback or each[0].is_link_local)]
    return in_order(LinkAddress(ip, name, ip in routed) for ip, name in usable)


def _routed_addresses() -> set[Address]:
    """Return the addresses from which this computer reaches the internet, at most one of each family.  Sends nothing."""
    found = set()
    for remote, family in _ROUTED:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            if (ip := address_of(probe.getsockname()[0])) is not None:
                found.add(ip)
    return found


def interface_addresses() -> list[str]:
    """Return the IP addresses of our interfaces in order (`in_order`); the loopback address if no other is left."""
    return list(dict.fromkeys(str(link.ip) for link in link_addresses())) or ["127.0.0.1"]


def announced_addresses() -> list[str]:
    """Return the addresses of our interfaces in order; leave out bridges to containers, unless no other is left.

    Only this computer answers at the address of such a bridge.
    """
    found = [str(link.ip) for link in link_addresses() if link.kind is not InterfaceKind.CONTAINERS]
    return list(dict.fromkeys(found)) or interface_addresses()


def is_public(address: str) -> bool:
    """Return True if every computer on the internet could dial this multiaddr, which has an IP address and a port."""
    return ipaddress.ip_address(address.split("/")[2]).is_global


# ------------------------------------------------------------------------------------------------------------------------
# The IP addresses and ports that may be dialled if another peer names them, because a peer can name any computer's address.


LEAST_PORT = 1024
"""Lowest port that is dialled.  A server on a lower port is seldom a peer, and often blocks addresses that dial it."""


class Reach(Enum):
    """The scope within which a peer at an IP address can be reached."""

    NOWHERE = "nowhere"
    THIS_COMPUTER = "this computer"
    HOME_NETWORK = "home network"
    INTERNET = "internet"


_NOWHERE_4 = tuple(
    ipaddress.IPv4Network(network)
    for network in ("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4")
)
"""Networks without peers: this network, link-local, protocol assignments, the 6to4 relay, multicast, and reserved addresses
with broadcast (RFC 6890)."""
_HOME_4 = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_HOME_6 = ipaddress.IPv6Network("fc00::/7")
_INTERNET_6 = ipaddress.IPv6Network("2000::/3")
_NOWHERE_6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2002::/16")))
"""Teredo, other protocol assignments, and 6to4: IPv6 addresses that may contain an IPv4 address.  Other such addresses
(NAT64, translated and compatible addresses) lie outside `_INTERNET_6`, like all other addresses without peers."""


def reach_of(ip: Address) -> Reach:
    """Return the scope within which a peer at this address can be reached.  ip: not an IPv4-mapped address."""
    if ip.is_loopback:
        return Reach.THIS_COMPUTER
    if isinstance(ip, ipaddress.IPv4Address):
        if any(ip in network for network in _NOWHERE_4):
            return Reach.NOWHERE
        return Reach.HOME_NETWORK if any(ip in network for network in _HOME_4) else Reach.INTERNET
    if ip in _HOME_6:
        return Reach.HOME_NETWORK
    return Reach.INTERNET if ip in _INTERNET_6 and not any(ip in network for network in _NOWHERE_6) else Reach.NOWHERE


def reach_between(sock: Socket) -> Reach | None:
    """Return the scope that contains both ends of a socket; None if either end has closed it."""
    ends = [address_of(end[0]) for end in (local_end_of(sock), remote_end_of(sock)) if end is not None]
    if len(ends) < 2 or (there := ends[1]) is None:
        return None
    return Reach.THIS_COMPUTER if ends[0] == there else reach_of(there)


END = struct.Struct(">16sH")
"""An endpoint on the wire: an IP address (IPv4 as mapped to IPv6) and a port."""


def write_end(end: End) -> bytes:
    """Encode an endpoint for the wire."""
    ip = ipaddress.ip_address(end[0].partition("%")[0])
    return END.pack(ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed, end[1])


def read_end(data: bytes) -> End:
    """Decode an endpoint from any 18 bytes."""
    packed, port = END.unpack(data)
    ip = ipaddress.IPv6Address(packed)
    return str(address_of(str(ip)) or ip), port


def is_an_address(ip: str) -> bool:
    """Return True if `ip` is an IP address that a peer can have."""
    known = address_of(ip)
    return known is not None and reach_of(known) is not Reach.NOWHERE


def may_be_dialled(end: End, listening: Callable[[], Sequence[End]]) -> bool:
    """Return True if another peer may be dialled at this endpoint.

    listening: returns the endpoints at which we listen.  If all of them are loopback, the other peers also run on this
    computer.  Otherwise no other peer has one of our addresses, and another server of this computer may listen there.
    """
    ip = address_of(end[0])
    if ip is None or (reach := reach_of(ip)) is Reach.NOWHERE or end[1] < LEAST_PORT:
        return False
    ours = [known for host, _ in listening() if (known := address_of(host)) is not None]
    if all(each.is_loopback for each in ours):
        return True
    return reach is not Reach.THIS_COMPUTER and ip not in ours


def end_of(address: str) -> End | None:
    """Return the endpoint to dial for an address: the peer's, or its relay's; None for a host name or an invalid address."""
    circuit, direct = circuit_address(address), direct_address(address)
    at = circuit.at if circuit is not None else direct[0] if direct is not None else ""
    match at.split("/"):
        case ["", ("ip4" | "ip6") as kind, ip, "tcp", port] if port.isascii() and port.isdecimal() and len(port) <= 5:
            known = address_of(ip) if "%" not in ip else None
            return (ip, int(port)) if known is not None and ("ip6" if ":" in ip else "ip4") == kind else None
    return None


MAX_LOOKED_UP = 4
"""Most IP addresses of one host name that are tried."""


FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


class UnknownName(Exception):
    """A host name without an IP address."""


class ForbiddenAddress(Exception):
    """A host name that has only IP addresses at which no peer may be dialled."""


async def looked_up(address: str, listening: Callable[[], Sequence[End]]) -> list[str]:
    """Return the addresses to dial for a multiaddr without its peer ID, at most `MAX_LOOKED_UP`.

    An IP address is returned unchanged.  A host name is looked up, and addresses at which no peer may be dialled are left
    out.  listening: returns the endpoints at which we listen.  Raises `UnknownName` or `ForbiddenAddress`.
    """
    parts = address.split("/")
    if len(parts) != 5 or parts[1] not in FAMILIES:
        return [address]
    try:
        found = await trio.socket.getaddrinfo(parts[2], int(parts[4]), FAMILIES[parts[1]], socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnknownName(parts[2]) from error
    ends = list(dict.fromkeys((str(end[0]), int(end[1])) for *_, end in found))
    allowed = [end for end in ends if may_be_dialled(end, listening)][:MAX_LOOKED_UP]
    if not allowed:
        raise ForbiddenAddress(parts[2])
    return [f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}" for ip, port in allowed]


# ------------------------------------------------------------------------------------------------------------------------
# The addresses at which other peers have reached us.
#
# The local endpoint of a connection that another peer dialled is a fact: the peer reached this address of this computer.  If
# we are behind a router, only the other peer knows the address that it dialled.  That peer reports the address when it
# identifies itself (libp2p's `identify`); this report is a claim.  One claim is kept for each peer, and the caller decides
# which peers' claims count.  A member's claim outweighs the claims of any number of strangers.


MAX_CLAIMS = 256
MAX_SEEN = 32


class ObservedAddresses:
    """Our addresses as other peers see them: multiaddrs without a peer ID, like /ip4/192.0.2.1/tcp/4001.

    members: tells members from strangers.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._seen = BoundedDict[str, None](MAX_SEEN)
        self._claims = BoundedDict[PeerId, str](MAX_CLAIMS, lambda peer, _: not members.has_member(peer))

    def watch(self, host: Host) -> None:
        """Receive other peers' claims about our addresses from now on; the library would announce them as ours."""
        host._observed_addr_manager.record_observation = lambda conn, observed, local: self.on_claim(conn, str(observed))

    def on_connection(self, conn: Connection) -> None:
        """Note the local address of a new connection if the peer dialled us."""
        end = local_end(conn) if is_dialled(conn) is False else None
        if end is not None and not _is_of_this_computer(conn, end[0]):
            self._seen.renew(transport_address(*end), None)

    def on_claim(self, conn: Connection, address: str) -> None:
        """Note the peer's claim that it sees us at `address`, if the peer dialled us."""
        if is_dialled(conn) is not False or not is_public_form(address):
            return
        self._claims.renew(peer_id_of(conn.muxed_conn.peer_id), address)

    def addresses(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Return the local addresses of inbound connections, newest first, then the claimed addresses.

        Claimed addresses are sorted by the number of members that claim them, then of strangers.  counts: returns True if a
        peer's claim counts.
        """
        seen = [*self._seen][::-1]
        claims = [(self._members.has_member(peer), address) for peer, address in self._claims.items() if counts(peer)]
        by_members = Counter(address for is_member, address in claims if is_member)
        by_strangers = Counter(address for is_member, address in claims if not is_member)
        claimed = sorted({address: None for _, address in claims}, key=lambda it: (-by_members[it], -by_strangers[it]))
        return seen + [address for address in claimed if address not in self._seen]


def _is_of_this_computer(conn: Connection, ip: str) -> bool:
    """Return True if the other end is a program on this computer: then we do not know that other computers can reach `ip`.

    It may run in a container.  Return False on loopback, where only programs on this computer are meant to connect.
    """
    if ip in set(interface_addresses()) - set(announced_addresses()):
        return True
    remote = remote_end(conn)
    return remote is not None and remote[0] == ip and not ipaddress.ip_address(ip).is_loopback


def is_public_form(address: str) -> bool:
    """Return True if `address` is a multiaddr that another computer could dial.  address: any text."""
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
# The addresses that we announce.


MAX_FOUND = 2
"""Most outside addresses that we announce besides our owner's: addresses at which peers reached us, then mapped ones."""


class OwnAddresses:
    """The addresses of our peer.

    host, port: the endpoint at which our peer listens.  announce: multiaddrs at which other peers reach us, according to our
    owner.  reached: returns such multiaddrs according to other peers.  circuits: returns our addresses behind relays.
    on_mapped: called when the addresses that a router forwards to us change.
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
        """Return the multiaddrs that other peers can dial, each ending in /p2p/<peer ID>; outside addresses come first."""
        return list(dict.fromkeys([*self._named(self._outside()), *self._circuits(), *self._named(self._inside())]))

    def nearby(self) -> list[str]:
        """Return the addresses that our owner announces and the addresses of our interfaces."""
        return list(dict.fromkeys(self._named([*self._announce, *self._inside()])))

    def ends(self) -> list[End]:
        """Return our addresses that are dialled without a relay, also those not announced, as IP addresses and ports."""
        hosts = interface_addresses() if self._host == ANY_IPV4 else []
        unnamed = self._named(transport_address(host, self.port) for host in hosts)
        split = [address.split("/") for address in [*self.all(), *unnamed]]
        ends = [(parts[2], int(parts[4])) for parts in split if len(parts) == 7 and parts[1] in ("ip4", "ip6")]
        return list(dict.fromkeys(ends))

    def ports(self) -> list[int]:
        """Return the ports at which other peers may find us: our own port, and outside ports that are forwarded to it."""
        return [self.port, *(int(address.split("/")[4]) for address in [*self._mapped, *self._announce])]

    def need_a_router(self) -> bool:
        """Return True if this computer has no public IPv4 address and our owner announces no address."""
        listening = (transport_address(host, self.port) for host in interface_addresses() if ":" not in host)
        return not self._announce and not any(is_public(address) for address in listening)

    def map(self, addresses: Sequence[str]) -> None:
        """Replace the list of addresses that a router forwards to us; we announce the public ones."""
        self._mapped = list(addresses)
        self._on_mapped()

    def _outside(self) -> list[str]:
        """Return the outside addresses according to our owner, to other peers and to our router, without our peer ID."""
        found = [address for address in [*self._reached(), *self._mapped] if is_public(address)]
        return list(dict.fromkeys([*self._announce, *dict.fromkeys(found[:MAX_FOUND])]))

    def _inside(self) -> list[str]:
        hosts = announced_addresses() if self._host == ANY_IPV4 else [self._host]
        return [transport_address(host, self.port) for host in hosts]

    def _named(self, addresses: Iterable[str]) -> list[str]:
        return [f"{address}/p2p/{self._peer}" for address in addresses]
