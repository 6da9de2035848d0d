"""Rendezvous of the peers of one computer: a file for each running peer, in the runtime directory.

`<runtime>/<run>/<peer ID>` holds the addresses of a peer while it runs (`peer.files`).  Only
addresses are exchanged here; the handshake proves identities.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from peer.files import HeldFile, read_held
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
                data = read_held(self.folder / name, MAX_ENTRY_BYTES)  # None for a dead peer
                found += _parse(data, PeerId(name)) if data is not None else []
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
