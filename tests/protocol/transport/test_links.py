"""The order of this computer's addresses, and those that are left out beside others."""

from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from protocol.transport import addresses
from protocol.transport.addresses import (
    ANY_IPV4,
    InterfaceKind,
    LinkAddress,
    OwnAddresses,
    announced_addresses,
    in_order,
    interface_addresses,
    may_be_dialled,
)
from protocol.wire.identity import Identity

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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, InterfaceKind.PLAIN) for name in ("eth0", "enp3s0", "wlan0", "wlp2s0", "en0", "Ethernet", "Wi-Fi", "br0")),
        *(
            (name, InterfaceKind.PLAIN)
            for name in ("br-lan", "bond0", "ppp0", "eno1.20", "venet0", "WLAN 2", "usb0", "bridge0")
        ),
        *(
            (name, InterfaceKind.VPN)
            for name in ("tun0", "tap0", "wg0", "wg-home", "tailscale0", "utun4", "ztabc123", "nordlynx")
        ),
        *(
            (name, InterfaceKind.CONTAINERS)
            for name in ("docker0", "docker_gwbridge", "br-0123456789ab", "veth1a2b3c", "virbr0")
        ),
        *(
            (name, InterfaceKind.CONTAINERS)
            for name in ("vmnet8", "vboxnet0", "lxdbr0", "cni0", "podman1", "cali12.3", "bridge100")
        ),
        *((name, InterfaceKind.CONTAINERS) for name in ("vEthernet (WSL)", "VirtualBox Host-Only Network", "flannel.1")),
    ],
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


def test_a_vpn_that_takes_the_default_route_stays_behind_the_network_at_home() -> None:
    assert [each.name for each in in_order([link("wg0", "10.8.0.2", is_default=True), link("eth0")])] == ["eth0", "wg0"]


def test_a_bridge_with_the_default_route_joins_this_computer_to_its_network() -> None:
    assert link("br-0123456789ab", is_default=True).kind is InterfaceKind.PLAIN


def test_beside_twenty_bridges_to_containers_only_the_network_and_the_vpn_are_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bridges = [(f"br-{number:012x}", f"172.{18 + number}.0.1") for number in range(20)]
    these(monkeypatch, [*bridges, DOCKER, VPN, LAN], "192.168.7.2")
    assert announced_addresses() == ["192.168.7.2", "10.8.0.2"]
    assert len(interface_addresses()) == 23 and interface_addresses()[:2] == announced_addresses()


def test_a_computer_with_nothing_but_a_bridge_announces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    these(monkeypatch, [DOCKER])
    assert announced_addresses() == ["172.17.0.1"]


def test_nobody_has_us_dial_this_computer_at_an_address_that_we_do_not_announce(monkeypatch: pytest.MonkeyPatch) -> None:
    these(monkeypatch, [DOCKER, LAN])
    own = OwnAddresses(ME, ANY_IPV4, 4001, (), reached=lambda: (), circuits=lambda: (), on_mapped=lambda: None)
    assert own.all() == [f"/ip4/192.168.7.2/tcp/4001/p2p/{ME}"] == own.nearby()
    assert not may_be_dialled(("172.17.0.1", 6379), own.ends)
    assert may_be_dialled(("172.17.0.2", 6379), own.ends)
