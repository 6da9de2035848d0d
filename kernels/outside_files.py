"""Reader of files in folders that come from others: of models, inputs, corpora, and tokenizers.

A person who names a folder means the files in it.  A link in it may lead to any file of the computer, a pipe or a device has
no end, and a sparse file of a few bytes says that it has terabytes.  So a file is opened only if it is a regular one whose
real path lies in the folder, and read up to a limit.  The snapshots of Hugging Face's cache are the exception: their files
are links to the blobs beside them (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).

The path is resolved first, and then opened part by part without following a link.  Somebody who swaps a folder or a file for
a link meanwhile gets an error.  Hard links and mounts cannot be told from files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"
_BLOB_NAME = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class UnusableFile(OSError):
    """Error for a file that is not read; `strerror` is a clause for a person, without the remedy."""

    def __init__(self, path: Path, flaw: str) -> None:
        super().__init__(errno.EINVAL, flaw, str(path))


def open_outside(path: Path, below: Path | None = None) -> BinaryIO:
    """Open a regular file for reading.  Raises OSError, with the reason in `strerror`.

    below: the folder that a person named, in which the file's real path must lie; None for the folder that `path` names.
    """
    folder = path.parent if below is None else below
    try:
        descriptor = _opened(path, folder)
    except UnusableFile:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnusableFile(path, "it is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_outside(path: Path, limit: int, below: Path | None = None) -> bytes:
    """Return the content of a file of at most `limit` bytes.  Raises OSError as `open_outside` does."""
    with open_outside(path, below) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnusableFile(path, f"it is larger than {limit >> 20} MiB" if limit >> 20 else f"it has over {limit} bytes")
    return data


def named_file(path: Path) -> Path:
    """Return the path to which links lead from a file that a person named itself, and may be a link."""
    return Path(os.path.realpath(path))


def _opened(path: Path, folder: Path) -> int:
    """Return a descriptor of the file."""
    root, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    base = _base(root, real)
    if base is None or (real != root / path.relative_to(folder) and _is_hidden(real.relative_to(base))):
        raise UnusableFile(path, "it is a link that leads out of the folder")
    parts = real.relative_to(base).parts
    if not parts:
        raise UnusableFile(path, "it is a link to its folder")
    held = os.open(base, _FLAGS | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=held)
            os.close(held)
            held = inner
        return os.open(parts[-1], _FLAGS, dir_fd=held)
    finally:
        os.close(held)


def _base(root: Path, real: Path) -> Path | None:
    """Return the folder at or above `root` in which `real` may lie; None if it lies outside."""
    if real.is_relative_to(root):
        return root
    for snapshot in (root, *root.parents):
        if snapshot.parent.name == _SNAPSHOTS:
            base = snapshot.parent.parent
            return base if real.parent == base / _BLOBS and _BLOB_NAME.fullmatch(real.name) else None
    return None


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
