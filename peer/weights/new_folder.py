"""New folder that gets its name when all of it is on disk, so the name never stands for a part of a model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peer.errors import ExitCode, PeerError
from peer.formatting import size
from trainer.weights.numbers import F32

ROOM = 1.05
"""Factor on the size of the numbers: headers, and the file system's own needs."""


def check_target(target: Path) -> None:
    """Raise `PeerError` unless a new folder can be made there."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise PeerError(f"{target} exists already; name a new folder, or remove it first", ExitCode.INPUT)
    if not target.parent.is_dir():
        raise PeerError(f"there is no folder {target.parent}; make it first, or name another one", ExitCode.INPUT)


def check_room(folder: Path, wanted: int) -> None:
    """Raise `PeerError` unless the disk has room for so many bytes of numbers."""
    free = shutil.disk_usage(folder).free
    if free < ROOM * wanted:
        raise PeerError(
            f"the model takes about {size(wanted)} and the disk has {size(free)} free; make room, or name a folder on "
            "another disk",
            ExitCode.RESOURCES,
        )


@contextmanager
def published_as(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which becomes `target` if all went well, and is removed otherwise."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~umask())
        _sync(unfinished)
        os.rename(unfinished, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def told(blocks: Iterable[F32], count: int, on_progress: Callable[[float], None]) -> Iterator[F32]:
    """Pass on the blocks of `count` values; `on_progress` is called with the share that has passed, from 0 to 1."""
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        on_progress(done / count)


def umask() -> int:
    """Return this process's umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
