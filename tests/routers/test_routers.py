"""The routers of the test bed do what routers of their kind do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.routers.homes import PUBLIC, Home, Homes, why_not
from tests.routers.router import Kind

WHY_NOT = why_not()
SERVER = """
import socket
listening = socket.create_server(("::", 4001), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
while True:
    connection, address = listening.accept()
    connection.sendall(f"{address[0].removeprefix('::ffff:')} {address[1]}".encode())
    connection.close()
"""
CLIENT = """
import socket, sys
try:
    connection = socket.create_connection((sys.argv[1], 4001), 2, ("", int(sys.argv[2])))
    print(connection.recv(100).decode())
except OSError:
    print("not let in")
"""
MAPPER = """
import miniupnpc, sys
found = miniupnpc.UPnP()
found.discoverdelay = 5000  # ms
for _ in range(12):
    if found.discover():
        break
found.selectigd()
found.addportmapping(4001, "TCP", found.lanaddr, 4001, "test", "", 600)
print(found.externalipaddress())
"""

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """One of each kind; a server listens on every computer, and says where it was called from."""
    servers: list[subprocess.Popen[bytes]] = []
    with Homes(tmp_path_factory.mktemp("routers"), list(Kind)) as homes:
        try:
            for place in (homes.public, *(home.place for home in homes.homes)):
                servers.append(subprocess.Popen([*place, sys.executable, "-c", SERVER], stdout=subprocess.PIPE))
            for server in servers:
                assert server.stdout is not None and server.stdout.readline() == b"listens\n"
            yield homes
        finally:
            for server in servers:
                server.kill()
                server.communicate()


def python(place: tuple[str, ...], program: str, *words: str) -> str:
    """What a program prints there."""
    done = subprocess.run([*place, sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def of(homes: Homes, kind: Kind) -> Home:
    return next(home for home in homes.homes if home.kind is kind)


@pytest.mark.parametrize("kind", Kind)
def test_everybody_gets_out_and_is_seen_at_the_address_outside(homes: Homes, kind: Kind) -> None:
    home = of(homes, kind)
    seen = [python(home.place, CLIENT, PUBLIC, str(port)).split() for port in (5001, 5002, 5003)]
    assert {ip for ip, _ in seen} == {home.outside}
    keeps_ports = [int(port) for _, port in seen] == [5001, 5002, 5003]
    assert keeps_ports == (kind is not Kind.SYMMETRIC)


@pytest.mark.parametrize("kind", Kind)
def test_nobody_gets_in_where_a_router_stands(homes: Homes, kind: Kind) -> None:
    answer = python(homes.public, CLIENT, of(homes, kind).outside, "5100")
    assert (answer == f"{PUBLIC} 5100") == (kind is Kind.REACHABLE), answer


def test_an_ipv6_address_is_reached_behind_a_router_for_ipv4(homes: Homes) -> None:
    assert "2a0e:77:" in python(homes.public, CLIENT.replace('("", ', '("::", '), of(homes, Kind.IPV6).ipv6, "5200")


def test_a_router_with_upnp_opens_a_port_and_forgets_it_when_it_restarts(homes: Homes) -> None:
    home = of(homes, Kind.UPNP)
    assert python(home.place, MAPPER) == home.outside
    assert python(homes.public, CLIENT, home.outside, "5300") == f"{PUBLIC} 5300"
    homes.daemon(home).forget()
    assert python(homes.public, CLIENT, home.outside, "5301") == "not let in"


def test_a_home_that_moves_or_whose_router_was_off_gets_out_again_from_another_address(homes: Homes) -> None:
    home = of(homes, Kind.CONE)
    homes.move(home, 9)
    assert python(home.place, CLIENT, PUBLIC, "5400") == f"{home.outside} 5400"
    homes.switch_off(home)
    assert python(home.place, CLIENT, PUBLIC, "5401") == "not let in"
    homes.switch_on(home, 9)
    assert python(home.place, CLIENT, PUBLIC, "5402") == f"{home.outside.rpartition('.')[0]}.9 5402"
    homes.switch_off(home)
    homes.switch_on(home, 2)
    homes.move(home, 2)
