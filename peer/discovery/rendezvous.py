"""Rendezvous of the peers of one computer: a file for each running peer, in the runtime directory.

`<runtime>/<run>/<peer ID>` holds the addresses of a peer while it runs (`peer.files`).  Only
addresses are exchanged here; the handshake proves identities.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peer.files import HeldFile, read_held
from protocol.formatting import clean, short
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId, public_key_of

REREAD_S = 2.0
"""Seconds between two reads of the folder."""
MAX_ENTRIES = 1024
MAX_ENTRY_BYTES = 8 << 10
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARACTERS = 200


class Rendezvous:
    """One peer's place in the folder of a run.

    runtime: the runtime directory.  All methods raise OSError if the folder cannot be used.
    """

    def __init__(self, runtime: Path, run: Hash, peer: PeerId) -> None:
        self.folder = runtime / run.hex()[:32]
        self._file = HeldFile(self.folder / peer)
        self._peer = peer
        self._registered: tuple[str, ...] = ()

    def register(self, addresses: Sequence[str]) -> None:
        """Write our addresses; do nothing if the same addresses are still in our file."""
        wanted = tuple(addresses)[:MAX_ADDRESSES]
        if wanted != self._registered or not self._file.is_there:
            self._file.put(json.dumps({"pid": os.getpid(), "addresses": wanted}).encode())
            self._registered = wanted

    def others(self) -> list[str]:
        """Return the addresses of the other running peers of the run; remove the files of dead ones."""
        try:
            names = sorted(os.listdir(self.folder))[:MAX_ENTRIES]
        except FileNotFoundError:
            return []
        found: list[str] = []
        for name in names:
            if name != self._peer and is_peer_id(name):
                found += _addresses(self.folder / name, PeerId(name))
        return found

    def withdraw(self) -> None:
        """Remove our file."""
        self._file.remove()


def is_peer_id(name: str) -> bool:
    """Return True if `name` is a valid peer ID."""
    try:
        public_key_of(PeerId(name))
    except Malformed:
        return False
    return True


def _addresses(path: Path, peer: PeerId) -> list[str]:
    """Return the addresses in the file of a running peer; none for a dead peer or an invalid file."""
    data = read_held(path, MAX_ENTRY_BYTES)
    return [] if data is None else _parse(data, peer)


def _parse(data: bytes, peer: PeerId) -> list[str]:
    try:
        addresses = json.loads(data)["addresses"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    if not isinstance(addresses, list):
        return []
    return [
        address
        for address in addresses[:MAX_ADDRESSES]
        if isinstance(address, str) and len(address) <= MAX_ADDRESS_CHARACTERS and address.endswith(f"/p2p/{peer}")
    ]


# ------------------------------------------------------------------------------------------------------------------------
# Runs founded twice: two computers that join with the same run file found two runs, and each waits for the other for ever.
#
# A founder announces its run until the run has its first record, and listens for other founders: in a folder on this
# computer, and by multicast DNS (`mdns`).  Anybody can forge announcements, so they only cause a few escaped sentences.


FOLDER = "founded"
MAX_FOUNDED = 256
MAX_TOLD = 3
MAX_LINE_BYTES = 1024
MAX_NAME_CHARS = 64
DIGITS = 64


@dataclass(frozen=True)
class Founded:
    """Announcement of a run without records.

    run: the run's ID.  file: digest of the manifest without organiser.  Both are hexadecimal.
    """

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
    """Reports of other runs that resemble `ours`: one for each run, and at most `MAX_TOLD`."""

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
            "and the two never meet: to train together, one of you has to leave and run `peer join INVITATION` with an "
            "invitation to the other run (`peer status` there shows it, or how to make one)"
        )


class Noticeboard:
    """Folder in which the founders of this computer announce their runs.  Methods raise OSError."""

    def __init__(self, runtime: Path, peer: str) -> None:
        self._file = HeldFile(runtime / FOLDER / peer)

    def announce(self, ours: Founded) -> None:
        """Announce our run until this process ends or `withdraw` is called."""
        if not self._file.is_there:
            self._file.put(ours.to_bytes())

    def withdraw(self) -> None:
        """Withdraw the announcement."""
        self._file.remove()


def noticed(runtime: Path) -> list[Founded]:
    """Return the announcements of founders that run on this computer.  Raises OSError."""
    folder = runtime / FOLDER
    try:
        names = sorted(os.listdir(folder))[:MAX_FOUNDED]
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
