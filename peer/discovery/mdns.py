"""A peer's mDNS: finds the peers of its run on the local network.

Anybody can answer a multicast query, and the library that reads the answers stores many of them.  So a separate process
(`python -m peer.discovery.mdns`) reads the answers with little memory and sends us checked lines.  It is restarted, after a
pause, when it has ended, when it has sent too many lines, or when this peer's announcement has changed.  Without a usable
network, mDNS silently stays off until there is one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil
import trio

from peer.discovery.rendezvous import MAX_ADDRESS_CHARACTERS, is_peer_id
from peer.discovery.upnp import use_little_memory
from peer.environment import ChildKind, child_environment
from protocol.bounds import Backoff
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

# ------------------------------------------------------------------------------------------------------------------------
# Lines between a peer and its mDNS process: our announcement, and other peers' announcements.
#
# Each message is one line of JSON.  Anybody can forge announcements: the process checks them, and the peer checks them
# again, because strangers' packets may have corrupted the process.


MAX_LINE_BYTES = 4096
MAX_ADDRESSES = 8
"""Most addresses of one peer."""


@dataclass(frozen=True)
class Announcement:
    """One peer's own announcement.  run: hexadecimal."""

    run: str
    peer: str
    addresses: tuple[str, ...]

    def to_line(self) -> bytes:
        """Return the line for the mDNS process."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Announcement:
        """Parse the line of our peer."""
        fields = json.loads(line)
        return cls(fields["run"], fields["peer"], tuple(fields["addresses"]))


@dataclass(frozen=True)
class Sighting:
    """A peer on the local network, and the multiaddrs at which it claims to listen."""

    peer: str
    addresses: tuple[str, ...]

    def to_line(self) -> bytes:
        """Return the line for our peer."""
        return json.dumps(asdict(self)).encode() + b"\n"


def sighting_of(peer: str, addresses: list[Any]) -> Sighting | None:
    """Return the sighting of `peer` with its permitted `addresses`; None if it is not a peer ID or no address is left."""
    good = [
        address
        for address in addresses[:MAX_ADDRESSES]
        if isinstance(address, str)
        and len(address) <= MAX_ADDRESS_CHARACTERS
        and address.isascii()
        and address.isprintable()
        and address.endswith(f"/p2p/{peer}")
    ]
    return Sighting(peer, tuple(good)) if good and is_peer_id(peer) else None


def sighting_in(line: bytes) -> Sighting | None:
    """Parse a line of the mDNS process; None for anything else."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    peer, addresses = fields.get("peer"), fields.get("addresses")
    return sighting_of(peer, addresses) if isinstance(peer, str) and isinstance(addresses, list) else None


# ------------------------------------------------------------------------------------------------------------------------
# In the peer.


LOOK_S = 5.0
"""Seconds between two checks of our own addresses."""
MAX_LINES = 1000
"""Most lines that one process may send; after more it is ended, and restarted after a pause."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
STEADY_S = 60.0
"""Lifetime of a process in seconds that resets the backoff: the next one starts after `FIRST_PAUSE_S`."""
CLOSE_S = 1.0
"""Most seconds for the process to say goodbye to the network, before it is killed."""
COMMAND = (sys.executable, "-m", "peer.discovery.mdns")

log = logging.getLogger(__name__)


class Mdns:
    """One peer's mDNS, silent until `discover`.  command: starts the mDNS process."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._wanted = Announcement("", "", ())
        self._turn = trio.CancelScope()
        self._report: Callable[[Sequence[str]], None] = lambda addresses: None

    async def discover(
        self, run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        """Announce our `addresses`, and report other peers' addresses, until cancelled (`NetworkSettings.discover`)."""

        def look() -> None:
            wanted = Announcement(run.hex(), me, tuple(addresses())[:MAX_ADDRESSES])
            if wanted != self._wanted:
                self._wanted = wanted
                self._turn.cancel()

        self._report = found
        look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            while True:
                await trio.sleep(LOOK_S)
                look()

    async def _run(self) -> None:
        """Keep an mDNS process running until cancelled."""
        backoff = Backoff(2 * FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            with trio.CancelScope() as self._turn:
                if await self._live() >= STEADY_S:
                    backoff.reset()
                    await trio.sleep(FIRST_PAUSE_S)
                else:
                    await trio.sleep(backoff.failed())
            if self._turn.cancelled_caught:  # another announcement
                backoff.reset()

    async def _live(self) -> float:
        """Start a process and read its lines until it ends or has sent too many; return its lifetime in seconds."""
        began = trio.current_time()
        try:
            process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(ChildKind.HELPER) | {"MALLOC_ARENA_MAX": "1"},
                start_new_session=True,  # Ctrl-C on our terminal must reach only us
            )
        except OSError as error:
            log.debug("no mDNS process: %r", error)
            return 0.0
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        try:
            await process.stdin.send_all(self._wanted.to_line())
            await self._hear(process.stdout)
        except trio.BrokenResourceError:
            pass  # the process has ended
        finally:
            await _end(process)
        log.debug("the mDNS process ended: %s", process.returncode)
        return trio.current_time() - began

    async def _hear(self, pipe: trio.abc.ReceiveStream) -> None:
        """Read lines from `pipe` until its end, or until there are too many lines or a line is too long."""
        lines, rest = 0, b""
        async for chunk in pipe:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole[: MAX_LINES - lines]:
                heard = sighting_in(line)
                if heard is not None and heard.peer != self._wanted.peer:
                    self._report(list(heard.addresses))
            lines += len(whole)
            if lines > MAX_LINES or len(rest) > MAX_LINE_BYTES:
                return


async def _end(process: trio.Process) -> None:
    """Let the process say goodbye, for at most `CLOSE_S`; then kill it."""
    with trio.CancelScope(shield=True):
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        await process.stdin.aclose()
        with trio.move_on_after(CLOSE_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await process.stdout.aclose()


# ------------------------------------------------------------------------------------------------------------------------
# In the mDNS process: it reads an announcement from standard input, announces it until that input ends, and prints other
# peers' announcements, one per line.  It ends by itself when it uses `MAX_RESIDENT_BYTES`, so that a flood is forgotten; its
# memory is limited to 256 MiB.  The service type carries the run, so peers of other runs are never seen.


MAX_RESIDENT_BYTES = 96 << 20
"""Limit on resident memory, twice the usage of a process that receives few announcements."""
WATCH_S = 0.25
"""Seconds between two checks of the memory."""
LOOK_UP_MS = 2000
MAX_LOOK_UPS = 64
"""Names that are looked up at one time; further ones are skipped."""
END_S = 2.0
"""Most seconds that the process lives after its input has ended."""
NICENESS = 10


def run_kind(run: str) -> str:
    """Return the service type of a run's peers."""
    return f"_mh-{run[:10]}._tcp.local."


def peer_service(ours: Announcement) -> ServiceInfo:
    """Return the service that announces our IPv4 and IPv6 addresses as text."""
    from zeroconf import ServiceInfo

    kind = run_kind(ours.run)
    split = [address.split("/") for address in ours.addresses]
    hosts = dict.fromkeys(parts[2] for parts in split if parts[1] in ("ip4", "ip6"))
    return ServiceInfo(
        kind,
        f"{ours.peer}.{kind}",
        port=int(ours.addresses[0].split("/")[4]),
        addresses=[ipaddress.ip_address(host).packed for host in hosts],
        properties={f"a{index}": address for index, address in enumerate(ours.addresses)},
        server=f"{ours.peer[-20:].lower()}.local.",
    )


TextFields = dict[bytes, bytes | None]


class LookUps:
    """Look-ups of the names heard, at most `MAX_LOOK_UPS` at one time; names with cached records need no look-up.

    cached: returns the text fields of the records that came with a name; None if some are missing.  Peers send their records
    with their names, so a flood of names that fills the places hides no peer.  find: queries the network for the text
    fields; None without an answer.
    """

    def __init__(
        self,
        cached: Callable[[str, str], TextFields | None],
        find: Callable[[str, str], Awaitable[TextFields | None]],
        tell: Callable[[Sighting], None],
    ) -> None:
        self._cached, self._find, self._tell = cached, find, tell
        self.running: dict[str, asyncio.Task[None]] = {}

    def start(self, kind: str, name: str) -> None:
        """Report the announcement of `name` if it is a peer's; without cached records, look it up if a place is free."""
        peer = name.removesuffix(f".{kind}")
        if not is_peer_id(peer):
            return
        fields = self._cached(kind, name)
        if fields is not None:
            self._tell_of(peer, fields)
            return
        if name in self.running or len(self.running) >= MAX_LOOK_UPS:
            return

        async def look_up() -> None:
            if (found := await self._find(kind, name)) is not None:
                self._tell_of(peer, found)

        task = asyncio.get_running_loop().create_task(look_up())
        self.running[name] = task
        task.add_done_callback(lambda done: self.running.pop(name, None))

    def _tell_of(self, peer: str, fields: TextFields) -> None:
        if (heard := sighting_of(peer, [value.decode(errors="replace") for value in fields.values() if value])) is not None:
            self._tell(heard)


async def serve(
    ours: Announcement, tell: Callable[[Sighting], None], ended: asyncio.Event, resident: Callable[[], int]
) -> None:
    """Announce `ours`, and report other announcements, until `ended`, or until this process uses too much memory.

    resident: returns the bytes in use.  Raises the library's errors if there is no multicast.
    """
    from zeroconf import ServiceInfo, ServiceStateChange
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

    kind, service = run_kind(ours.run), AsyncZeroconf()
    own = peer_service(ours) if ours.addresses else None

    def cached(kind: str, name: str) -> TextFields | None:
        info = ServiceInfo(kind, name)
        return info.properties if info.load_from_cache(service.zeroconf) else None

    async def find(kind: str, name: str) -> TextFields | None:
        info = await service.async_get_service_info(kind, name, timeout=LOOK_UP_MS)
        return info.properties if info is not None else None

    look_ups = LookUps(cached, find, tell)

    def on_change(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Removed and name != f"{ours.peer}.{kind}":
            look_ups.start(service_type, name)

    try:
        browser = AsyncServiceBrowser(service.zeroconf, [kind], handlers=[on_change])
        if own is not None:  # other claims to our name do not count
            announcing = await service.async_register_service(own, cooperating_responders=True)  # noqa: F841 - keeps the task
        while not ended.is_set() and resident() < MAX_RESIDENT_BYTES:
            await asyncio.sleep(WATCH_S)
        await browser.async_cancel()
    finally:
        await service.async_close()


def main() -> None:
    """Serve until standard input ends."""
    use_little_memory()
    os.nice(NICENESS)
    process, ours = psutil.Process(), Announcement.from_line(_read_line())

    def tell(heard: Sighting) -> None:
        sys.stdout.buffer.write(heard.to_line())
        sys.stdout.buffer.flush()

    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda loop, context: _end_without_memory(context.get("exception")))

        def wait_for_end() -> None:
            while os.read(0, MAX_LINE_BYTES):
                pass
            loop.call_soon_threadsafe(ended.set)
            time.sleep(END_S)
            os._exit(0)

        threading.Thread(target=wait_for_end, daemon=True).start()
        await serve(ours, tell, ended, lambda: int(process.memory_info().rss))

    asyncio.run(run())


def _end_without_memory(error: BaseException | None) -> None:
    """End the process if it lacks memory; other errors concern one packet."""
    if isinstance(error, MemoryError):
        os._exit(1)


def _read_line() -> bytes:
    """Read the announcement, without a buffer, which would keep a lock while a thread waits for the end of the input."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, MAX_LINE_BYTES)
        if not chunk:
            sys.exit(0)
        line += chunk
    return line


if __name__ == "__main__":
    main()
