"""Cost of idle connections of a peer: `python -m benchmarks.connections --connections 0 50 100 200`.

One process runs the network of a peer, as `peer join` does.  Other processes run many networks each, with a key of their
own, on loopback.  The peer dials them, greets them, and is connected to all; then it is left alone.  Nobody publishes, so
what remains is what the library and the kernel do for connections: pings, gossip's own heartbeats, and buffers.

Prints a row for each number of connections, from one life of the peer: its resident memory (RssAnon), its processor time in
a minute of idleness, and the processor time of each new connection's handshake and greeting.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import trio

from benchmarks.json_lines import hear, say
from benchmarks.memory import resident
from protocol.transport.network import Libp2pNetwork
from protocol.wire.identity import PeerId
from tests.protocol.transport.recorder import Recorder, network

CONNECTIONS = (0, 50, 100, 200)
NETWORKS_PER_PROCESS = 25
SETTLE_S = 5.0
"""Seconds from the last connection to the beginning of the idle time."""


@dataclass(frozen=True)
class Row:
    """Cost of `connections`.  idle_s: processor seconds of an idle minute.  opening_s: processor seconds of each opening."""

    connections: int
    memory_mb: float
    idle_s: float
    opening_s: float


class Everybody(Recorder):
    """Handlers that treat every peer as a member, so that no peer needs a stranger's place."""

    def has_member(self, peer: PeerId) -> bool:
        return True


async def _serve(count: int) -> None:
    """Run `count` networks, print their addresses, and end with standard input."""
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(network(Everybody())) for _ in range(count)]
        say(addresses=[address for each in networks for address in each.addresses()])
        await trio.to_thread.run_sync(sys.stdin.read)


def _is_connected(end: Libp2pNetwork, count: int) -> bool:
    return len(end.connected()) >= count


async def _measure(steps: list[int], idle_s: float) -> None:
    """Read the addresses of all other networks, and print a row for each step."""
    addresses: list[str] = (await hear())["addresses"]
    peer = Everybody()
    async with network(peer) as end:
        opened = 0
        for step in steps:
            began = time.process_time()
            end.remember(addresses[opened:step])
            await peer.until(partial(_is_connected, end, step))
            await trio.sleep(SETTLE_S)
            opening = (time.process_time() - began) / max(1, step - opened)
            opened = step
            began = time.process_time()
            await trio.sleep(idle_s)
            spent = (time.process_time() - began) * 60 / idle_s
            say(**asdict(Row(step, resident(os.getpid())["RssAnon"] / 1e6, spent, opening)))


def _start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.connections", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def measure(steps: list[int], idle_s: float) -> Iterator[Row]:
    """Yield a row for each number of connections, in ascending order."""
    most = max(steps)
    starts = range(0, most, NETWORKS_PER_PROCESS)
    others = [_start("--serve", min(NETWORKS_PER_PROCESS, most - start)) for start in starts]
    peer = _start("--measure", "--seconds", idle_s, "--connections", *steps)
    try:
        assert peer.stdin is not None
        peer.stdin.write(json.dumps({"addresses": [each for other in others for each in _hear(other)["addresses"]]}) + "\n")
        peer.stdin.flush()
        for _ in steps:
            yield Row(**_hear(peer))
    finally:
        for process in (peer, *others):
            process.kill()
            process.wait()


def main() -> None:
    """Print the table, and the cost of one connection: the difference of the last row and the first, divided."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--connections", type=int, nargs="+", default=list(CONNECTIONS))
    parser.add_argument("--seconds", type=float, default=30.0, help="idle time that is measured")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps = sorted(arguments.connections)
    if arguments.serve:
        trio.run(_serve, arguments.serve)
    elif arguments.measure:
        trio.run(_measure, steps, arguments.seconds)
    else:
        print("connections  memory, MB  processor s of an idle minute  processor ms of a new connection")
        rows = []
        for row in measure(steps, arguments.seconds):
            rows.append(row)
            print(
                f"{row.connections:>11}  {row.memory_mb:>10.1f}  {row.idle_s:>29.2f}  {1e3 * row.opening_s:>32.1f}",
                flush=True,
            )
        first, last = rows[0], rows[-1]
        more = last.connections - first.connections
        if more:
            print(
                f"\neach: {1e3 * (last.memory_mb - first.memory_mb) / more:.0f} kB, "
                f"{1e3 * (last.idle_s - first.idle_s) / more:.1f} ms of a processor a minute"
            )
        if arguments.json:
            say(rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
