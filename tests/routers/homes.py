"""An internet of our own: a public segment with one reachable computer, and homes behind routers.

All homes have the same private addresses, as they do out there, so that an address of one leads nowhere, or to the wrong
computer, in another.  The public addresses are ordinary ones: software that asks whether an address is public must find that
it is.  Nothing leaves the namespaces.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import namespaces
from benchmarks.links import narrow
from benchmarks.namespaces import Namespaces, place, routes_packets, run
from tests.routers.router import Kind, UpnpDaemon, set_rules

PUBLIC, PUBLIC_IPV6 = "11.77.0.2", "2a0e:77:0:1::2"
PRIVATE = "192.168.1.2"
CARRIER_S = 10.0


def why_not() -> str:
    """Why there can be no such homes here; empty when there can."""
    return namespaces.why_not("tc", "nft", "miniupnpd")


@dataclass(frozen=True)
class Home:
    """One of them.  computer, router: their namespaces.  inside: the computer's address; outside: as others see it.

    provider: the namespace and the device at the other end of the router's line.  wan: the first three parts of its address.
    """

    kind: Kind
    computer: str
    router: str
    provider: tuple[str, str]
    wan: str
    inside: str
    outside: str
    ipv6: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """Words that, before a command, run it on its computer."""
        return place(self.computer)


class Homes:
    """A context manager.  folder: for what the routers' programs write.

    line: bits a second that each home's line carries in each direction, None for all that the computer does; the reachable
    computer's has no limit.
    """

    def __init__(self, folder: Path, kinds: Sequence[Kind], line: float | None = None) -> None:
        self._folder, self._kinds, self._line = folder, kinds, line
        self._namespaces = Namespaces()
        self._daemons: dict[str, UpnpDaemon] = {}
        self._internet = self._public = ""
        self.homes: list[Home] = []

    @property
    def public(self) -> tuple[str, ...]:
        """Words that, before a command, run it on the computer that everybody reaches at `PUBLIC`."""
        return place(self._public)

    def daemon(self, home: Home) -> UpnpDaemon:
        """That of its router, which is of the kind with one."""
        return self._daemons[home.router]

    def move(self, home: Home, host: int) -> None:
        """Give its computer another private address, as another router or a new lease does; the old one is gone."""
        near = home.inside.rpartition(".")[0]
        run("ip", "-n", home.computer, "addr", "flush", "dev", "net0")
        give(home.computer, "net0", f"{near}.{host}/24")
        goes_by(home.computer, f"{near}.1")

    def switch_off(self, home: Home) -> None:
        """Take the power from its router, which forgets all connections and ports."""
        if home.router in self._daemons:
            self._daemons[home.router].stop()
        for device in ("lan", "wan"):
            run("ip", "-n", home.router, "link", "set", device, "down")

    def switch_on(self, home: Home, host: int) -> None:
        """Its router is back, at another address outside, as many providers have it.  host: the last part of that."""
        run("ip", "-n", home.router, "addr", "flush", "dev", "wan")
        give(home.router, "wan", f"{home.wan}.{host}/24")
        for device in ("lan", "wan"):
            run("ip", "-n", home.router, "link", "set", device, "up")
        for state in ("down", "up"):  # or the computer would still wait for what it has asked in vain
            run("ip", "-n", home.computer, "link", "set", "net0", state)
        self._until_connected(home)
        goes_by(home.router, f"{home.wan}.1")
        goes_by(home.computer, home.inside.rpartition(".")[0] + ".1")
        set_rules(home.router, home.kind)
        if home.router in self._daemons:
            self._daemons[home.router].start()

    def __enter__(self) -> Self:
        self._namespaces.__enter__()
        try:
            self._internet, self._public = self._namespaces.add("internet"), self._namespaces.add("public")
            routes_packets(self._internet)
            self._namespaces.join(self._internet, "public", self._public, "net0")
            give(self._internet, "public", "11.77.0.1/24", "2a0e:77:0:1::1/64")
            give(self._public, "net0", f"{PUBLIC}/24", f"{PUBLIC_IPV6}/64")
            goes_by(self._public, "11.77.0.1", "2a0e:77:0:1::1")
            for number, kind in enumerate(self._kinds):
                self.homes.append(self._build(number, kind))
            for home in self.homes:
                self._until_connected(home)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for daemon in self._daemons.values():
            daemon.stop()
        self._namespaces.close()

    def _until_connected(self, home: Home) -> None:
        for name, device in ((home.computer, "net0"), (home.router, "lan"), (home.router, "wan"), home.provider):
            until_up(name, device)

    def _build(self, number: int, kind: Kind) -> Home:
        wan, wan6, lan6 = f"11.77.{10 + number}", f"2a0e:77:{10 + number}:1", f"2a0e:77:{10 + number}:2"
        lan = f"11.78.{10 + number}" if kind.has_public_ipv4 else "192.168.1"
        computer, router = self._namespaces.add(f"computer{number}"), self._namespaces.add(f"router{number}")
        routes_packets(router)
        self._namespaces.join(router, "lan", computer, "net0")
        give(router, "lan", f"{lan}.1/24")
        give(computer, "net0", f"{lan}.2/24")
        goes_by(computer, f"{lan}.1")
        before = self._carrier(number, wan) if kind is Kind.DOUBLE else self._internet
        near = f"100.64.{number}" if kind is Kind.DOUBLE else wan
        self._namespaces.join(before, f"home{number}", router, "wan")
        if self._line is not None:
            narrow(router, "wan", self._line)
            narrow(before, f"home{number}", self._line)
        give(before, f"home{number}", f"{near}.1/24")
        give(router, "wan", f"{near}.2/24")
        goes_by(router, f"{near}.1")
        if kind.has_public_ipv4:
            run("ip", "-n", self._internet, "route", "add", f"{lan}.0/24", "via", f"{wan}.2")
        if kind.has_ipv6:
            give(self._internet, f"home{number}", f"{wan6}::1/64")
            give(router, "wan", f"{wan6}::2/64")
            give(router, "lan", f"{lan6}::1/64")
            give(computer, "net0", f"{lan6}::2/64")
            run("ip", "-n", router, "route", "add", "default", "via", f"{wan6}::1")
            run("ip", "-n", computer, "route", "add", "default", "via", f"{lan6}::1")
            run("ip", "-n", self._internet, "route", "add", f"{lan6}::/64", "via", f"{wan6}::2")
        set_rules(router, kind)
        if kind is Kind.UPNP:
            self._daemons[router] = daemon = UpnpDaemon(router, self._folder)
            daemon.start()
        outside = f"{lan}.2" if kind.has_public_ipv4 else f"{wan}.2"
        line = before, f"home{number}"
        return Home(kind, computer, router, line, near, f"{lan}.2", outside, f"{lan6}::2" if kind.has_ipv6 else "")

    def _carrier(self, number: int, wan: str) -> str:
        """The provider's router, which is a cone; its name."""
        name = self._namespaces.add(f"carrier{number}")
        routes_packets(name)
        self._namespaces.join(self._internet, f"home{number}", name, "wan")
        give(self._internet, f"home{number}", f"{wan}.1/24")
        give(name, "wan", f"{wan}.2/24")
        goes_by(name, f"{wan}.1")
        set_rules(name, Kind.CONE, inside=f"home{number}")
        return name


def give(name: str, device: str, *addresses: str) -> None:
    """Addresses of a device, each with the length of its network; IPv6 only where this computer has it."""
    for address in addresses:
        if ":" not in address or has_ipv6():
            run("ip", "-n", name, "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))


def goes_by(name: str, *routers: str) -> None:
    """The default way from there."""
    for router in routers:
        if ":" not in router or has_ipv6():
            run("ip", "-n", name, "route", "add", "default", "via", router)


def until_up(name: str, device: str) -> None:
    """Until the kernel has seen that the other end of a cable is there: up to a second later; it sends nothing before."""
    end = time.monotonic() + CARRIER_S
    while subprocess.check_output([*place(name), "cat", f"/sys/class/net/{device}/operstate"]) != b"up\n":
        if time.monotonic() > end:
            raise OSError(f"{device} in {name} is not up after {CARRIER_S:.0f} s")
        time.sleep(0.05)


def has_ipv6() -> bool:
    """Whether the kernel has IPv6."""
    return Path("/proc/sys/net/ipv6").is_dir()
