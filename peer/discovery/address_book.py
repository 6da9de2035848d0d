"""Where the others may be: what this computer's rendezvous says now, and what was known before.

Only feeds addresses to the network, which dials; that who answers is who the address says, the handshake proves.
Neither a damaged book nor an unusable runtime directory stops a peer: it then finds the others by other ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import trio

from peer.discovery.rendezvous import REREAD_S, Rendezvous
from peer.errors import PeerError
from peer.files.atomic import write_atomically
from peer.paths import runtime_dir
from protocol.events.events import Event, Notice
from protocol.transport.interface import Network
from protocol.wire.hashes import Hash

BOOK_NAME = "addresses.json"
SAVE_EVERY = 30
"""Looks at the rendezvous between two savings of the book."""
MAX_ADDRESSES = 1000
MAX_ADDRESS_CHARACTERS = 200
MAX_BOOK_BYTES = 1 << 20


class AddressBook:
    """Keeps `network` supplied.  folder: the run's folder in the data directory."""

    def __init__(self, folder: Path, run: Hash, network: Network, emit: Callable[[Event], None]) -> None:
        self._path, self._run, self._network, self._emit = folder / BOOK_NAME, run, network, emit
        self._saved: list[str] = []
        self._told = False

    async def keep(self) -> None:
        """Until cancelled; takes our place in the rendezvous away at the end."""
        self._network.remember(await trio.to_thread.run_sync(read_book, self._path))
        rendezvous: Rendezvous | None = None
        looks = 0
        try:
            rendezvous = Rendezvous(runtime_dir(), self._run, self._network.peer_id)
        except PeerError as error:
            self._tell(str(error))
        try:
            while True:
                if rendezvous is not None:
                    await self._meet(rendezvous)
                looks += 1
                if looks % SAVE_EVERY == 2:
                    await trio.to_thread.run_sync(self._save)
                await trio.sleep(REREAD_S)
        finally:
            if rendezvous is not None:
                rendezvous.withdraw()
            self._save()

    async def _meet(self, rendezvous: Rendezvous) -> None:
        try:
            await trio.to_thread.run_sync(rendezvous.register, self._network.addresses())
            self._network.remember(await trio.to_thread.run_sync(rendezvous.others))
        except OSError as error:
            self._tell(f"peers on this computer cannot be found through {rendezvous.folder}: {error.strerror}")

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._emit(Notice("warning", text))

    def _save(self) -> None:
        known = list(self._network.known_addresses())[:MAX_ADDRESSES]  # the best first
        if set(known) == set(self._saved) or not self._path.parent.is_dir():
            return
        try:
            write_atomically(self._path, json.dumps(known).encode())
            self._saved = known
        except OSError as error:
            self._tell(f"the address book cannot be written: {error.strerror}")


def read_book(path: Path) -> list[str]:
    """The addresses in a book; none when it is missing or damaged."""
    try:
        with path.open("rb") as file:
            known = json.loads(file.read(MAX_BOOK_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(known, list):
        return []
    return [
        address for address in known[:MAX_ADDRESSES] if isinstance(address, str) and len(address) <= MAX_ADDRESS_CHARACTERS
    ]
