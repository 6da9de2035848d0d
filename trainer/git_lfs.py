"""Pointers of Git LFS, which stand for a large file in a folder that was cloned without it."""

from __future__ import annotations

from pathlib import Path

POINTER_FLAW = (
    "is a pointer of Git LFS, not the file; fetch the file with `git lfs pull` in its folder, or download the model again "
    "with `hf download`"
)
"""Follows the name of a file."""
_BEGINNINGS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_MOST_BYTES = 1024
"""A pointer is shorter (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""


def is_pointer(data: bytes) -> bool:
    """Return True for the bytes of a pointer.  data: the whole file, or more of its beginning than a pointer has."""
    return len(data) < _MOST_BYTES and data.startswith(_BEGINNINGS)


def is_pointer_file(path: Path) -> bool:
    """Return True for a file that is a pointer; False for any other, and for one that cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_pointer(file.read(_MOST_BYTES))
    except OSError:
        return False
