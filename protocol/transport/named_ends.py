"""Which IP addresses and ports a peer dials because another peer names them, which can name anybody's."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from enum import Enum

from protocol.transport.ends import End
from protocol.transport.nat.circuit_address import circuit_address, direct_address
from protocol.transport.nat.dead_ends import Address, address_of

LEAST_PORT = 1024
"""What listens below is seldom a peer, and often a server that holds a dialler's address against it."""


class Reach(Enum):
    """From where a peer at an IP address can be reached."""

    NOWHERE = "nowhere"
    THIS_COMPUTER = "this computer"
    HOME_NETWORK = "home network"
    INTERNET = "internet"


_NOWHERE_4 = tuple(
    ipaddress.IPv4Network(network)
    for network in ("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4")
)
"""This network, link-local, protocol assignments, the 6to4 relay, multicast, reserved with broadcast (RFC 6890)."""
_HOME_4 = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_HOME_6 = ipaddress.IPv6Network("fc00::/7")
_INTERNET_6 = ipaddress.IPv6Network("2000::/3")
_NOWHERE_6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2002::/16")))
"""Teredo and other protocol assignments, and 6to4: forms in which an IPv4 address may hide.  So may it in NAT64, in
translated and in compatible addresses, which are outside `_INTERNET_6` with all others that no peer has."""


def reach_of(ip: Address) -> Reach:
    """Return from where a peer at this address, which is no IPv4-mapped one, can be reached."""
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
    """Whether one computer can have this IP address."""
    known = address_of(ip)
    return known is not None and reach_of(known) is not Reach.NOWHERE


def may_be_dialled(end: End, listening: Callable[[], Sequence[End]]) -> bool:
    """Whether a peer elsewhere can be at this end.

    listening: where we listen.  If that is loopback alone, the others are on this computer, too; else nobody elsewhere is at
    one of our own addresses, and another server of this computer may be.
    """
    ip = address_of(end[0])
    if ip is None or (reach := reach_of(ip)) is Reach.NOWHERE or end[1] < LEAST_PORT:
        return False
    ours = [known for host, _ in listening() if (known := address_of(host)) is not None]
    if all(each.is_loopback for each in ours):
        return True
    return reach is not Reach.THIS_COMPUTER and ip not in ours


def end_of(address: str) -> End | None:
    """Where the peer of an address is dialled, or the relay before it; None where it is dialled by name, or not at all."""
    circuit, direct = circuit_address(address), direct_address(address)
    at = circuit.at if circuit is not None else direct[0] if direct is not None else ""
    match at.split("/"):
        case ["", ("ip4" | "ip6") as kind, ip, "tcp", port] if port.isascii() and port.isdecimal() and len(port) <= 5:
            known = address_of(ip) if "%" not in ip else None
            return (ip, int(port)) if known is not None and ("ip6" if ":" in ip else "ip4") == kind else None
    return None
