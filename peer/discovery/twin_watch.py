"""Warning to a founder about similar runs of other founders, until its run has its first record (`founded_runs`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from peer.discovery.founded_runs import Founded, FoundedTwice, Noticeboard, noticed
from peer.discovery.mdns import Mdns
from peer.errors import PeerError
from peer.paths import runtime_dir
from protocol.events.events import Event, Notice
from protocol.run.manifest import SignedManifest
from protocol.wire.hashes import hash_bytes

LOOK_S = 2.0
HEAR_S = 3.0
"""Seconds for which a person's peer listens before it founds a run."""


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
        return  # the address book says so
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
            await trio.sleep(LOOK_S)
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
