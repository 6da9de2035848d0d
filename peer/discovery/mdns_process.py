"""Process that reads a peer's mDNS: `python -m peer.discovery.mdns_process`.

It reads an announcement from standard input (`mdns_messages`), announces it until that input ends, and prints other peers'
announcements, one per line.  It ends by itself when it uses `MAX_RESIDENT_BYTES`, so that a flood is forgotten; its memory
is limited to 256 MiB.

The service type carries the run, so peers of other runs are never seen.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import psutil

from peer.discovery.mdns_messages import MAX_LINE_BYTES, Announcement, Sighting, sighting_of
from peer.discovery.rendezvous import is_peer_id
from peer.discovery.upnp import use_little_memory

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

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
        task = asyncio.get_running_loop().create_task(self._look_up(kind, name, peer))
        self.running[name] = task
        task.add_done_callback(lambda done: self.running.pop(name, None))

    async def _look_up(self, kind: str, name: str, peer: str) -> None:
        fields = await self._find(kind, name)
        if fields is not None:
            self._tell_of(peer, fields)

    def _tell_of(self, peer: str, fields: TextFields) -> None:
        texts = [value.decode(errors="replace") for value in fields.values() if value]
        heard = sighting_of(peer, texts)
        if heard is not None:
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
