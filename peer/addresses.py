"""Addresses of peers: in the form that people write (HOST[:PORT]), and as the multiaddrs in invitations."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

LEAST_NAMED_PORT = 1024
"""Lowest port dialled by name.  A name may point to another host later, so it is dialled only at ports at which peers
listen; the same holds for addresses that strangers claim (`protocol.transport.addresses`)."""
MAX_NAME_CHARS = 120
NAME = re.compile(r"(?=.*[a-z])(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?")
NAMED_BY = ("dns", "dns4", "dns6")
LOCAL = tuple(
    ipaddress.ip_network(each)
    for each in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "127.0.0.0/8",
        "fc00::/7",
        "fe80::/10",
        "::1/128",
    )
)
HOW = "write HOST:PORT, such as home.example.org:4001, or a multiaddr, such as /ip4/203.0.113.7/tcp/4001"


def multiaddr_of(text: str, port: int) -> str:
    """Return the multiaddr for HOST[:PORT] or a multiaddr.  port: the default port.  Raises ValueError with a sentence."""
    text = text.strip()
    if text.startswith("/"):
        return _checked(text)
    host, port_text = _split(text, port)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        if not NAME.fullmatch(host.lower()) or len(host) > MAX_NAME_CHARS:
            raise ValueError(f"{_shown(text)} is not the address of a peer; {HOW}") from None
        return _checked(f"/dns/{host.lower().rstrip('.')}/tcp/{port_text}")
    return _checked(f"/ip{ip.version}/{ip}/tcp/{port_text}")


def names_only_local(addresses: Sequence[str]) -> bool:
    """Return True if all `addresses` belong to a local network or this computer.  Names do not count as local."""
    hosts = [host for address in addresses if (host := _ip_in(address)) is not None]
    here = [any(host.version == network.version and host in network for network in LOCAL) for host in hosts]
    return bool(addresses) and len(hosts) == len(addresses) and all(here)


def local_remark(addresses: Sequence[str]) -> str:
    """Return a sentence for an invitation that names only local addresses; otherwise an empty string."""
    if not names_only_local(addresses):
        return ""
    loopback = all(host is not None and host.is_loopback for host in map(_ip_in, addresses))
    where = "the computer that it was made on" if loopback else "the local network that it was made in"
    return (
        f"the invitation names only addresses of {where}, so nobody elsewhere can join with it; for others name an address "
        "that they reach: `peer run invite --address HOST:PORT`"
    )


def _split(text: str, port: int) -> tuple[str, str]:
    """Return host and port; an IPv6 address with a port is in brackets."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        return (host, rest.removeprefix(":") or str(port)) if closed and rest[:1] in ("", ":") else (text, "")
    if text.count(":") > 1:
        return text, str(port)
    host, _, given = text.partition(":")
    return host, given or str(port)


def _checked(address: str) -> str:
    """Return a valid TCP multiaddr, which may end with a peer ID or a relay's path; raises ValueError with a sentence."""
    parts = address.split("/")
    kind = parts[1] if len(parts) > 1 else ""
    if kind == "dnsaddr":
        raise ValueError(
            f"{_shown(address)} names a DNS record with further addresses, and such records are not followed; {HOW}"
        )
    if len(parts) < 5 or parts[3] != "tcp" or kind not in ("ip4", "ip6", *NAMED_BY):
        raise ValueError(f"{_shown(address)} is not the address of a peer; {HOW}")
    port = parts[4]
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ValueError(f"{_shown(port) or 'nothing'} is not a port; {HOW}")
    if kind in NAMED_BY:
        if not NAME.fullmatch(parts[2].lower()) or len(parts[2]) > MAX_NAME_CHARS:
            raise ValueError(f"{_shown(parts[2]) or 'nothing'} is not the name of a computer; {HOW}")
        if int(port) < LEAST_NAMED_PORT:
            raise ValueError(
                f"port {port} is not allowed with a name; give the IP address, or a port of at least {LEAST_NAMED_PORT}"
            )
    else:
        ip = _ip_in(address)
        if ip is None or f"ip{ip.version}" != kind or ip.is_unspecified or ip.is_multicast:
            raise ValueError(f"{_shown(parts[2]) or 'nothing'} is not the address of one computer; {HOW}")
    return address


def _ip_in(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address at the beginning of a multiaddr; None if it begins with a name."""
    parts = address.split("/")
    try:
        return ipaddress.ip_address(parts[2]) if len(parts) > 2 and parts[1] in ("ip4", "ip6") else None
    except ValueError:
        return None


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:80]
