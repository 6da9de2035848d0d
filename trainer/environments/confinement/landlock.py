"""Landlock: limits the files that a process may open, without privileges or namespaces (Linux 6.2 and later).

It is needed if a container or a distribution forbids namespaces.  It does not hide names and sizes of other files, and
leaves changes of their owner, mode and times to seccomp.  Earlier kernels lack the rule for truncation; Landlock would be no
real protection there, so they count as having none.

Interface: the kernel's `Documentation/userspace-api/landlock.rst`.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from trainer.environments.confinement.system import system_call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
LEAST_VERSION = 3
"""The first version of Landlock that can forbid truncation."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << n for n in range(4, 13)
)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = READ_FILE | READ_DIR
_OWN = (
    _READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM | REFER | TRUNCATE
)
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _BeneathPath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def restrict(readable: Iterable[str], writable: Iterable[str], own: str) -> None:
    """Let this process only read below `readable`, read and write the files `writable`, and use the folder `own` freely.

    Files can be executed nowhere.  If the kernel supports it, TCP and signals to outside processes are also forbidden.
    Raises OSError if the kernel's Landlock is missing or too old.  The process must have given up new privileges before.
    """
    version = system_call("landlock", _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < LEAST_VERSION:
        raise OSError(f"landlock has version {version}, and {LEAST_VERSION} is needed (Linux 6.2)")
    handled = (1 << 15) - 1 | (IOCTL_DEV if version >= 5 else 0)
    rules = _Ruleset(handled, _BIND_TCP | _CONNECT_TCP, _ABSTRACT_SOCKETS | _SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = system_call("landlock", _CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, READ_FILE | WRITE_FILE)
        _allow(ruleset, own, _OWN)
        system_call("landlock", _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    """Add a rule for `path` and everything below; do nothing if it does not exist."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_FILES
        rule = _BeneathPath(access, place)
        system_call("landlock", _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)
