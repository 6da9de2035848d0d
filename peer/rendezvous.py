"""Where the peers of one computer find each other: a file a running peer, in the runtime directory.

`<runtime>/<run>/<peer ID>` holds the addresses of a running peer.  Its owner keeps it locked (flock), so whether it is
alive needs no guess: the kernel lets go of the lock when the process ends, however it ends, and whoever reads a file
that nobody holds removes it.  Only addresses are exchanged here; who somebody is, the handshake proves.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from protocol.canonical import Malformed
from protocol.hashes import Hash
from protocol.identity import PeerId, public_key_of

REREAD_S = 2.0
"""Seconds between two looks into the folder."""
MAX_ENTRIES = 1024
MAX_ENTRY_BYTES = 8 << 10
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARACTERS = 200


class Rendezvous:
    """One peer's place in the folder of a run.

    runtime: the runtime directory.  All methods raise OSError when the folder cannot be used.
    """

    def __init__(self, runtime: Path, run: Hash, peer: PeerId) -> None:
        self.folder = runtime / run.hex()[:32]
        self._path = self.folder / peer
        self._peer = peer
        self._held: int | None = None
        self._registered: tuple[str, ...] = ()

    def register(self, addresses: Sequence[str]) -> None:
        """Say where we are; does nothing while that is said already and still there."""
        wanted = tuple(addresses)[:MAX_ADDRESSES]
        if self._held is not None and wanted == self._registered and self._still_ours(self._held):
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # before it has its name, so that nobody sees it unlocked
            os.write(descriptor, json.dumps({"pid": os.getpid(), "addresses": wanted}).encode())
            os.replace(temporary, self._path)
        except BaseException:
            os.close(descriptor)
            Path(temporary).unlink(missing_ok=True)
            raise
        self._let_go()
        self._held, self._registered = descriptor, wanted

    def others(self) -> list[str]:
        """Addresses of the other running peers of the run; what dead ones left is removed."""
        try:
            names = sorted(os.listdir(self.folder))[:MAX_ENTRIES]
        except FileNotFoundError:
            return []
        found: list[str] = []
        for name in names:
            if name != self._peer and _is_peer_id(name):
                found += _addresses(self.folder / name, PeerId(name))
        return found

    def withdraw(self) -> None:
        """Take our file away."""
        if self._held is not None and self._still_ours(self._held):
            self._path.unlink(missing_ok=True)
        self._let_go()
        try:
            self.folder.rmdir()
        except OSError:
            pass  # others are still there

    def _still_ours(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _is_peer_id(name: str) -> bool:
    try:
        public_key_of(PeerId(name))
    except Malformed:
        return False
    return True


def _addresses(path: Path, peer: PeerId) -> list[str]:
    """The addresses in the file of a running peer; a dead one's file is removed, an odd one's gives none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        if _lock_is_free(descriptor):
            path.unlink(missing_ok=True)
            return []
        return _parse(os.read(descriptor, MAX_ENTRY_BYTES), peer)
    finally:
        os.close(descriptor)


def _lock_is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parse(data: bytes, peer: PeerId) -> list[str]:
    try:
        addresses = json.loads(data)["addresses"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    if not isinstance(addresses, list):
        return []
    return [address for address in addresses[:MAX_ADDRESSES]
            if isinstance(address, str) and len(address) <= MAX_ADDRESS_CHARACTERS
            and address.endswith(f"/p2p/{peer}")]
