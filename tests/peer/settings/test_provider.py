"""Addresses from the variables of providers."""

from __future__ import annotations

from peer.settings.provider import mapped_addresses


def test_the_address_outside_is_taken_from_the_providers_variables() -> None:
    runpod = {"RUNPOD_PUBLIC_IP": "203.0.113.7", "RUNPOD_TCP_PORT_4001": "18733", "RUNPOD_TCP_PORT_22": "18732"}
    vast = {"PUBLIC_IPADDR": "2001:db8::7", "VAST_TCP_PORT_4001": "40017"}
    assert mapped_addresses(runpod, 4001) == ("/ip4/203.0.113.7/tcp/18733",)
    assert mapped_addresses(vast, 4001) == ("/ip6/2001:db8::7/tcp/40017",)
    assert mapped_addresses(runpod, 4002) == mapped_addresses({}, 4001) == (), "that port is not mapped"
    assert mapped_addresses(runpod | {"RUNPOD_TCP_PORT_4001": "none"}, 4001) == ()
