"""Crowds of outsiders: `python -m tests.e2e.crowds` prints what each kind costs a peer, and who gets in meanwhile.

The peer is a bare network end, the crowd comes from one address and from a hundred; each is a process of its own.  A member
that is in asks the peer something all the time; newcomers come in one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import psutil
import trio

from protocol.transport.interface import NetworkError
from protocol.wire.identity import Identity
from tests.protocol.transport.outsiders import HALF_A_HANDSHAKE, socket_to, stranger_to
from tests.protocol.transport.recorder import Recorder, network

CROWD = 254
ADDRESSES = 100
PAUSE_S = 0.2
ASK_S = 0.25
Attack = Callable[[str, str], Awaitable[None]]
"""One outsider, until its connection is closed: to this address, from that one."""


async def knock(address: str, source: str) -> None:
    """TCP that says nothing."""
    async with socket_to(address, source) as sock:
        while await sock.receive_some(1000):
            pass


async def knock_and_run(address: str, source: str) -> None:
    """TCP that is opened and closed."""
    async with socket_to(address, source):
        return


async def half_open(address: str, source: str) -> None:
    """A handshake that goes no further."""
    async with socket_to(address, source) as sock:
        await sock.send_all(HALF_A_HANDSHAKE)
        while await sock.receive_some(1000):
            pass


async def dripping(address: str, source: str) -> None:
    """A handshake of a byte at a time."""
    async with socket_to(address, source) as sock:
        for byte in itertools.cycle(HALF_A_HANDSHAKE):
            await sock.send_all(bytes([byte]))
            await trio.sleep(0.3)


async def silent(address: str, source: str) -> None:
    """A complete handshake with a fresh key, and then nothing."""
    async with stranger_to(address, source) as stranger:
        await stranger.closed()


ONE_KEY = Identity.generate()


async def one_key(address: str, source: str) -> None:
    """The same with one key."""
    async with stranger_to(address, source, ONE_KEY) as stranger:
        await stranger.closed()


async def streams(address: str, source: str) -> None:
    """Opens streams and never says what for."""
    await _on_streams(address, source, b"")


async def idle_pings(address: str, source: str) -> None:
    """Opens the ping protocol, as a libp2p program does, and says nothing more."""
    await _on_streams(address, source, b"\x13/multistream/1.0.0\n\x11/ipfs/ping/1.0.0\n")


async def wrong_run(address: str, source: str) -> None:
    """Wants to greet in a run that is not ours."""
    words = b"/manyhands/1/0123456789abcdef/request\n"
    await _on_streams(address, source, b"\x13/multistream/1.0.0\n" + bytes([len(words)]) + words)


async def _on_streams(address: str, source: str, words: bytes, count: int = 8) -> None:
    async with stranger_to(address, source) as stranger, trio.open_nursery() as nursery:
        nursery.start_soon(stranger.muxed.start)
        await stranger.muxed.event_started.wait()
        for _ in range(count):
            stream = await stranger.muxed.open_stream()
            if words:
                await stream.write(words)
        await stranger.muxed.event_closed.wait()


ATTACKS: tuple[Attack, ...] = (knock, knock_and_run, half_open, dripping, silent, one_key, streams, idle_pings, wrong_run)


@dataclass
class Target:
    """The peer under attack, in a process of its own."""

    process: subprocess.Popen[bytes]
    address: str
    watched: psutil.Process = field(init=False)

    def __post_init__(self) -> None:
        self.watched = psutil.Process(self.process.pid)

    @property
    def cpu_s(self) -> float:
        times = self.watched.cpu_times()
        return float(times.user + times.system)


@dataclass
class Siege:
    """What members meet during one crowd.  answers: seconds.  entries: seconds until a newcomer's greeting was answered."""

    answers: list[float] = field(default_factory=list)
    entries: list[float] = field(default_factory=list)
    lost: int = 0

    async def run(self, address: str, seconds: float) -> None:
        member = Recorder()
        async with network(member) as end, trio.open_nursery() as nursery:
            end.remember([address])
            await member.greeted.wait()
            with trio.move_on_after(seconds):
                nursery.start_soon(self._ask, member)
                while True:
                    await trio.sleep(2)
                    await self._newcomer(address)
            self.lost += len(member.disconnected)
            nursery.cancel_scope.cancel()

    async def _ask(self, member: Recorder) -> None:
        assert member.end is not None
        while True:
            began = trio.current_time()
            try:
                await member.end.request(member.connected[0], "echo", b"still", timeout_s=10)
                self.answers.append(trio.current_time() - began)
            except NetworkError:
                self.lost += 1
            await trio.sleep(ASK_S)

    async def _newcomer(self, address: str) -> None:
        newcomer, began = Recorder(), trio.current_time()
        async with network(newcomer) as end:
            end.remember([address])
            await newcomer.greeted.wait()
            self.entries.append(trio.current_time() - began)


class Crowd:
    """The outsiders of one process."""

    def __init__(self, attack: Attack, address: str, addresses: int) -> None:
        self._attack, self._address = attack, address
        self._sources = [f"127.0.{number}.2" for number in range(addresses)]
        self.came = 0

    async def run(self) -> None:
        """Until standard input ends; prints how many connections there were."""
        # every connection that the peer closes during a handshake is an error to the library
        logging.getLogger("libp2p.protocol_muxer.multiselect_client").setLevel(logging.CRITICAL)
        async with trio.open_nursery() as nursery:
            for number in range(CROWD):
                nursery.start_soon(self._outsider, self._sources[number % len(self._sources)])
            await trio.to_thread.run_sync(sys.stdin.read)
            print(self.came, flush=True)
            nursery.cancel_scope.cancel()

    async def _outsider(self, source: str) -> None:
        while True:
            self.came += 1
            try:
                with trio.move_on_after(20):
                    await self._attack(self._address, source)
            except Exception:  # noqa: BLE001 - closed at any moment, by which sockets and the library raise anything
                pass
            await trio.sleep(PAUSE_S)


def target() -> None:
    """The other process: prints its address, and lives until its input ends."""

    async def main() -> None:
        async with network(Recorder()) as end:
            print(end.addresses()[0], flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)

    trio.run(main)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.crowds", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each crowd")
    parser.add_argument("--only", help="one kind, by its name")
    parser.add_argument("--target", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    attacks = {attack.__name__: attack for attack in ATTACKS}
    if options.target:
        target()
        return 0
    if options.crowd:
        kind, address, addresses = options.crowd
        trio.run(Crowd(attacks[kind], address, int(addresses)).run)
        return 0
    with _process("--target") as process:
        assert process.stdout is not None
        peer = Target(process, process.stdout.readline().decode().strip())
        print(
            "| crowd of 254 | from | connections | processor | memory | files | answers: median, most (s) "
            "| lost | newcomers in after (s) |\n|---|---|---|---|---|---|---|---|---|"
        )
        for name, addresses in itertools.product(attacks, (1, ADDRESSES)):
            if options.only in (None, name):
                _row(peer, name, addresses, options.seconds)
        process.communicate()
    return 0


def _process(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.crowds", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _row(peer: Target, name: str, addresses: int, seconds: float) -> None:
    siege, files = Siege(), 0

    async def watched() -> None:
        nonlocal files
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(siege.run, peer.address, seconds)
                while True:
                    files = max(files, peer.watched.num_fds())
                    await trio.sleep(0.2)

    with _process("--crowd", name, peer.address, str(addresses)) as crowd:
        cpu_s, memory = peer.cpu_s, peer.watched.memory_info().rss
        trio.run(watched)
        cpu_s, memory = peer.cpu_s - cpu_s, peer.watched.memory_info().rss - memory
        came = int(crowd.communicate()[0])
    answers = sorted(siege.answers) or [float("nan")]
    entries = ", ".join(f"{entry:.1f}" for entry in siege.entries) or "none"
    print(
        f"| {name} | {addresses} | {came} | {cpu_s / seconds:.0%} | {memory / 1e6:+.0f} MB | {files} "
        f"| {answers[len(answers) // 2]:.2f}, {answers[-1]:.2f} | {siege.lost} | {entries} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
