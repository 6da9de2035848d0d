"""What is announced on the local network."""

from __future__ import annotations

from protocol.network.libp2p.discovery import service_info
from protocol.wire.identity import Identity
from tests.protocol.network.recorder import RUN


def test_addresses_of_both_kinds_are_announced() -> None:
    """Most homes have both."""
    me = Identity.generate().peer_id
    addresses = [f"/ip4/192.168.1.7/tcp/4001/p2p/{me}", f"/ip6/2001:db8::7/tcp/4001/p2p/{me}"]
    info = service_info(RUN, me, addresses)
    assert [value and value.decode() for value in info.properties.values()] == addresses
    assert info.parsed_addresses() == ["192.168.1.7", "2001:db8::7"]
