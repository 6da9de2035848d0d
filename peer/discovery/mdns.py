"""A peer's mDNS: finds the peers of its run, and other founders, on the local network.

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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from peer.discovery.mdns_messages import MAX_ADDRESSES, MAX_LINE_BYTES, Announcement, Sighting, heard_in
from peer.discovery.rendezvous import Founded, FoundedTwice, Noticeboard, noticed
from peer.environment import ChildKind, child_environment
from peer.errors import PeerError
from peer.paths import runtime_dir
from protocol.events.events import Event, Notice
from protocol.run.manifest import SignedManifest
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

LOOK_S = 5.0
"""Seconds between two checks of our own addresses."""
MAX_LINES = 1000
"""Most lines that one process may send; after more it is ended, and restarted after a pause."""
MAX_FOUNDED = 64
"""Most founded runs that are remembered; after a flood, further runs are ignored."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 300.0
STEADY_S = 60.0
"""Lifetime of a process in seconds that resets the backoff: the next one starts after `FIRST_PAUSE_S`."""
CLOSE_S = 1.0
"""Most seconds for the process to say goodbye to the network, before it is killed."""
COMMAND = (sys.executable, "-m", "peer.discovery.mdns_process")

log = logging.getLogger(__name__)


class Mdns:
    """One peer's mDNS, silent until `discover` or `run`.

    founded: other peers' runs without records, in the order heard.  command: starts the mDNS process.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._wanted = Announcement()
        self._turn = trio.CancelScope()
        self._report: Callable[[Sequence[str]], None] = lambda addresses: None
        self.founded: list[Founded] = []

    async def discover(
        self, run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        """Announce our `addresses`, and report other peers' addresses, until cancelled (`NetworkSettings.discover`)."""

        def look() -> None:
            now = tuple(addresses())[:MAX_ADDRESSES]
            self._announce(replace(self._wanted, run=run.hex(), peer=me, addresses=now))

        self._report = found
        look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            while True:
                await trio.sleep(LOOK_S)
                look()

    def announce_founded(self, ours: Founded | None) -> None:
        """Announce that we founded this run, and listen for other founders; None to stop."""
        self._announce(replace(self._wanted, founded=ours))

    async def run(self) -> None:
        """Keep an mDNS process running until cancelled."""
        failures = 0
        while True:
            with trio.CancelScope() as self._turn:
                lived_s = await self._live()
                failures = 0 if lived_s >= STEADY_S else failures + 1
                await trio.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10)))
            if self._turn.cancelled_caught:  # another announcement
                failures = 0

    def _announce(self, wanted: Announcement) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._turn.cancel()

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
                self._take(heard_in(line))
            lines += len(whole)
            if lines > MAX_LINES or len(rest) > MAX_LINE_BYTES:
                return

    def _take(self, heard: Sighting | Founded | None) -> None:
        match heard:
            case Sighting(peer, addresses) if peer != self._wanted.peer:
                self._report(list(addresses))
            case Founded() if heard not in self.founded and len(self.founded) < MAX_FOUNDED:
                self.founded.append(heard)


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
# Warning to a founder about similar runs of other founders, until its run has its first record (`founded_runs`).


TWIN_LOOK_S = 2.0
HEAR_S = 3.0
"""Seconds of listening before a person's peer founds a run."""


def founded(signed: SignedManifest) -> Founded:
    """Return the announcement of a run.  Its file digest covers the whole manifest but the organiser's peer ID.

    If the file names no founders, this ID stands for them as well.
    """
    manifest = signed.manifest
    anonymous = manifest.model_dump_json().replace(manifest.organiser, "")
    digest = hash_bytes("run file", anonymous.encode())
    return Founded(signed.run.hex(), manifest.organiser, manifest.name, digest.hex())


async def tell_of_twins(
    ours: Founded, mdns: Mdns | None, emit: Callable[[Event], None], is_over: Callable[[], bool]
) -> None:
    """Announce our run, and report each similar one, until `is_over`.

    mdns: None to use this computer alone.  Without a folder or a network, this is off silently.
    """
    try:
        runtime = runtime_dir()
    except PeerError:
        return  # the address book reports this
    board, twice = Noticeboard(runtime, ours.organiser), FoundedTwice(ours)
    if mdns is not None:
        mdns.announce_founded(ours)
    try:
        while not is_over():
            with suppress(OSError):
                await trio.to_thread.run_sync(board.announce, ours)
            for other in await _heard(runtime, mdns):
                text = twice.sentence(other)
                if text:
                    emit(Notice("warning", text))
            await trio.sleep(TWIN_LOOK_S)
    finally:
        with suppress(OSError):
            board.withdraw()
        if mdns is not None:
            mdns.announce_founded(None)


def find_twins(ours: Founded, local: bool) -> list[str]:
    """Return the warnings before `ours` is founded; takes at most about `HEAR_S`.  Blocking."""

    async def listen() -> list[str]:
        mdns, twice = None if local else Mdns(), FoundedTwice(ours)
        async with trio.open_nursery() as nursery:
            if mdns is not None:
                nursery.start_soon(mdns.run)
                with trio.move_on_after(HEAR_S):
                    while not mdns.founded:
                        await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        try:
            heard = await _heard(runtime_dir(), mdns)
        except PeerError:
            return []
        return [text for other in heard if (text := twice.sentence(other))]

    return trio.run(listen)


async def _heard(runtime: Path, mdns: Mdns | None) -> list[Founded]:
    here: list[Founded] = []
    with suppress(OSError):
        here = await trio.to_thread.run_sync(partial(noticed, runtime))
    return [*here, *(mdns.founded if mdns is not None else ())]
