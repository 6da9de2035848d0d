"""The IP addresses and ports that may be dialled if another peer names them; it can name anyone's."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from enum import Enum

from protocol.transport.ends import End
from protocol.transport.nat.circuit_address import circuit_address, direct_address
from protocol.transport.nat.dead_ends import Address, address_of

LEAST_PORT = 1024
"""Least port that is dialled.  A server below it is seldom a peer, and often holds the dialling against our address."""


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
"""Networks that no peer has: this network, link-local, protocol assignments, the 6to4 relay, multicast, and reserved with
broadcast (RFC 6890)."""
_HOME_4 = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_HOME_6 = ipaddress.IPv6Network("fc00::/7")
_INTERNET_6 = ipaddress.IPv6Network("2000::/3")
_NOWHERE_6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2002::/16")))
"""Teredo and other protocol assignments, and 6to4: forms in which an IPv4 address may hide.  The other such forms (NAT64,
translated and compatible addresses) lie outside `_INTERNET_6`, as do all other addresses that no peer has."""


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


def is_an_address(ip: str) -> bool:
    """Return True if a single computer can have this IP address."""
    known = address_of(ip)
    return known is not None and reach_of(known) is not Reach.NOWHERE


def may_be_dialled(end: End, listening: Callable[[], Sequence[End]]) -> bool:
    """Return True if another peer can be at this end.

    listening: the ends at which we listen.  If they are all loopback, the other peers are on this computer too.  Otherwise
    no other peer has one of our addresses, and another server of this computer may listen there.
    """
    ip = address_of(end[0])
    if ip is None or (reach := reach_of(ip)) is Reach.NOWHERE or end[1] < LEAST_PORT:
        return False
    ours = [known for host, _ in listening() if (known := address_of(host)) is not None]
    if all(each.is_loopback for each in ours):
        return True
    return reach is not Reach.THIS_COMPUTER and ip not in ours


def end_of(address: str) -> End | None:
    """Return the end at which the peer of an address, or its relay, is dialled; None for a name or an invalid address."""
    circuit, direct = circuit_address(address), direct_address(address)
    at = circuit.at if circuit is not None else direct[0] if direct is not None else ""
    match at.split("/"):
        case ["", ("ip4" | "ip6") as kind, ip, "tcp", port] if port.isascii() and port.isdecimal() and len(port) <= 5:
            known = address_of(ip) if "%" not in ip else None
            return (ip, int(port)) if known is not None and ("ip6" if ":" in ip else "ip4") == kind else None
    return None
