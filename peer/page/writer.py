"""Files of the page, each replaced whole, so that a web server never serves half of one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from peer.control.history import HistoryKeeper, RunHistory
from peer.files import remove_left_overs, write_atomically
from peer.page.document import document
from peer.page.facts import gather
from protocol.events.status import PeerStatus

PAGE = "index.html"
FACTS = "run.json"
READABLE = 0o644
"""Permissions of the files: a web server runs as another user."""
EVERY_S = 60.0
"""Seconds between two versions of the page that a running peer keeps."""
START_S = 1.0
"""Seconds between two checks for the run's manifest."""


@dataclass(frozen=True)
class Written:
    """A page on disk.  size_bytes: total size of its two files."""

    path: Path
    name: str
    rounds: int
    size_bytes: int


def write_page(history: RunHistory, status: PeerStatus | None, folder: Path) -> Written:
    """Write the page about a run into a folder.  Blocking.  Raises OSError.

    history: the run's history, already read.  status: the status of the running peer; None if no peer runs.
    """
    facts = gather(history, status, time.time())
    page = document(facts, FACTS).encode()
    told = json.dumps(facts, indent=1, allow_nan=False).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((FACTS, told), (PAGE, page)):
        remove_left_overs(folder, name)
        write_atomically(folder / name, content, mode=READABLE)
    return Written(folder / PAGE, facts["run"]["name"], facts["run"]["rounds"], len(page) + len(told))


async def keep_page(
    folder: Path, history: HistoryKeeper, status: Callable[[], PeerStatus], notice: Callable[[str, str], None]
) -> None:
    """Keep the page of a running peer current until cancelled.

    A page that cannot be written is reported once, and tried again.  notice: takes a level and a sentence for the person.
    """
    said = ""
    while True:
        level, text, now = "", said, status()
        try:
            # a first page of a peer that does not listen yet would lack the invitation for a minute
            ready = bool(said or now.addresses)
            written = await history.read(partial(write_page, status=now, folder=folder)) if ready else None
            if written is not None:
                level, text = "info", f"the page {written.path} is kept current"
        except OSError as error:
            level, text = "warning", f"the page in {folder} cannot be written: {error}; it is tried again every minute"
        if text != said:
            notice(level, text)
            said = text
        await trio.sleep(EVERY_S if said else START_S)
