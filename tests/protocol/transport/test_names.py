"""Addresses that others name, by number or by name: looked up at each attempt, and dialled only where peers are."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from protocol.transport.addresses import MAX_LOOKED_UP as MAX_FOUND
from protocol.transport.addresses import (
    ForbiddenAddress,
    Reach,
    UnknownName,
    address_of,
    end_of,
    looked_up,
    may_be_dialled,
    reach_of,
)
from protocol.transport.dialer import FORBIDDEN, NO_NAME, problem_of
from protocol.transport.sockets import End
from protocol.wire.identity import Identity


class Resolver:
    """Knows one name."""

    def __init__(self, *ips: str) -> None:
        self.ips, self.asked = ips, 0

    async def getaddrinfo(self, host: Any, port: Any, family: int = 0, kind: int = 0, *rest: Any) -> list[Any]:
        self.asked += 1
        if not self.ips:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET6 if ":" in ip else socket.AF_INET, kind, 6, "", (ip, port)) for ip in self.ips]

    async def getnameinfo(self, *arguments: Any) -> Any:
        raise NotImplementedError


def look_up(
    resolver: Resolver, address: str = "/dns/home.example.org/tcp/4001", *, listening: Sequence[End] = ()
) -> list[str]:
    ours = listening or [("192.168.1.2", 4001)]

    async def main() -> list[str]:
        trio.socket.set_custom_hostname_resolver(resolver)  # type: ignore[arg-type]
        return await looked_up(address, lambda: ours)

    return trio.run(main)


def test_an_ip_address_is_dialled_as_it_is() -> None:
    resolver = Resolver("203.0.113.7")
    assert look_up(resolver, "/ip4/127.0.0.1/tcp/22") == ["/ip4/127.0.0.1/tcp/22"] and not resolver.asked


def test_a_name_is_dialled_at_each_of_its_addresses() -> None:
    found = look_up(Resolver("8.8.8.8", "2606:4700::1", "8.8.8.8"))
    assert found == ["/ip4/8.8.8.8/tcp/4001", "/ip6/2606:4700::1/tcp/4001"]
    assert len(look_up(Resolver(*(f"8.8.8.{n}" for n in range(1, 50))))) == MAX_FOUND


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1"])
def test_a_name_leads_nowhere_that_a_strangers_claim_does_not(ip: str) -> None:
    with pytest.raises(ForbiddenAddress) as told:
        look_up(Resolver(ip))
    assert problem_of(told.value) == FORBIDDEN
    assert look_up(Resolver(ip, "8.8.8.8")) == ["/ip4/8.8.8.8/tcp/4001"]


def test_ports_below_those_of_peers_are_not_dialled_by_name() -> None:
    with pytest.raises(ForbiddenAddress):
        look_up(Resolver("8.8.8.8"), "/dns4/home.example.org/tcp/22")


def test_peers_of_this_computer_alone_find_each_other_by_name() -> None:
    assert look_up(Resolver("127.0.0.1"), listening=[("127.0.0.1", 4001)]) == ["/ip4/127.0.0.1/tcp/4001"]


def test_a_name_that_nobody_knows_is_said_to_be_one() -> None:
    with pytest.raises(UnknownName) as told:
        look_up(Resolver())
    assert problem_of(told.value) == NO_NAME


A, B = (Identity.generate().peer_id for _ in range(2))


def test_peers_on_one_computer_dial_each_other_there() -> None:
    assert may_be_dialled(("127.0.0.1", 4001), lambda: [("127.0.0.1", 4002)])
    assert may_be_dialled(("192.168.1.2", 4001), lambda: [("127.0.0.1", 4002)])


@pytest.mark.parametrize(
    ("ip", "reach"),
    [
        ("0.0.0.0", Reach.NOWHERE),  # noqa: S104 - no address at all
        ("0.1.2.3", Reach.NOWHERE),
        ("169.254.169.254", Reach.NOWHERE),
        ("192.0.0.170", Reach.NOWHERE),
        ("192.88.99.1", Reach.NOWHERE),
        ("224.0.0.251", Reach.NOWHERE),
        ("240.0.0.1", Reach.NOWHERE),
        ("255.255.255.255", Reach.NOWHERE),
        ("::ffff:0.0.0.0", Reach.NOWHERE),
        ("::", Reach.NOWHERE),
        ("::127.0.0.1", Reach.NOWHERE),
        ("::ffff:0:127.0.0.1", Reach.NOWHERE),
        ("64:ff9b::7f00:1", Reach.NOWHERE),
        ("64:ff9b:1::7f00:1", Reach.NOWHERE),
        ("100::1", Reach.NOWHERE),
        ("2001:0:7f00:1::1", Reach.NOWHERE),
        ("2002:7f00:1::1", Reach.NOWHERE),
        ("2002:c0a8:105::1", Reach.NOWHERE),
        ("fe80::1", Reach.NOWHERE),
        ("fec0::1", Reach.NOWHERE),
        ("ff02::fb", Reach.NOWHERE),
        ("127.0.0.1", Reach.THIS_COMPUTER),
        ("127.255.0.1", Reach.THIS_COMPUTER),
        ("::1", Reach.THIS_COMPUTER),
        ("::ffff:127.0.0.1", Reach.THIS_COMPUTER),
        ("10.1.2.3", Reach.HOME_NETWORK),
        ("172.31.0.1", Reach.HOME_NETWORK),
        ("192.168.1.2", Reach.HOME_NETWORK),
        ("::ffff:192.168.1.2", Reach.HOME_NETWORK),
        ("100.100.100.200", Reach.HOME_NETWORK),
        ("fd00:ec2::254", Reach.HOME_NETWORK),
        ("1.1.1.1", Reach.INTERNET),
        ("172.32.0.1", Reach.INTERNET),
        ("100.128.0.1", Reach.INTERNET),
        ("2606:4700::1111", Reach.INTERNET),
        ("2a00:1450:4001::8a", Reach.INTERNET),
    ],
)
def test_every_form_of_an_address_is_known(ip: str, reach: Reach) -> None:
    known = address_of(ip)
    assert known is not None and reach_of(known) is reach
    elsewhere = reach in (Reach.HOME_NETWORK, Reach.INTERNET)
    assert may_be_dialled((ip, 4001), lambda: [("192.168.7.7", 4001), ("127.0.0.1", 4001)]) is elsewhere
    assert not may_be_dialled((ip, 1023), lambda: [("192.168.7.7", 4001)])


@pytest.mark.parametrize("ip", ["192.168.1.5", "::ffff:192.168.1.5", "::ffff:c0a8:105", "fd00::5", "2a00::5"])
def test_nobody_has_us_dial_another_server_at_one_of_our_own_addresses(ip: str) -> None:
    ours: list[End] = [("127.0.0.1", 4001), ("192.168.1.5", 4001), ("fd00::5", 4001), ("2a00::5", 4001)]
    assert not may_be_dialled((ip, 6379), lambda: ours)
    assert not may_be_dialled((ip, 4001), lambda: ours)
    assert may_be_dialled(("192.168.1.6", 6379), lambda: ours)


@pytest.mark.parametrize("ip", ["fe80::1%eth0", "2a00::1%eth0", "2a00::1%25eth0", "::1%lo"])
def test_no_end_is_read_from_an_address_with_a_zone(ip: str) -> None:
    assert end_of(f"/ip6/{ip}/tcp/4001/p2p/{A}") is None


@pytest.mark.parametrize(
    "at", ["/dns4/example.org/tcp/4001", "/ip4/192.0.2.1/udp/4001", "/ip4/::1/tcp/4001", "/ip4/192.0.2.1/tcp/-1"]
)
def test_no_end_is_read_from_a_name_or_from_anything_odd(at: str) -> None:
    assert end_of(f"{at}/p2p/{A}") is None and end_of(f"{at}/p2p/{A}/p2p-circuit/p2p/{B}") is None
    assert end_of(f"/ip6/2001:db8::1/tcp/4001/p2p/{A}/p2p-circuit/p2p/{B}") == ("2001:db8::1", 4001)
