"""Files of the page, each replaced whole, so that a web server never serves half of one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from peer.errors import PeerError
from peer.files import remove_left_overs, write_atomically
from peer.joining.run_source import stored_manifest
from peer.page.document import document
from peer.page.facts import gather
from peer.page.history import RunHistory
from peer.paths import run_dir
from protocol.events.status import PeerStatus
from protocol.run.manifest import SignedManifest
from protocol.wire.hashes import Hash

PAGE = "index.html"
FACTS = "run.json"
READABLE = 0o644
"""Permissions of the files: a web server runs as another user."""
EVERY_S = 60.0
"""Seconds between two versions of the page that a running peer keeps."""
START_S = 1.0
"""Seconds between two looks for the run's manifest."""


@dataclass(frozen=True)
class Written:
    """A page on disk.  size_bytes: of its two files."""

    path: Path
    name: str
    rounds: int
    size_bytes: int


class PageWriter:
    """Writer of the page about one run.  data: the data directory.  folder: where the page lies.  Blocking."""

    def __init__(self, signed: SignedManifest, data: Path, folder: Path) -> None:
        self._signed, self._folder = signed, folder
        self._history = RunHistory(signed, run_dir(data, signed.run))

    def write(self, status: PeerStatus | None) -> Written:
        """Write the page with the present facts.  status: of the running peer; None if none runs.  Raises OSError."""
        self._history.read()
        facts = gather(self._signed, self._history, status, time.time())
        page = document(facts, FACTS).encode()
        told = json.dumps(facts.to_fields(), indent=1, allow_nan=False).encode()
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, content in ((FACTS, told), (PAGE, page)):
            remove_left_overs(self._folder, name)
            write_atomically(self._folder / name, content, mode=READABLE)
        return Written(self._folder / PAGE, facts.run.name, facts.run.rounds, len(page) + len(told))


async def keep_page(
    folder: Path, data: Path, run: Hash, status: Callable[[], PeerStatus], notice: Callable[[str, str], None]
) -> None:
    """Keep the page of a running peer current until cancelled.

    A page that cannot be written is reported once, and tried again.  notice: takes a level and a sentence for the person.
    """
    writer: PageWriter | None = None
    level, text, said = "", "", ""
    while True:
        try:
            if writer is None and (signed := await trio.to_thread.run_sync(stored_manifest, run, data)) is not None:
                writer = PageWriter(signed, data, folder)
            if writer is not None:
                written = await trio.to_thread.run_sync(writer.write, status())
                level, text = "info", f"the page {written.path} is kept current"
        except (OSError, PeerError) as error:
            level, text = "warning", f"the page in {folder} cannot be written: {error}; it is tried again every minute"
        if text != said:
            notice(level, text)
            said = text
        await trio.sleep(EVERY_S if writer is not None else START_S)
