"""Division of this computer's cores among the peers that train on it, and the chats that answer (`peer.chat`).

`<runtime>/cores/` has a file for each training peer of this user, held while the peer trains (`peer.files`); a paused peer
removes its file, and a chat has one while its model answers.  Every peer counts the files repeatedly, and its trainer uses
the new share after the running step.  The peers need no messages, because all see the same files and divide in the same way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from peer.errors import ExitCode, PeerError
from peer.files import HeldFile, read_held
from peer.paths import runtime_dir
from peer.resources.computer import usable_cores
from protocol.events.events import Event, Notice
from protocol.formatting import many

RECOUNT_S = 2.0
MAX_PEERS = 1024
CHOSEN_IN = ("PEER_TRAINER_THREADS", "OMP_NUM_THREADS")
"""Environment variables in which a person, or a batch system, sets the number of threads, in this order."""


class Trainer(Protocol):
    """Trainer whose number of threads can be set."""

    @property
    def paused(self) -> bool:
        """True while the trainer is paused."""

    def use_threads(self, threads: int) -> None:
        """Compute with this many threads from the next step on."""


def chosen_threads(option: int) -> int:
    """Return the CPU threads that the person chose, by `--threads` or in the environment; 0 for a share of the cores."""
    if option:
        return option
    for name in CHOSEN_IN:
        text = os.environ.get(name, "").partition(",")[0].strip()  # OpenMP allows a list, for nested loops
        if text and not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1 << 16):
            raise PeerError(f"{name} is {text[:40]!r}; set it to a number of threads, or unset it", ExitCode.USAGE)
        if text:
            return int(text)
    return 0


def share_of(cores: int, place: int, peers: int) -> int:
    """Return the threads of the peer at `place` (from 0) of `peers`, at least 1; the first peers get the remainder."""
    return max(1, cores // peers + (place < cores % peers))


class CoreShare:
    """One peer's place among the peers that train here."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder, self.cores = folder, cores
        self._file = HeldFile(folder / f"{os.getpid()}-{secrets.token_hex(4)}")

    def take(self) -> tuple[int, int]:
        """Hold a place; return our place and the number of places held.  Raises OSError if the folder cannot be used."""
        if not self._file.is_there:
            self._file.put()
        mine = self._file.path.name
        others = [
            name
            for name in sorted(os.listdir(self.folder))[:MAX_PEERS]
            if name != mine and not name.startswith(".") and read_held(self.folder / name, 1) is not None
        ]
        return sum(name < mine for name in others), len(others) + 1

    def give_back(self) -> None:
        """Remove our file, so that the other peers may use our cores."""
        self._file.remove()


async def keep_share(trainer: Trainer, emit: Callable[[Event], None], chosen: Callable[[], int]) -> None:
    """Run `share_cores` with the peers of this user, or alone if the runtime directory cannot be trusted."""
    cores = usable_cores()
    try:
        share = CoreShare(runtime_dir() / "cores", cores)
    except PeerError as error:
        emit(Notice("warning", f"{error.text}; without it the trainer uses all cores, unless --threads sets the number"))
        while True:
            trainer.use_threads(chosen() or cores)
            await trio.sleep(RECOUNT_S)
    await share_cores(share, trainer, emit, chosen)


async def share_cores(share: CoreShare, trainer: Trainer, emit: Callable[[Event], None], chosen: Callable[[], int]) -> None:
    """Hold a place, and keep the trainer at its share or at the number of threads `chosen` now, until cancelled."""
    known, warned = 1, False
    try:
        while True:
            if trainer.paused:
                share.give_back()
            else:
                place, peers = 0, 1
                try:
                    place, peers = share.take()
                except OSError as error:
                    if not warned:
                        text = f"the peers on this computer cannot be counted in {share.folder} ({error.strerror}), so the "
                        emit(Notice("warning", text + "trainer uses all cores; set the number with --threads"))
                    warned = True
                fixed = chosen()
                threads = fixed or share_of(share.cores, place, peers)
                trainer.use_threads(threads)
                if peers != known and not fixed:
                    others = many(peers - 1, "other peer or chat", "other peers or chats")
                    who = f"{others} compute{'s' * (peers == 2)}" if peers > 1 else "no other peer or chat computes"
                    text = f"{who} on this computer now: the trainer uses {threads} of {share.cores} cores"
                    emit(Notice("info", text))
                known = peers
            await trio.sleep(RECOUNT_S)
    finally:
        share.give_back()
