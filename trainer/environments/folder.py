"""Removal of a folder in which an untrusted program wrote."""

from __future__ import annotations

import os
import stat


def remove_folder(path: str) -> None:
    """Remove a folder of any depth, with any modes and file names; follow no link.

    A tree can be deeper than a path or Python's stack allows, so folders are moved up and removed one after the other.
    No process may write there meanwhile.
    """
    os.chmod(path, 0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        moved = 0
        while names := os.listdir(top):
            for name in names:
                moved = _remove_entry(top, name, moved)
    finally:
        os.close(top)
    os.rmdir(path)


def _remove_entry(top: int, name: str, moved: int) -> int:
    """Remove a file, or a folder after moving its own folders to the top; return the number for the next moved folder."""
    if not _is_folder(top, name):
        os.unlink(name, dir_fd=top)
        return moved
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            if not _is_folder(inner, entry):
                os.unlink(entry, dir_fd=inner)
                continue
            os.chmod(entry, 0o700, dir_fd=inner)
            while _exists(top, f"{moved}"):
                moved += 1
            os.rename(entry, f"{moved}", src_dir_fd=inner, dst_dir_fd=top)
            moved += 1
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
