"""A peer's mDNS: finds the peers of its run on the local network.

Anybody can answer a multicast query, and the library that reads the answers stores many of them.  So a separate process,
`mdns_process`, reads the answers with little memory and sends us checked lines.  It is restarted, after a pause, when it has
ended, when it has sent too many lines, or when this peer's announcement has changed.  Without a usable network, mDNS
silently stays off until there is one.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence

import trio

from peer.discovery.mdns_messages import MAX_ADDRESSES, MAX_LINE_BYTES, Announcement, sighting_in
from peer.environment import ChildKind, child_environment
from protocol.bounds import Backoff
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

LOOK_S = 5.0
"""Seconds between two checks of our own addresses."""
MAX_LINES = 1000
"""Most lines that one process may send; after more it is ended, and restarted after a pause."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
STEADY_S = 60.0
"""Lifetime of a process in seconds that resets the backoff: the next one starts after `FIRST_PAUSE_S`."""
CLOSE_S = 1.0
"""Most seconds for the process to say goodbye to the network, before it is killed."""
COMMAND = (sys.executable, "-m", "peer.discovery.mdns_process")

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
