"""The routers of the test bed do what routers of their kind do, and the rates through them are measured and told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm
from tests.protocol.transport.recorder import Recorder, pair
from tests.routers.homes import PUBLIC, Home, Homes, why_not
from tests.routers.pushing_peer import HEADER, PUSH_BYTES, push_for
from tests.routers.rates import Rate, rate
from tests.routers.router import Kind
from tests.routers.table import EVERYBODY, PUSHING, Meeting, create, shown, start

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


def has_heard(peer: Peer, other: Peer) -> bool:
    """Whether a heartbeat of the other has come; to be connected is less, as a peer that still starts refuses pushes."""
    return any(event.peer == other.peer_id for event in peer.heard(ev.PeerJoined))


def of(homes: Homes, kind: Kind) -> Home:
    return next(home for home in homes.homes if home.kind is kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_everybody_gets_out_and_is_seen_at_the_address_outside(homes: Homes, kind: Kind) -> None:
    home = of(homes, kind)
    seen = [python(home.place, CLIENT, PUBLIC, str(port)).split() for port in (5001, 5002, 5003)]
    assert {ip for ip, _ in seen} == {home.outside}
    keeps_ports = [int(port) for _, port in seen] == [5001, 5002, 5003]
    assert keeps_ports == (kind is not Kind.SYMMETRIC)


@pytest.mark.slow
def test_nobody_gets_in_where_a_router_stands(homes: Homes) -> None:
    """All are tried at once, since each of them keeps a caller waiting until that gives up."""
    callers = {
        home.kind: subprocess.Popen(
            [*homes.public, sys.executable, "-c", CLIENT, home.outside, str(5100 + number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, home in enumerate(homes.homes)
    }
    got_in = {kind for kind, caller in callers.items() if caller.communicate()[0].strip() != "not let in"}
    assert set(callers) == set(Kind) and got_in == {Kind.REACHABLE}


@pytest.mark.slow
def test_an_ipv6_address_is_reached_behind_a_router_for_ipv4(homes: Homes) -> None:
    assert "2a0e:77:" in python(homes.public, CLIENT.replace('("", ', '("::", '), of(homes, Kind.IPV6).ipv6, "5200")


@pytest.mark.slow
def test_a_router_with_upnp_opens_a_port_and_forgets_it_when_it_restarts(homes: Homes) -> None:
    home = of(homes, Kind.UPNP)
    assert python(home.place, MAPPER) == home.outside
    assert python(homes.public, CLIENT, home.outside, "5300") == f"{PUBLIC} 5300"
    homes.daemon(home).forget()
    assert python(homes.public, CLIENT, home.outside, "5301") == "not let in"


def test_all_that_is_counted_has_arrived() -> None:
    async def main() -> None:
        a, b = Recorder(), Recorder()
        async with pair(a, b) as (one, two):
            pushed = await push_for(one, two.peer_id, 0.05)
            arrived = b.finished.count((HEADER, True))
            assert pushed.size == (arrived - 1) * PUSH_BYTES > 0, "the first push does not count"
            assert pushed.seconds >= 0.05 and pushed.first_s > 0

    trio.run(main)


@pytest.mark.slow
def test_a_peer_at_home_pushes_to_the_reachable_one_when_it_is_asked(tmp_path: Path) -> None:
    with Homes(tmp_path, [Kind.CONE], line=50e6) as homes, Swarm(tmp_path) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation, program=PUSHING)
        cone = start(swarm, "cone", homes.homes[0].place, invitation, program=PUSHING)
        swarm.until("a heartbeat, which only a peer that takes pushes sends", lambda: has_heard(cone, public))
        there = rate(cone, public, False, 0.5)
        assert (there.way, there.problem) == ("direct", "")
        assert 0 < there.bits_per_s < 55e6, "the line carries no more, but for what its bucket has saved"
        assert rate(cone, cone, False, 0.5).problem, "nobody is connected to himself"


def test_the_tables_tell_how_each_two_were_connected_and_how_fast_each_way_is() -> None:
    direct, punched = Rate("direct", 200e6, 0.01), Rate("punched", 50e6, 1.5)
    relayed, failed = Rate("relayed", 9.96e6, 6.7), Rate(problem="no way")
    text = shown(
        [
            Meeting("cone", EVERYBODY, "direct", 1.0, 1.0, direct, Rate("reversed", 150e6, 1.6)),
            Meeting("cone", "cone", "punched", 2.0, 3.0, punched, punched),
            Meeting("cone", "symmetric", "relayed", 2.0, 2.0, relayed, failed),
            Meeting("symmetric", "symmetric"),
        ]
    )
    times, rates, ways = (part.splitlines() for part in text.replace("back:\n\n", "back:\n").split("\n\n"))
    assert times[1].endswith("direct 1.0/1.0 s    punched 2.0/3.0 s  relayed 2.0/2.0 s")
    assert rates[2].endswith("direct 200, reversed 150  punched 50.0, 50.0  relayed 10.0, failed")
    assert rates[3].endswith("-"), "two that never met"
    assert [row.split() for row in ways[1:]] == [
        ["direct", "1", "200", "200", "200", "1.000", "0.01", "0.01"],
        ["reversed", "1", "150", "150", "150", "0.750", "1.60", "1.60"],
        ["punched", "2", "50.0", "50.0", "50.0", "0.250", "1.50", "1.50"],
        ["relayed", "1", "10.0", "10.0", "10.0", "0.050", "6.70", "6.70"],
    ]


@pytest.mark.slow
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
