"""Runs founded twice: two computers that join the same run file found two runs, which wait for each other for ever.

A founder tells its network so until the run has its first record, and hears of other founders: through a folder on this
computer, and by multicast DNS (`mdns`).  Anybody can forge announcements, so they only lead to sentences, few and escaped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from peer.discovery.rendezvous import is_peer_id
from peer.files.lock import HeldFile, read_held
from peer.formatting import clean, short

FOLDER = "founded"
MAX_ENTRIES = 256
MAX_TOLD = 3
MAX_LINE_BYTES = 1024
MAX_NAME_CHARS = 64
DIGITS = 64


@dataclass(frozen=True)
class Founded:
    """Announcement of a run without records.  run: its ID.  file: digest of the manifest without organiser.  Both in
    hexadecimal digits."""

    run: str
    organiser: str
    name: str
    file: str

    def to_bytes(self) -> bytes:
        """Return the announcement as JSON."""
        return json.dumps(asdict(self)).encode()


def founded_in(raw: bytes) -> Founded | None:
    """Parse an announcement that anybody may have written; None for anything else."""
    try:
        fields = json.loads(raw[:MAX_LINE_BYTES])
        found = Founded(*(fields[name] for name in ("run", "organiser", "name", "file")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(each, str) for each in asdict(found).values()) or len(found.name) > MAX_NAME_CHARS:
        return None
    return found if _is_hash(found.run) and _is_hash(found.file) and is_peer_id(found.organiser) else None


class FoundedTwice:
    """Reports of other runs that look like `ours`: each once, and at most `MAX_TOLD`."""

    def __init__(self, ours: Founded) -> None:
        self._ours, self._told = ours, set[str]()

    def sentence(self, other: Founded) -> str:
        """Return a sentence about another run, with the remedy; empty if it does not resemble ours, or was reported."""
        ours = self._ours
        same = "file" if other.file == ours.file else "name" if other.name == ours.name else ""
        if other.run == ours.run or not same or other.run in self._told or len(self._told) >= MAX_TOLD:
            return ""
        self._told.add(other.run)
        return (
            f"{short(other.organiser)} on your network has founded another run with the same {same} ({clean(other.name)}), "
            "and the two never meet: to train together, one of you leaves and types `peer join INVITATION` with the "
            "invitation that `peer status` prints at the other"
        )


class Noticeboard:
    """Folder in which the founders of this computer announce their runs.  Methods raise OSError."""

    def __init__(self, runtime: Path, peer: str) -> None:
        self._file = HeldFile(runtime / FOLDER / peer)

    def announce(self, ours: Founded) -> None:
        """Announce our run, for as long as this process lives or until `withdraw`."""
        if not self._file.is_there:
            self._file.put(ours.to_bytes())

    def withdraw(self) -> None:
        """Withdraw the announcement."""
        self._file.remove()


def noticed(runtime: Path) -> list[Founded]:
    """Return the announcements of founders that run on this computer.  Raises OSError."""
    folder = runtime / FOLDER
    try:
        names = sorted(os.listdir(folder))[:MAX_ENTRIES]
    except FileNotFoundError:
        return []
    raw = [read_held(folder / name, MAX_LINE_BYTES) for name in names if is_peer_id(name)]
    return [found for each in raw if each is not None and (found := founded_in(each)) is not None]


def _is_hash(text: str) -> bool:
    return len(text) == DIGITS and set(text) <= set("0123456789abcdef")


def founded_of(properties: dict[bytes, bytes | None]) -> Founded | None:
    """Return the announcement in a record's text fields; None for anything else."""
    told = {key.decode(errors="replace"): (value or b"").decode(errors="replace") for key, value in properties.items()}
    return founded_in(json.dumps({name: told.get(name) for name in ("run", "organiser", "name", "file")}).encode())
