"""Network namespaces of Linux: computers and routers of our own, inside this one.

Needs root on Linux with iproute2 (`why_not` says what is missing).  A `Namespaces` removes everything that it makes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from itertools import count
from types import TracebackType
from typing import Self

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "miniupnpd": "miniupnpd"}
"""Debian's, by their programs."""


def why_not(*programs: str) -> str:
    """Return the reason why namespaces with these programs cannot be made here; an empty text if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", *programs):
        if shutil.which(program) is None:
            return f"the program {program} is missing; install {PACKAGES[program]}"
    name = f"mh{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def run(*command: str, given: str | None = None) -> None:
    """Run a program to its end.  given: its standard input.  Raises OSError with the program's message if it fails."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def place(name: str) -> tuple[str, ...]:
    """Return the words that, before a command, run it in the namespace `name`."""
    return ("ip", "netns", "exec", name)


_NUMBERS = count()
"""Of the sets of namespaces of this program."""


class Namespaces:
    """A context manager of namespaces: they end with it, or with the program."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._prefix = f"mh{os.getpid()}-{next(_NUMBERS)}-"

    def __enter__(self) -> Self:
        atexit.register(self.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, label: str) -> str:
        """Add a namespace with loopback; return its name, which is unique among all sets and programs."""
        name = self._prefix + label
        run("ip", "netns", "add", name)
        self._names.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def join(self, near: str, near_device: str, far: str, far_device: str) -> None:
        """Connect two namespaces by a cable."""
        run(*"ip link add".split(), near_device, "netns", near, *"type veth peer name".split(), far_device, "netns", far)
        for name, device in ((near, near_device), (far, far_device)):
            run("ip", "-n", name, "link", "set", device, "up")

    def close(self) -> None:
        """Remove all namespaces; the caller must first end the programs in them."""
        atexit.unregister(self.close)
        while self._names:
            subprocess.run(["ip", "netns", "del", self._names.pop()], stderr=subprocess.DEVNULL, check=False)


def routes_packets(name: str) -> None:
    """Let a namespace pass packets on, as a router does."""
    ipv6 = ["net.ipv6.conf.all.forwarding=1"] if os.path.exists("/proc/sys/net/ipv6") else []
    settings = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
    run(*place(name), "sysctl", "-qw", *settings, *ipv6)
