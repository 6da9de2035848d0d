"""Addresses of peers behind a relay: /ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId, public_key_of

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
