"""Emulated links for real processes: a network namespace for each peer, and a router that limits, delays and loses.

Needs root on Linux with iproute2 (`why_not` says what is missing).  Each peer has the address `address(i)`; a token bucket
of the kernel (`tbf`) limits the rates at which it sends and receives.  If a delay or a loss is asked for, a process of this
module carries every packet between peers through a TUN device and holds it back or drops it, because not every kernel has
netem.  Everything is inside namespaces made here, so removing them removes all of it.
"""

from __future__ import annotations

import atexit
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from benchmarks import namespaces
from benchmarks.namespaces import Namespaces, place, routes_packets, run

BURST_S, LEAST_BURST = 0.02, 4096
"""Time for which an idle line saves up, and the bytes that it saves at least: a packet has to fit."""
QUEUE_S = 0.2
"""How much a limited link may hold back before it drops: a home router's buffer."""
CUT = "1"
"""Preference of the router's rules that drop packets, before all others but those for its own addresses."""
MOST_HELD = 100_000
"""Packets that the forwarder holds at most; more are dropped."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True)
class Access:
    """A peer's line, in bits a second."""

    up: float
    down: float


def why_not() -> str:
    """Return the reason why links cannot be emulated here; an empty text if they can."""
    return namespaces.why_not("tc")


def address(peer: int) -> str:
    return f"10.77.{peer + 1}.2"


class Links:
    """A context manager; while it is open, `start` runs a program on a peer's computer."""

    def __init__(self, lines: Sequence[Access], *, delay_s: float = 0.0, loss: float = 0.0, seed: int = 1) -> None:
        """Prepare the links.

        delay_s: the delay one way, between any two peers.  loss: the chance that a packet is lost on its way.
        """
        assert 1 <= len(lines) <= 200
        self._lines, self._delay_s, self._loss, self._seed = lines, delay_s, loss, seed
        self._namespaces = Namespaces()
        self._router, self._peers = "", list[str]()
        self._forwarder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Links:
        atexit.register(self.close)
        try:
            self._namespaces.__enter__()
            self._router = self._namespaces.add("router")
            routes_packets(self._router)
            for peer, line in enumerate(self._lines):
                self._peers.append(self._namespaces.add(str(peer)))
                self._join(peer, line)
            if self._delay_s or self._loss:
                self._forward()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, peer: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.place(peer), *command], text=True, **options)

    def place(self, peer: int) -> tuple[str, ...]:
        """Return the words that, before a command, run it on a peer's computer."""
        return place(self._peers[peer])

    def move(self, peer: int) -> None:
        """Give a peer's computer another address, as a router does that comes back: packets to the old one go nowhere."""
        name, near = self._peers[peer], f"10.77.{peer + 1}"
        run("ip", "-n", name, "addr", "del", f"{near}.2/24", "dev", "net0")
        run("ip", "-n", name, "addr", "add", f"{near}.3/24", "dev", "net0")
        run("ip", "-n", name, "route", "add", "default", "via", f"{near}.1")

    def split(self, *sides: Sequence[int]) -> None:
        """Drop every packet between peers of different sides, until `rejoin`."""
        self._change_rules("add", sides)

    def rejoin(self, *sides: Sequence[int]) -> None:
        """Undo `split` of the same sides."""
        self._change_rules("del", sides)

    def _change_rules(self, change: str, sides: Sequence[Sequence[int]]) -> None:
        for one, other in itertools.permutations(sides, 2):
            for near, far in itertools.product(one, other):
                way = ("iif", f"v{near}", "to", f"10.77.{far + 1}.0/24")
                run("ip", "-n", self._router, "rule", change, "pref", CUT, *way, "blackhole")

    def _ways(self, peer: int) -> tuple[tuple[str, str], ...]:
        return ("iif", f"v{peer}"), ("to", f"10.77.{peer + 1}.0/24")

    def sent_bytes(self, peer: int) -> int:
        """Return the bytes that a peer's computer has sent, with all headers."""
        shown = subprocess.run(
            ["ip", "-n", self._peers[peer], "-s", "-j", "link", "show", "net0"], capture_output=True, text=True, check=True
        )
        return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._forwarder is not None:
            self._forwarder.kill()
            self._forwarder.wait()
            if self._forwarder.stdout is not None:
                self._forwarder.stdout.close()
            self._forwarder = None
        self._namespaces.close()

    def _join(self, peer: int, line: Access) -> None:
        name, outer, near = self._peers[peer], f"v{peer}", f"10.77.{peer + 1}"
        self._namespaces.join(name, "net0", self._router, outer)
        run("ip", "-n", name, "addr", "add", f"{near}.2/24", "dev", "net0")
        run("ip", "-n", self._router, "addr", "add", f"{near}.1/24", "dev", outer)
        run("ip", "-n", name, "route", "add", "default", "via", f"{near}.1")
        narrow(name, "net0", line.up)
        narrow(self._router, outer, line.down)

    def _forward(self) -> None:
        """Send all packets of the peers through the forwarder's device before they are routed on."""
        command = [sys.executable, "-m", "benchmarks.links", str(self._delay_s), str(self._loss), str(self._seed)]
        self._forwarder = subprocess.Popen(["ip", "netns", "exec", self._router, *command], stdout=subprocess.PIPE)
        assert self._forwarder.stdout is not None
        if self._forwarder.stdout.readline() != b"ready\n":
            raise OSError("the forwarder did not start; is /dev/net/tun there?")
        run("ip", "-n", self._router, "link", "set", "far", "up")
        run("ip", "netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.conf.far.rp_filter=0")
        run("ip", "-n", self._router, "route", "add", "default", "dev", "far", "table", "100")
        for peer in range(len(self._peers)):
            run("ip", "-n", self._router, "rule", "add", "iif", f"v{peer}", "lookup", "100")


def narrow(name: str, device: str, bits_per_s: float) -> None:
    """Limit the traffic that leaves the namespace `name` by a device."""
    burst = max(LEAST_BURST, bits_per_s / 8 * BURST_S)
    limit = ("rate", f"{bits_per_s:.0f}bit", "burst", f"{burst:.0f}b", "latency", f"{QUEUE_S * 1000:.0f}ms")
    run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", *limit)


def forward(delay_s: float, loss: float, seed: int) -> None:
    """Carry packets over the TUN device `far` until killed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"far", _IFF_TUN | _IFF_NO_PI))
    print("ready", flush=True)
    chance, held, number = random.Random(seed), list[tuple[float, int, bytes]](), 0
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        readable, _, _ = select.select([device], [], [], wait)
        now = time.monotonic()
        for _ in range(64 if readable else 0):
            try:
                packet = os.read(device, 1 << 16)
            except BlockingIOError:
                break
            if chance.random() >= loss and len(held) < MOST_HELD:
                number += 1
                heapq.heappush(held, (now + delay_s, number, packet))
        while held and held[0][0] <= now:
            os.write(device, heapq.heappop(held)[2])


if __name__ == "__main__":
    forward(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
