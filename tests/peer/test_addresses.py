"""Addresses as people write them: what they become, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from peer.addresses import local_remark, multiaddr_of, names_only_local

WRITTEN = {
    "203.0.113.7": "/ip4/203.0.113.7/tcp/4001",
    " 203.0.113.7:80 ": "/ip4/203.0.113.7/tcp/80",
    "2001:db8::7": "/ip6/2001:db8::7/tcp/4001",
    "[2001:DB8::7]:4002": "/ip6/2001:db8::7/tcp/4002",
    "home.example.org": "/dns/home.example.org/tcp/4001",
    "Home.Example.ORG.:4002": "/dns/home.example.org/tcp/4002",
    "xn--bcher-kva.example:5000": "/dns/xn--bcher-kva.example/tcp/5000",
    "/ip4/203.0.113.7/tcp/4001": "/ip4/203.0.113.7/tcp/4001",
    "/dns6/home.example.org/tcp/4001/p2p/12D3KooWx": "/dns6/home.example.org/tcp/4001/p2p/12D3KooWx",
}
REFUSED = {
    "": "is not the address of a peer",
    "home.example.org:0": "is not a port",
    "home.example.org:80": "is not allowed with a name",
    "-home.example": "is not the address of a peer",
    "0.0.0.0:4001": "is not the address of one computer",
    "224.0.0.1": "is not the address of one computer",
    "/dnsaddr/example.org": "names a DNS record with further addresses",
    "/dns4/a b/tcp/4001": "is not the name of a computer",
    "/unix/tmp/x/y": "is not the address of a peer",
    "x" * 300: "is not the address of a peer",
    "\x1b[2J": "is not the address of a peer",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_a_person_writes_becomes_a_multiaddr(text: str) -> None:
    assert multiaddr_of(text, 4001) == WRITTEN[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_address_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]) as told:
        multiaddr_of(text, 4001)
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("addresses", "local"),
    [
        (["/ip4/192.168.1.7/tcp/4001"], True),
        (["/ip4/127.0.0.1/tcp/4001"], True),
        (["/ip4/100.64.3.2/tcp/4001"], True),
        (["/ip4/8.8.8.8/tcp/4001", "/ip4/10.0.0.1/tcp/4001"], False),
        (["/ip4/10.0.0.1/tcp/4001", "/dns/home.example.org/tcp/4001"], False),
        ([], False),
    ],
)
def test_an_invitation_of_local_addresses_alone_is_known(addresses: list[str], local: bool) -> None:
    assert names_only_local(addresses) is local and bool(local_remark(addresses)) is local
