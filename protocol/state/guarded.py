"""Files that show when they are torn or altered: their content stands behind its hash."""

from __future__ import annotations

from pathlib import Path

from protocol.state.disk import Disk
from protocol.wire.hashes import HASH_BYTES, chunk_hash


def write_guarded(disk: Disk, path: Path, data: bytes) -> None:
    """Replace `path` with `data` behind its hash, for good when this returns.  Raises `StoreFailed`."""
    disk.write_file(path, chunk_hash(data) + data)


def read_guarded(disk: Disk, path: Path) -> bytes | None:
    """The data of a guarded file.  None when it is not there; one that is torn or altered is set aside."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < HASH_BYTES or chunk_hash(raw[HASH_BYTES:]) != raw[:HASH_BYTES]:
        set_aside(disk, path)
        return None
    return raw[HASH_BYTES:]


def set_aside(disk: Disk, path: Path) -> None:
    """Out of the way, but not lost: somebody may want to know what happened to it."""
    disk.rename(path, corrupt_name(path))


def corrupt_name(path: Path) -> Path:
    """Where a file that was set aside is."""
    return path.with_name(f"{path.name}.corrupt")
