"""System calls that Python has no function for, through ctypes (Linux)."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

X86_64, AARCH64 = "x86_64", "aarch64"

_LIBC = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Return X86_64 or AARCH64; raises OSError on other machines, whose system call numbers we do not know."""
    name = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}.get(platform.machine().lower())
    if name is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(f"system calls of {platform.machine()} are not known here")
    return name


def system_call(name: str, number: int, *arguments: Any) -> int:
    """Make a system call and return its result; raises OSError with the call's name if it fails."""
    return _checked(name, _LIBC.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, value: int) -> None:
    """Set one of the process's settings.  Raises OSError."""
    zero = ctypes.c_ulong(0)
    _checked(f"prctl {option}", _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def prctl_pointer(option: int, value: int, pointer: Any) -> None:
    """Set a setting of the process that takes a structure.  Raises OSError."""
    zero = ctypes.c_ulong(0)
    _checked(f"prctl {option}", _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), pointer, zero, zero))


def unshare(flags: int) -> None:
    """Enter new namespaces.  Raises OSError."""
    _checked("unshare", _LIBC.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system.  Raises OSError."""
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    _checked(f"mount {target}", _LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode()))


def unmount(target: str, flags: int) -> None:
    """Unmount a file system.  Raises OSError."""
    _checked(f"umount {target}", _LIBC.umount2(os.fsencode(target), ctypes.c_int(flags)))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Give up all privileges of root, also in a user namespace.  Raises OSError."""
    nothing = (ctypes.c_uint32 * 6)()
    header = _CapabilityHeader(version=0x2008_0522, pid=0)
    _checked("capset", _LIBC.capset(ctypes.byref(header), ctypes.byref(nothing)))


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
