"""What stands between a home and the internet, as rules of netfilter, and a daemon of UPnP where the router has one.

Linux keeps the port of a connection where it can, and lets nothing in that nobody inside has asked for: that is a
port-restricted cone.  With `fully-random` each connection gets another port: that is a symmetric router.
"""

from __future__ import annotations

import subprocess
import uuid
from enum import Enum
from pathlib import Path

from benchmarks.namespaces import place, run

DAEMON_S = 10.0
"""For the daemon of UPnP to end."""


class Kind(Enum):
    """How a home is connected."""

    REACHABLE = "reachable"
    CONE = "cone"
    SYMMETRIC = "symmetric"
    DOUBLE = "double"
    FIREWALL = "firewall"
    UPNP = "upnp"
    IPV6 = "ipv6"

    @property
    def has_public_ipv4(self) -> bool:
        """Whether the computer itself has one."""
        return self in (Kind.REACHABLE, Kind.FIREWALL)

    @property
    def has_ipv6(self) -> bool:
        """Whether the computer has an IPv6 address, which everybody reaches who has one, too."""
        return self is Kind.IPV6


MEANING = {
    Kind.REACHABLE: "a public address, everything let in",
    Kind.CONE: "a router that keeps ports and lets in what was asked for",
    Kind.SYMMETRIC: "a router with another port for each connection",
    Kind.DOUBLE: "a cone behind the provider's own",
    Kind.FIREWALL: "a public address, only what was asked for is let in",
    Kind.UPNP: "a cone that opens ports by UPnP and NAT-PMP",
    Kind.IPV6: "a cone for IPv4, and a public IPv6 address",
}

_FILTER = """
    chain input {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iifname "wan" meta l4proto tcp drop
        iifname "wan" meta l4proto udp drop
        accept
    }}
    chain forward {{
        type filter hook forward priority 0; policy {policy};
        ct state established,related accept
        ct status dnat accept
        iifname "{inside}" accept
        {open}
    }}
"""
_UPNP = """
    chain miniupnpd { }
    chain prerouting_miniupnpd { }
    chain postrouting_miniupnpd { }
    chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
"""


def rules(kind: Kind, inside: str) -> str:
    """The rules of a router of this kind, for `nft -f`.  inside: the device of the home."""
    translation = ""
    if not kind.has_public_ipv4:
        how = "masquerade random,fully-random" if kind is Kind.SYMMETRIC else "masquerade"
        first = "jump postrouting_miniupnpd; " if kind is Kind.UPNP else ""
        translation = (
            f"    chain postrouting {{ type nat hook postrouting priority 100; {first}"
            f'meta nfproto ipv4 oifname "wan" {how}; }}\n'
        )
    policy = "accept" if kind is Kind.REACHABLE else "drop"
    filters = _FILTER.format(policy=policy, inside=inside, open="meta nfproto ipv6 accept" if kind.has_ipv6 else "")
    return f"table inet filter {{{filters}{_UPNP if kind is Kind.UPNP else ''}{translation}}}\n"


def set_rules(name: str, kind: Kind, inside: str = "lan") -> None:
    """Make the namespace `name` a router of this kind, between the device `inside` and the device wan."""
    run(*place(name), "nft", "-f", "-", given=f"flush ruleset\n{rules(kind, inside)}")


class UpnpDaemon:
    """The daemon of one router.  folder: for its settings and its log."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It listens a moment later."""
        settings = self._folder / f"{self._name}.conf"
        settings.write_text(
            "ext_ifname=wan\nlistening_ip=lan\nenable_natpmp=yes\nenable_upnp=yes\nsecure_mode=yes\nsystem_uptime=yes\n"
            f"uuid={uuid.uuid4()}\nallow 1024-65535 0.0.0.0/0 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
        )
        command = ["miniupnpd", "-d", "-f", str(settings), "-P", str(self._folder / f"{self._name}.pid")]
        with (self._folder / f"{self._name}.log").open("wb") as log:
            self._process = subprocess.Popen([*place(self._name), *command], stdout=log, stderr=log)

    def stop(self) -> None:
        """End it at once, as a router does that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DAEMON_S)
            self._process = None

    def forget(self) -> None:
        """Start anew, and know no lease any more."""
        self.stop()
        set_rules(self._name, Kind.UPNP)
        self.start()
