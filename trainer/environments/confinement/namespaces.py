"""Namespaces: no network, no sight of other processes, and a separate file system (Linux 5.12 and later).

The new root is a file system in memory with room for `folder_bytes`.  It holds, read-only, the files that Python needs to
import its modules; three devices; and an empty working folder.  It has no /proc, no /etc and no home folder.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from trainer.environments.confinement.system import (
    AARCH64,
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    machine,
    mount,
    system_call,
    unmount,
    unshare,
)

WORK = "/manyhands-sandbox"
"""Working folder in the new root, at a path that programs do not need otherwise."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
FILES_AT_MOST = 4096

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user")]


def leave() -> bool:
    """Enter new namespaces; the next child is the first process in them.  Raises OSError if this is forbidden.

    Returns True if a user namespace was needed: this process then has root's rights in it, and its only user.
    """
    flags = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    if os.geteuid() == 0:
        try:
            unshare(flags)
            return False
        except PermissionError:
            pass  # root of a container: a user namespace may still be allowed
    user, group = os.geteuid(), os.getegid()
    unshare(flags | CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return True


def enter_root(folder: str, readable: Iterable[str], folder_bytes: int) -> None:
    """Make the new root at `folder`, an empty folder, and move only this process into it.  Raises OSError.

    The working folder then belongs to root; the caller must give it to the program's user.
    """
    unshare(CLONE_NEWNS)
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={folder_bytes},nr_inodes={FILES_AT_MOST},mode=755")
    for path in sorted(readable):
        _show(folder, path)
    for path in DEVICES:
        target = folder + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        mount(path, target, "", _MS_BIND)
    os.mkdir(folder + WORK, 0o700)
    os.chdir(folder)
    number = 41 if machine() == AARCH64 else 155
    system_call("pivot_root", number, b".", b".")
    unmount(".", _MNT_DETACH)
    os.chdir(WORK)


def _show(folder: str, path: str) -> None:
    """Show `path` in the new root, read-only: a folder with everything below it, a file, or a link."""
    target = folder + path
    if os.path.lexists(target) or not os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path):
        os.mkdir(target)
        mount(path, target, "", _MS_BIND | _MS_REC)
        _make_read_only(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(path, target, "", _MS_BIND)
        _make_read_only(target)


def _make_read_only(target: str) -> None:
    attributes = _MountAttributes(set=_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    system_call(
        "mount_setattr", _MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), os.fsencode(target), ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
