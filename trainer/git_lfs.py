"""Git LFS pointers, which replace large files in a folder that was cloned without these files."""

from __future__ import annotations

from pathlib import Path

from kernels.outside_files import open_outside

POINTER_FLAW = (
    "is a pointer of Git LFS, not the file; fetch the file with `git lfs pull` in its folder, or download the model again "
    "with `hf download`"
)
"""Rest of a sentence that begins with the name of a file."""
_BEGINNINGS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_MOST_BYTES = 1024
"""Upper bound on a pointer's size, exclusive (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""


def is_pointer(data: bytes) -> bool:
    """Return True for the bytes of a pointer.  data: the whole file, or at least its first `_MOST_BYTES`."""
    return len(data) < _MOST_BYTES and data.startswith(_BEGINNINGS)


def is_pointer_file(path: Path) -> bool:
    """Return True for a file that is a pointer; False for any other file, and for an unreadable one."""
    try:
        with open_outside(path) as file:
            return is_pointer(file.read(_MOST_BYTES))
    except OSError:
        return False
