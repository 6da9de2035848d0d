"""Addresses by name: looked up at each attempt, and dialled only where peers are."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from protocol.transport.addresses import MAX_LOOKED_UP as MAX_FOUND
from protocol.transport.addresses import ForbiddenAddress, UnknownName, looked_up
from protocol.transport.dialer import FORBIDDEN, NO_NAME, problem_of
from protocol.transport.sockets import End

NAMED = "/dns/home.example.org/tcp/4001"
ELSEWHERE = (
    "127.0.0.1",
    "127.8.8.8",
    "::1",
    "0.0.0.0",
    "169.254.169.254",
    "224.0.0.1",
    "240.0.0.1",
    "fe80::1",
    "::ffff:127.0.0.1",
    "255.255.255.255",
)
"""Where no peer is."""


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


@pytest.mark.parametrize("ip", ELSEWHERE)
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
