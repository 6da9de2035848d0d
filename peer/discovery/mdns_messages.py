"""The lines between a peer and its mDNS process: what is to be announced, and what others announce.

Each is one line of JSON.  Others' announcements are anybody's word: the process checks them, and the peer checks them again,
because the process has read the packets of strangers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from peer.discovery.founded_runs import Founded, founded_in
from peer.discovery.rendezvous import MAX_ADDRESS_CHARACTERS, is_peer_id

MAX_LINE_BYTES = 4096
MAX_ADDRESSES = 8
"""Addresses of one peer."""


@dataclass(frozen=True)
class Announcement:
    """One peer's own announcement.

    run: hexadecimal; empty to announce no addresses and look for no peers.  founded: the run without records that we
    founded.  Founders are looked for with `founded`, and without `run`.
    """

    run: str = ""
    peer: str = ""
    addresses: tuple[str, ...] = ()
    founded: Founded | None = None

    def to_line(self) -> bytes:
        """The line for the mDNS process."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Announcement:
        """The announcement in our peer's line."""
        fields = json.loads(line)
        founded = Founded(**fields["founded"]) if fields["founded"] is not None else None
        return cls(fields["run"], fields["peer"], tuple(fields["addresses"]), founded)


@dataclass(frozen=True)
class Sighting:
    """A peer on the local network, and the multiaddrs at which it says that it listens."""

    peer: str
    addresses: tuple[str, ...]


def sighting_of(peer: str, addresses: list[Any]) -> Sighting | None:
    """The sighting of `peer` with those of `addresses` that it may give; None where it is no peer or gives none."""
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


def to_line(heard: Sighting | Founded) -> bytes:
    """The line for our peer."""
    return json.dumps(asdict(heard)).encode() + b"\n"


def heard_in(line: bytes) -> Sighting | Founded | None:
    """The announcement in a line of the mDNS process; None for anything else."""
    found = founded_in(line)
    if found is not None or len(line) > MAX_LINE_BYTES:
        return found
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    peer, addresses = fields.get("peer"), fields.get("addresses")
    return sighting_of(peer, addresses) if isinstance(peer, str) and isinstance(addresses, list) else None
