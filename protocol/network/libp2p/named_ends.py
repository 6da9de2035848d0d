"""Which IP addresses and ports a peer dials because another peer names them, which can name anybody's."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from protocol.network.libp2p.dead_ends import address_of
from protocol.network.libp2p.ends import End
from protocol.network.libp2p.traversal.circuit_address import circuit_address, direct_address

LEAST_PORT = 1024
"""What listens below is seldom a peer, and often a server that holds a dialler's address against it."""


def is_an_address(ip: str) -> bool:
    """Whether one computer can have this IP address."""
    known = ipaddress.ip_address(ip)
    return not (known.is_unspecified or known.is_multicast or known.is_link_local)


def may_be_dialled(end: End, listening: Callable[[], Sequence[End]]) -> bool:
    """Whether a peer elsewhere can be at this end.

    listening: where we listen; if that is loopback alone, the others are on this computer, too.
    """
    ip = address_of(end[0])
    if ip is None or not is_an_address(str(ip)) or ip.is_reserved or end[1] < LEAST_PORT:
        return False
    return not ip.is_loopback or all(ipaddress.ip_address(ours).is_loopback for ours, _ in listening())


def end_of(address: str) -> End | None:
    """Where the peer of an address is dialled, or the relay before it; None where it is dialled by name, or not at all."""
    circuit, direct = circuit_address(address), direct_address(address)
    at = circuit.at if circuit is not None else direct[0] if direct is not None else ""
    match at.split("/"):
        case ["", ("ip4" | "ip6") as kind, ip, "tcp", port] if port.isascii() and port.isdecimal() and len(port) <= 5:
            known = address_of(ip)
            return (ip, int(port)) if known is not None and ("ip6" if ":" in ip else "ip4") == kind else None
    return None
