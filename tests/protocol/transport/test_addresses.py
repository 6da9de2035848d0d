"""Addresses: those of this computer, those that others name, and those at which peers were reached."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trio

from protocol.transport import addresses
from protocol.transport.addresses import (
    ANY_IPV4,
    MAX_CLAIMS,
    ForbiddenAddress,
    InterfaceKind,
    LinkAddress,
    ObservedAddresses,
    OwnAddresses,
    Reach,
    UnknownName,
    address_of,
    announced_addresses,
    end_of,
    in_order,
    interface_addresses,
    is_public_form,
    looked_up,
    may_be_dialled,
    reach_of,
)
from protocol.transport.addresses import MAX_LOOKED_UP as MAX_FOUND
from protocol.transport.dialer import FORBIDDEN, NO_NAME, problem_of
from protocol.transport.sockets import End
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import Recorder, dialled, network

ME = Identity.generate().peer_id
LAN, DOCKER, VPN = ("eth0", "192.168.7.2"), ("docker0", "172.17.0.1"), ("tun0", "10.8.0.2")


def link(name: str, ip: str = "192.168.7.2", *, is_default: bool = False) -> LinkAddress:
    return LinkAddress(ipaddress.ip_address(ip), name, is_default)


def these(monkeypatch: pytest.MonkeyPatch, links: list[tuple[str, str]], routed: str = "") -> None:
    """This computer has these interfaces, with one address each; `routed` is that of the default route."""
    found = {
        name: [SimpleNamespace(family=socket.AF_INET6 if ":" in ip else socket.AF_INET, address=ip)] for name, ip in links
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(found, SimpleNamespace(isup=True)))
    monkeypatch.setattr(addresses, "_routed_addresses", lambda: {ipaddress.ip_address(routed)} if routed else set())


INTERFACES = {
    InterfaceKind.PLAIN: "eth0 enp3s0 wlan0 wlp2s0 en0 Ethernet Wi-Fi br0 br-lan bond0 ppp0 eno1.20 venet0 usb0 bridge0",
    InterfaceKind.VPN: "tun0 tap0 wg0 wg-home tailscale0 utun4 ztabc123 nordlynx",
    InterfaceKind.CONTAINERS: "docker0 docker_gwbridge br-0123456789ab veth1a2b3c virbr0 vmnet8 vboxnet0 lxdbr0 cni0 "
    "podman1 cali12.3 bridge100 flannel.1",
}
WITH_SPACES = [
    ("WLAN 2", InterfaceKind.PLAIN),
    ("vEthernet (WSL)", InterfaceKind.CONTAINERS),
    ("VirtualBox Host-Only Network", InterfaceKind.CONTAINERS),
]


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, kind) for kind, names in INTERFACES.items() for name in names.split()), *WITH_SPACES]
)
def test_an_interface_is_known_by_its_name(name: str, kind: InterfaceKind) -> None:
    assert link(name).kind is kind


def test_the_address_of_the_default_route_comes_first_then_other_networks_then_vpns_then_containers() -> None:
    links = [
        link("docker0", "172.17.0.1"),
        link("tun0", "10.8.0.2"),
        link("eth1", "10.0.0.5"),
        link("eth0", "2a00::5"),
        link("wlan0", "192.168.7.2", is_default=True),
    ]
    assert [str(each.ip) for each in in_order(links)] == ["192.168.7.2", "10.0.0.5", "2a00::5", "10.8.0.2", "172.17.0.1"]


def test_beside_twenty_bridges_to_containers_only_the_network_and_the_vpn_are_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bridges = [(f"br-{number:012x}", f"172.{18 + number}.0.1") for number in range(20)]
    these(monkeypatch, [*bridges, DOCKER, VPN, LAN], "192.168.7.2")
    assert announced_addresses() == ["192.168.7.2", "10.8.0.2"]
    assert len(interface_addresses()) == 23 and interface_addresses()[:2] == announced_addresses()


def test_nobody_has_us_dial_this_computer_at_an_address_that_we_do_not_announce(monkeypatch: pytest.MonkeyPatch) -> None:
    these(monkeypatch, [DOCKER, LAN])
    own = OwnAddresses(ME, ANY_IPV4, 4001, (), reached=lambda: (), circuits=lambda: (), on_mapped=lambda: None)
    assert own.all() == [f"/ip4/192.168.7.2/tcp/4001/p2p/{ME}"] == own.nearby()
    assert not may_be_dialled(("172.17.0.1", 6379), own.ends)
    assert may_be_dialled(("172.17.0.2", 6379), own.ends)


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


FORMS = {
    Reach.NOWHERE: "0.0.0.0 0.1.2.3 169.254.169.254 192.0.0.170 192.88.99.1 224.0.0.251 240.0.0.1 255.255.255.255 "
    "::ffff:0.0.0.0 :: ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::7f00:1 100::1 "
    "2001:0:7f00:1::1 2002:7f00:1::1 2002:c0a8:105::1 fe80::1 fec0::1 ff02::fb",
    Reach.THIS_COMPUTER: "127.0.0.1 127.255.0.1 ::1 ::ffff:127.0.0.1",
    Reach.HOME_NETWORK: "10.1.2.3 172.31.0.1 192.168.1.2 ::ffff:192.168.1.2 100.100.100.200 fd00:ec2::254",
    Reach.INTERNET: "1.1.1.1 172.32.0.1 100.128.0.1 2606:4700::1111 2a00:1450:4001::8a",
}


@pytest.mark.parametrize(("ip", "reach"), [(ip, reach) for reach, ips in FORMS.items() for ip in ips.split()])
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


@pytest.mark.slow
async def test_both_ends_know_the_address_that_was_dialled_and_only_a_live_one_answers() -> None:
    b = Recorder()
    async with network(Recorder()) as one, network(b) as two:
        address = two.addresses()[0]
        assert not two.reached_here(lambda peer: True)
        assert (await dialled(one, address)).problem == ""
        await b.until(lambda: b.connected)
        assert two.reached_here(lambda peer: False) == [address] and one.reached_there() == [address]
        assert not one.reached_here(lambda peer: True) and not two.reached_there(), "who was dialled did not dial"
        assert await two.answers(one.addresses()[0]), "connected the other way round already"
        for dead in (f"/ip4/127.0.0.1/tcp/1/p2p/{one.peer_id}", address.split("/p2p/")[0] + f"/p2p/{ME}", "nothing"):
            assert not await two.answers(dead)
        assert await one.request(two.peer_id, "echo", b"x", timeout_s=5) == b"x"


class Connection:
    """As the library shows one; it is its own multiplexed connection and peer ID."""

    is_closed = False

    def __init__(self, peer: PeerId, direction: str = "inbound") -> None:
        self.direction = direction
        self._peer = peer

    @property
    def muxed_conn(self) -> Connection:
        return self

    @property
    def peer_id(self) -> Connection:
        return self

    def to_base58(self) -> str:
        return self._peer

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    async def close(self) -> None:
        return


class AtSocket(Connection):
    """With sockets at its two ends."""

    def __init__(self, local: str, remote: str) -> None:
        super().__init__(ME)
        self.local, self.remote = local, remote

    def getsockname(self) -> tuple[str, int]:
        return self.local, 4001

    def getpeername(self) -> tuple[str, int]:
        return self.remote, 50000


@pytest.mark.parametrize(
    ("local", "remote", "seen"),
    [
        ("192.0.2.7", "192.0.2.9", ["/ip4/192.0.2.7/tcp/4001"]),
        ("192.0.2.7", "192.0.2.7", []),
        ("127.0.0.1", "127.0.0.1", ["/ip4/127.0.0.1/tcp/4001"]),
    ],
    ids=["another computer", "this computer", "loopback"],
)
def test_a_program_on_this_computer_does_not_show_that_others_can_reach_it(local: str, remote: str, seen: list[str]) -> None:
    observed = ObservedAddresses(TheseMembers())
    observed.on_connection(AtSocket(local, remote))
    assert observed.addresses(lambda peer: True) == seen


def test_claims_count_as_whoever_asks_says_one_for_each_peer_and_have_an_end() -> None:
    reached, peers = ObservedAddresses(TheseMembers()), [PeerId(f"peer {number}") for number in range(MAX_CLAIMS + 9)]
    for number, peer in enumerate(peers):
        for port in (1, 2):
            reached.on_claim(Connection(peer), f"/ip4/203.0.113.{number % 200}/tcp/{port}")
    reached.on_claim(Connection(peers[-1], "outbound"), "/ip4/203.0.113.1/tcp/9")
    assert len(reached.addresses(lambda peer: True)) <= MAX_CLAIMS and not reached.addresses(lambda peer: False)
    assert reached.addresses(lambda peer: peer == peers[-1]) == [f"/ip4/203.0.113.{(len(peers) - 1) % 200}/tcp/2"]
    trusted = peers[-4:-1]
    for peer in trusted[:2]:
        reached.on_claim(Connection(peer), "/ip4/198.51.100.1/tcp/4001")
    assert reached.addresses(lambda peer: peer in trusted)[0] == "/ip4/198.51.100.1/tcp/4001"


def test_the_claim_of_a_member_outweighs_those_of_a_crowd_and_is_not_forgotten_for_them() -> None:
    member = PeerId("member")
    observed = ObservedAddresses(TheseMembers(member))
    observed.on_claim(Connection(member), "/ip4/203.0.113.9/tcp/4001")
    for number in range(2 * MAX_CLAIMS):
        observed.on_claim(Connection(PeerId(f"key {number}")), "/ip4/198.51.100.1/tcp/9")
    assert observed.addresses(lambda peer: True) == ["/ip4/203.0.113.9/tcp/4001", "/ip4/198.51.100.1/tcp/9"]


ODD_CLAIMS = (
    "/ /ip4/127.0.0.1/tcp/1 /ip4/0.0.0.0/tcp/1 /ip4/224.0.0.1/tcp/1 /ip6/fe80::1/tcp/1 /ip4/1.2.3.4/tcp/0 "
    "/ip4/1.2.3.4/udp/1 /ip4/1.2.3.4/tcp/x /dns4/example/tcp/1 /ip4/1.2.3.4/tcp/1/p2p/x"
)


@pytest.mark.parametrize("address", ["", *ODD_CLAIMS.split(), "/ip4/" + "1" * 5000])
def test_odd_claims_are_none(address: str) -> None:
    assert not is_public_form(address)
