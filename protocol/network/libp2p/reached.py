"""By which addresses others have reached us.

What our own sockets show is a fact: somebody connected to this address of this computer.  Behind a router only the others
see the address that they dialled; they say it when they identify themselves (libp2p's `identify`), and that is a claim.
So it is kept with the peers that make it, one claim each, and who asks says whose claims count.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from protocol.wire.identity import PeerId

MAX_CLAIMS = 256
MAX_SEEN = 32
LAYERS = ("muxed_conn", "secured_conn", "_inner", "read_write_closer", "read_writer", "conn", "stream", "socket")
"""Names under which the layers of a connection hold the next lower one."""


class ReachedBy:
    """Addresses are multiaddrs without a peer ID, like /ip4/192.0.2.1/tcp/4001."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._claims: OrderedDict[PeerId, str] = OrderedDict()

    def watch(self, host: Any) -> None:
        """From now on, what others observe of us is noted here instead of being taken for ours by the library."""
        manager = host._observed_addr_manager
        manager.record_observation = lambda conn, observed, local: self.on_claim(conn, str(observed))

    def on_connection(self, conn: Any) -> None:
        """A connection is complete, its other end known."""
        address = _local_address(conn) if _is_inbound(conn) else None
        if address is not None:
            self._seen[address] = None
            self._seen.move_to_end(address)
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)

    def on_claim(self, conn: Any, address: str) -> None:
        """The other end says that this is where it sees us; that means something when it has dialled us."""
        if not _is_inbound(conn) or not is_public_form(address):
            return
        peer = PeerId(conn.muxed_conn.peer_id.to_base58())
        self._claims[peer] = address
        self._claims.move_to_end(peer)
        if len(self._claims) > MAX_CLAIMS:
            self._claims.popitem(last=False)

    def addresses(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Those that our sockets saw, the newest first, then those that the most peers name of whom `counts` is true."""
        seen = list(reversed(self._seen))
        claimed = Counter(address for peer, address in self._claims.items() if counts(peer))
        return seen + [address for address, _ in claimed.most_common() if address not in self._seen]


def is_public_form(address: str) -> bool:
    """Whether it is an IP and a TCP port that somebody elsewhere could dial; what a stranger sends can be anything."""
    parts = address.split("/")
    if len(address) > 100 or len(parts) != 5 or parts[0] or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        return False
    try:
        ip, port = ipaddress.ip_address(parts[2]), int(parts[4])
    except ValueError:
        return False
    odd = ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local
    return not odd and 0 < port < 65536


def _is_inbound(conn: Any) -> bool:
    return str(conn.direction) == "inbound"


def _local_address(conn: Any) -> str | None:
    """Our end of the socket under a connection; None when the library has changed its layers."""
    layer: Any = conn
    for _ in range(2 * len(LAYERS)):
        if hasattr(layer, "getsockname"):
            try:
                ip, port = layer.getsockname()[:2]
            except (OSError, ValueError):
                return None
            return f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}"
        name = next((name for name in LAYERS if name in getattr(layer, "__dict__", {}) or _has_slot(layer, name)), None)
        if name is None:
            return None
        layer = getattr(layer, name)
    return None


def _has_slot(layer: Any, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())
