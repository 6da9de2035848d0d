"""Lines between a peer and its mDNS process: our announcement, and other peers' announcements.

Each message is one line of JSON.  Anybody can forge announcements: the process checks them, and the peer checks them again,
because strangers' packets may have corrupted the process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from peer.discovery.rendezvous import MAX_ADDRESS_CHARACTERS, is_peer_id

MAX_LINE_BYTES = 4096
MAX_ADDRESSES = 8
"""Most addresses of one peer."""


@dataclass(frozen=True)
class Announcement:
    """One peer's own announcement.  run: hexadecimal."""

    run: str
    peer: str
    addresses: tuple[str, ...]

    def to_line(self) -> bytes:
        """Return the line for the mDNS process."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Announcement:
        """Parse the line of our peer."""
        fields = json.loads(line)
        return cls(fields["run"], fields["peer"], tuple(fields["addresses"]))


@dataclass(frozen=True)
class Sighting:
    """A peer on the local network, and the multiaddrs at which it claims to listen."""

    peer: str
    addresses: tuple[str, ...]

    def to_line(self) -> bytes:
        """Return the line for our peer."""
        return json.dumps(asdict(self)).encode() + b"\n"


def sighting_of(peer: str, addresses: list[Any]) -> Sighting | None:
    """Return the sighting of `peer` with its permitted `addresses`; None if `peer` is no peer ID or no address is left."""
    good = [
        address
        for address in addresses[:MAX_ADDRESSES]
        if isinstance(address, str)
        and len(address) <= MAX_ADDRESS_CHARACTERS
        and address.isascii()
        and address.isprintable()
        and address.endswith(f"/p2p/{peer}")
    ]
    return Sighting(peer, tuple(good)) if good and is_peer_id(peer) else None


def sighting_in(line: bytes) -> Sighting | None:
    """Parse a line of the mDNS process; None for anything else."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    peer, addresses = fields.get("peer"), fields.get("addresses")
    return sighting_of(peer, addresses) if isinstance(peer, str) and isinstance(addresses, list) else None
