"""The files of a run on this peer's disk: fetched from any peer that has them, checked, and offered to others.

    files/<root>.blob           a file, complete (`protocol.blobs.store`)

The organiser's peer has them from the beginning.  All others fetch them as soon as they meet a peer, before they read the
run's state; a trainer process is started when they are here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import trio

from protocol.blobs.blob import EvenSpans
from protocol.blobs.fetcher import BlobFetcher, Wanted
from protocol.blobs.store import BlobStore, leaves_of
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.run.manifest import RunManifest
from protocol.run.sections import FILE_CHUNK_BYTES, FileSection
from protocol.transport.interface import Session
from protocol.wire.hashes import tree_root

RETRY_S = 1.0
PATIENCE_S = 300.0
"""Seconds without any chunk after which a file is reported as missing, with the remedy."""
SHOW_S = 1.0


class RunFiles:
    """Fetcher of the run's files.  Call `run` once; all other methods only wait."""

    def __init__(self, session: Session, manifest: RunManifest, files: BlobStore, swarm: Swarm, offload: Offload) -> None:
        self._session, self._files, self._swarm, self._offload = session, files, swarm, offload
        self._fetcher = BlobFetcher(session, swarm, files, offload)
        self._named, self._random = manifest.files, Random(session.me)
        self._state, self._moved_at = "reading the run's files from disk", 0.0
        self._here = trio.Event()
        if not self._named:
            self._here.set()

    @property
    def are_here(self) -> bool:
        """True if all files are here and checked."""
        return self._here.is_set()

    async def until_here(self, on_wait: Callable[[str], None] = lambda state: None) -> None:
        """Wait until all files are here and checked.

        on_wait: called once a second with a sentence that names the awaited file.
        """
        while not self.are_here:
            on_wait(self._state)
            with trio.move_on_after(SHOW_S):
                await self._here.wait()

    async def run(self) -> None:
        """Check the files that are here and fetch the rest.  Raises `StoreFailed`."""
        if self._here.is_set():
            return
        await self._offload(self._files.load)
        for number, (called, file) in enumerate(self._named.items()):
            self._state = f"fetching the run's file {called} from its peers"
            self._moved_at, is_told = trio.current_time(), False
            while not await self._offload(self._files.is_right, file.name, file.size, FILE_CHUNK_BYTES):
                if not await self._fetch(number, called, file):
                    is_told = self._note_missing(called, is_told)
                    await trio.sleep(RETRY_S)
        self._here.set()

    def _note_missing(self, called: str, is_told: bool) -> bool:
        """Report a file as missing if no chunk of it has come for long; return True if it is reported as missing."""
        silent_s = trio.current_time() - self._moved_at
        if silent_s < PATIENCE_S:
            return False
        self._state = f"nobody has given the run's file {called} for {silent_s:.0f} s; ask the organiser to start its peer"
        if not is_told:
            self._session.emit(Notice("warning", self._state))
        return True

    async def _fetch(self, number: int, called: str, file: FileSection) -> bool:
        sources = sorted(self._session.network.connected())
        self._random.shuffle(sources)

        def came(here: int) -> None:
            self._moved_at = trio.current_time()
            self._state = f"fetching the run's file {called}: {here} of {file.chunks} parts are here"

        spans = EvenSpans(file.size, FILE_CHUNK_BYTES)
        return await self._fetcher.fetch(Wanted(file.name, file.name, spans, Purpose("file", number)), sources, came)


def keep_file(files: BlobStore, file: FileSection, data: bytes) -> None:
    """Store a file of the organiser's in its peer's folder.  Blocking.  Raises `StoreFailed`."""
    files.load()
    if not files.is_right(file.name, file.size, FILE_CHUNK_BYTES):
        files.put(file.name, file.size, [data], leaves_of(data, FILE_CHUNK_BYTES))


def file_section(data: bytes) -> FileSection:
    """Return the manifest's entry for these bytes."""
    return FileSection(size=len(data), root=tree_root(leaves_of(data, FILE_CHUNK_BYTES)).hex())


def paths_of(manifest: RunManifest, files: BlobStore) -> dict[str, Path]:
    """Return the paths of the run's files once they are here, by name."""
    return {name: files.path(file.name) for name, file in manifest.files.items()}
