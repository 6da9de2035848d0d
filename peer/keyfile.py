"""Identity of a peer on disk: made at the first start, private to the user, locked while in use.

The data directory holds `identity.pem` (the Ed25519 key, PKCS #8, mode 0600), `identity.lock` (held by the running peer) and
`incarnation` (the number of the peer's starts).  Key and incarnation are written whole, so a crash leaves the old or the new
file.  The lock guards one data directory; the swarm, not this module, detects a key in two directories or computers.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from peer.files import LockHeld, locked, remove_left_overs, write_atomically
from peer.paths import make_private, must_be_writable
from protocol.disk import Disk, set_aside
from protocol.wire.canonical import Malformed
from protocol.wire.identity import Identity

KEY_FILE = "identity.pem"
LOCK_FILE = "identity.lock"
"""Name of the lock; `peer.control.client.LOCK_NAME` repeats it, because that module must stay too light to import this."""
INCARNATION_FILE = "incarnation"
OWNER = b"peer-id: "
"""Beginning of the line before the key."""
MAX_KEY_BYTES = 4096
MAX_INCARNATION = 2**53 - 1


class KeyfileError(Exception):
    """Error: the identity cannot be used; the text is one sentence with the remedy."""


class IdentityLocked(KeyfileError):
    """Error: another process uses the identity."""


def load_identity(data_dir: Path) -> Identity | None:
    """Return the identity in the data directory, None if there is none; raises `KeyfileError` if it cannot be used."""
    path = data_dir / KEY_FILE
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyfileError(f"cannot read the identity {path}: {error.strerror}; check who owns the file") from error
    if stat.S_IMODE(mode) & 0o077:
        raise KeyfileError(f"the identity {path} can be read by others on this computer; run: chmod 600 {path}")
    try:
        return parse_key(data)
    except Malformed as error:
        raise KeyfileError(
            f"the identity {path} is damaged ({error}); restore a copy with `peer id import FILE --force`, "
            "or remove the file to start with a new identity"
        ) from error


def load_or_create_identity(data_dir: Path) -> Identity:
    """Return the identity in the data directory, making it if there is none.  Simultaneous calls return the same one."""
    found = load_identity(data_dir)
    if found is not None:
        return found
    make_private(data_dir)
    fresh = Identity.generate()
    try:
        write_atomically(must_be_writable(data_dir) / KEY_FILE, to_pem(fresh), replace=False)
    except FileExistsError:
        found = load_identity(data_dir)
        assert found is not None, "an identity file that exists can be loaded or raises"
        return found
    return fresh


def import_identity(data_dir: Path, data: bytes, *, force: bool) -> Identity:
    """Put the key in `data` (PEM, or one line of base64) into the data directory.

    Raises `KeyfileError` while a peer uses the directory, and without `force` if there is an identity.  With `force`, the
    old identity is kept beside the new one as identity.old-N.pem.
    """
    try:
        identity = parse_key(data)
    except Malformed as error:
        raise KeyfileError(
            f"the file does not contain an identity ({error}); give a file written by `peer id export FILE`"
        ) from error
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = data_dir / KEY_FILE
    with identity_lock(data_dir):
        if path.exists():
            if not force:
                raise KeyfileError(f"there is an identity in {path} already; add --force to replace it")
            names = (data_dir / f"identity.old-{number}.pem" for number in count(1))
            path.rename(next(name for name in names if not name.exists()))
        try:
            write_atomically(path, to_pem(identity), replace=False)
        except FileExistsError as error:
            raise KeyfileError(f"another process has just made the identity {path}; try again") from error
    return identity


def to_pem(identity: Identity) -> bytes:
    """Return the private key as PEM (PKCS #8, without a password), after a line with the peer's ID.

    Any 32 bytes are a key, so without this line a flipped bit would turn this peer into another one.
    """
    key = Ed25519PrivateKey.from_private_bytes(identity.seed)
    return OWNER + identity.peer_id.encode() + b"\n" + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def parse_key(data: bytes) -> Identity:
    """Parse a PEM file, or one line of base64 of the 32 raw bytes; raises `Malformed`."""
    if len(data) > MAX_KEY_BYTES:
        raise Malformed("too long for a key")
    text = data.strip()
    if text.startswith(OWNER):
        owner, _, text = text.removeprefix(OWNER).partition(b"\n")
        identity = parse_key(text)
        if identity.peer_id.encode() != owner.strip():
            raise Malformed("its key does not belong to the peer that it names")
        return identity
    if not text:
        raise Malformed("empty")
    if not text.startswith(b"-----"):
        try:
            return Identity.from_seed(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise Malformed("neither PEM nor base64") from error
    try:
        key = load_pem_private_key(text, password=None)
    except TypeError as error:
        raise Malformed("a key with a password; remove the password first") from error
    except (ValueError, UnsupportedAlgorithm, InternalError) as error:
        raise Malformed("not a private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise Malformed("a key of another kind than Ed25519")
    return Identity(key)


@contextmanager
def identity_lock(data_dir: Path) -> Iterator[None]:
    """Hold the identity of a data directory; raises `IdentityLocked` at once if another process holds it."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(data_dir / LOCK_FILE))
        except LockHeld as error:
            who = f"process {error.holder}" if error.holder is not None else "another process"
            raise IdentityLocked(
                f"the identity in {data_dir} is in use by {who}; stop that peer with `peer leave`, or give this one its "
                f"own folder with --data-dir"
            ) from error
        remove_left_overs(data_dir)
        yield


def next_incarnation(data_dir: Path, floor: int = 1) -> int:
    """Return the number of this start, above every earlier number and at least `floor`.  Stored before it is returned.

    A daemon passes the unix time as floor, so that the number also grows after the identity was moved to another computer,
    which has no record of earlier starts.  A damaged record is set aside, and counts as none.
    """
    path = data_dir / INCARNATION_FILE
    try:
        last = int(path.read_bytes()[:32].decode("ascii"))
    except FileNotFoundError:
        last = 0
    except (ValueError, IsADirectoryError):
        last = -1
    if not 0 <= last < MAX_INCARNATION:
        set_aside(Disk(), path)
        last = 0
    number = max(last + 1, floor)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, f"{number}\n".encode())
    return number
