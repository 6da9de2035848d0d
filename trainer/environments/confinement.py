"""System calls for which Python has no function, made through ctypes (Linux)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import stat
import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum
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


class Mechanism(StrEnum):
    """Mechanism of the operating system that confines a program."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    OTHER_USER = "other user"


def machine() -> str:
    """Return X86_64 or AARCH64. Raises OSError on other machines, because we do not know their system call numbers."""
    name = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}.get(platform.machine().lower())
    if name is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(f"system calls of {platform.machine()} are not known here")
    return name


def system_call(name: str, number: int, *arguments: Any) -> int:
    """Make a system call and return its result. Raises OSError with the call's name if the call fails."""
    return _checked(name, _LIBC.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, value: int, pointer: Any = None) -> None:
    """Set an option of this process to a number.

    pointer: pointer to a structure, if the option takes one.  Raises OSError.
    """
    zero = ctypes.c_ulong(0)
    structure = zero if pointer is None else pointer
    _checked(f"prctl {option}", _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), structure, zero, zero))


def unshare(flags: int) -> None:
    """Enter new namespaces.  Raises OSError."""
    _checked("unshare", _LIBC.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system.  Raises OSError."""
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    _checked(f"mount {target}", _LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode()))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Drop all of root's capabilities, also in a user namespace.  Raises OSError."""
    nothing = (ctypes.c_uint32 * 6)()
    header = _CapabilityHeader(version=0x2008_0522, pid=0)
    _checked("capset", _LIBC.capset(ctypes.byref(header), ctypes.byref(nothing)))


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


# ------------------------------------------------------------------------------------------------------------------------
# Namespaces: no network, no view of other processes, and a separate file system (Linux 5.12 and later).
#
# The new root is a file system in memory with room for `folder_bytes`. It holds three devices, an empty working folder and,
# read-only, the files that Python needs to import its modules. It has no /proc, no /etc and no home folder.


WORK = "/manyhands-sandbox"
"""Working folder in the new root, at a path that programs do not otherwise need."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
FILES_AT_MOST = 4096

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user")]


def leave() -> bool:
    """Enter new namespaces; the next child becomes the first process in them. Raises OSError if the system forbids this.

    Returns True if a user namespace was needed: this process then has root's rights in that namespace,
    and the namespace contains only this process's user.
    """
    flags = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    if os.geteuid() == 0:
        try:
            unshare(flags)
            return False
        except PermissionError:
            pass  # we are root in a container, which may still allow a user namespace
    user, group = os.geteuid(), os.getegid()
    unshare(flags | CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return True


def enter_root(folder: str, readable: Iterable[str], folder_bytes: int) -> None:
    """Build the new root in the empty folder `folder`, and move only this process into it.  Raises OSError.

    The working folder then belongs to root; the caller must give it to the program's user.
    """
    unshare(CLONE_NEWNS)
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={folder_bytes},nr_inodes={FILES_AT_MOST},mode=755")
    for path in sorted(readable):
        _show(folder, path)
    for path in DEVICES:
        _show(folder, path, is_device=True)
    os.mkdir(folder + WORK, 0o700)
    os.chdir(folder)
    number = 41 if machine() == AARCH64 else 155
    system_call("pivot_root", number, b".", b".")
    _checked("umount", _LIBC.umount2(b".", ctypes.c_int(_MNT_DETACH)))
    os.chdir(WORK)


def _show(folder: str, path: str, *, is_device: bool = False) -> None:
    """Make `path` visible in the new root, read-only: a folder with everything below it, a file, or a link.

    is_device: True for a device, which stays writable.
    """
    target = folder + path
    if os.path.lexists(target) or not os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
        mount(path, target, "", _MS_BIND | _MS_REC)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666 if is_device else 0o644))
        mount(path, target, "", _MS_BIND)
    if not is_device:
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


# ------------------------------------------------------------------------------------------------------------------------
# Landlock: limits the files that a process may open, without privileges or namespaces (Linux 6.2 and later).
#
# Landlock is needed if a container or a distribution forbids namespaces. It does not hide names and sizes of other files,
# and seccomp must prevent changes of their owner, mode and times. Earlier kernels lack the rule for truncation. Landlock
# would not protect files there, so we treat such kernels as having no Landlock.
#
# Interface: the kernel's `Documentation/userspace-api/landlock.rst`.


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
LEAST_VERSION = 3
"""First version of Landlock that can forbid truncation."""

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
    """Limit this process to reading below `readable`, reading and writing the files `writable`, and using the folder `own`.

    No file can be executed. If the kernel supports it, TCP and signals to outside processes are also forbidden. Raises
    OSError if the kernel's Landlock is missing or too old. The caller must first have set PR_SET_NO_NEW_PRIVS.
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
    """Add a rule for `path` and everything below it; do nothing if `path` does not exist."""
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


# ------------------------------------------------------------------------------------------------------------------------
# Seccomp: limits the system calls that a program may make, by a classic BPF filter for x86-64 and AArch64.
#
# `ALLOWED` lists the calls that Python, its standard library and the C library need for files, memory, threads, waiting and
# clocks. Namespaces or Landlock decide which files may be opened. A few more calls are allowed with some arguments only
# (`CLONE` to `SOCKETPAIR`). Every other call fails with ENOSYS, as on a kernel that lacks the call. Calls that later kernels
# add are therefore refused until they are reviewed. C libraries fall back to older calls on this error. The calls of the x32
# table have other numbers, so they also fail; a call through another architecture's table ends the process.
#
# Programs cannot use sockets (except a connected pair), other processes (to start, execute, trace, signal or schedule them),
# file notifications (other processes read the same libraries), changes of owners, extended attributes, shared memory,
# message queues, or interfaces that configure the kernel. File locks succeed without effect: no other process shares a
# program's files, and a lock on a library would block other processes.


KILL_PROCESS, ERRNO, ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
MISSING, FORBIDDEN, UNSUPPORTED = (ERRNO | number for number in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP))
"""Answers to unlisted calls, to unlisted arguments, and to calls for which Python falls back only on EOPNOTSUPP."""
GRANTED = ERRNO
"""Answer that returns 0 without making the call."""
ARCHITECTURES = {X86_64: 0xC000_003E, AARCH64: 0xC000_00B7}

LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

Numbers = tuple[int | None, int | None]
"""Numbers of a call on x86-64 and AArch64; None if the call does not exist there."""

ALLOWED: dict[str, Numbers] = {
    # files
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "sendfile": (40, 71),
    "copy_file_range": (326, 285), "lseek": (8, 62), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "creat": (85, None), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83),
    "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "unlink": (87, None), "unlinkat": (263, 35),
    "symlink": (88, None), "symlinkat": (266, 36), "readlink": (89, None), "readlinkat": (267, 78), "umask": (95, 166),
    "pipe": (22, None), "pipe2": (293, 59),
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "msync": (26, 227),
    # threads and exit
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "set_tid_address": (218, 96),
    "arch_prctl": (158, None), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168), "getpriority": (140, 141), "wait4": (61, 260), "waitid": (247, 95), "exit": (60, 93),
    "exit_group": (231, 94),
    # signals within the process
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
    "restart_syscall": (219, 128), "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102),
    # waiting
    "select": (23, None), "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "signalfd4": (289, 74),
    "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    # pairs of connected sockets, for asyncio
    "recvfrom": (45, 207), "recvmsg": (47, 212), "sendto": (44, 206), "sendmsg": (46, 211), "shutdown": (48, 210),
    "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
    # clocks
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    # the process itself
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
}  # fmt: skip

OF_MODES_AND_TIMES: dict[str, Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Calls allowed only if other files are hidden, because Landlock does not protect visible files from these calls."""

OF_ATTRIBUTES: dict[str, Numbers] = {
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12),
    "flistxattr": (196, 13),
}  # fmt: skip
"""Calls answered as a file system without extended attributes would: `shutil` makes these calls, and ignores only this
error."""

CLONE, CLONE_THREAD = (56, 220), 0x0001_0000
"""Call that may start threads but not processes.  `clone3` is not allowed: a filter cannot see its flags."""
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
"""Calls that are allowed only on the program's own process."""
PRCTL, PRCTL_OPTIONS = (157, 167), (3, 15, 16, 23, 0x5356_4D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ and PR_SET_VMA (which names memory)."""
IOCTL, IOCTL_REQUESTS = (16, 29), (0x5401, 0x802C_542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX."""
FCNTL, FCNTL_COMMANDS = (72, 25), (0, 1, 2, 3, 4, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC and F_GETPIPE_SZ."""
LOCKS = (6, 7)
"""F_SETLK and F_SETLKW, which SQLite needs. They succeed without being carried out."""
SOCKETPAIR, UNIX, STREAM = (53, 199), (1,), tuple(1 | flags for flags in (0, 0x800, 0x8_0000, 0x8_0800))
"""Stream sockets, with or without SOCK_NONBLOCK and SOCK_CLOEXEC.  A pair of datagram sockets could send to any local
service."""

Instruction = tuple[int, int, int, int]
"""BPF instruction: code, jump if true, jump if false, operand."""


def instructions(machine: str, own_pid: int, threads: bool, modes: bool) -> list[Instruction]:
    """Return the filter for the process with the number `own_pid`.

    threads: True to allow starting threads.  modes: True to allow changing modes and times of files.
    """
    column = (X86_64, AARCH64).index(machine)
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    modes_answer = ALLOW if modes else FORBIDDEN
    for calls, answer in ((ALLOWED, ALLOW), (OF_MODES_AND_TIMES, modes_answer), (OF_ATTRIBUTES, UNSUPPORTED)):
        for numbers in calls.values():
            if numbers[column] is not None:
                program += _when(numbers[column], [(RETURN, 0, 0, answer)])
    one_of = functools.partial(_unless, JUMP_EQUAL)
    granted = [
        (LOAD, 0, 0, ARGUMENTS_AT + 8),
        (JUMP_EQUAL, 1, 0, LOCKS[0]),
        (JUMP_EQUAL, 0, 1, LOCKS[1]),
        (RETURN, 0, 0, GRANTED),
    ]
    checked: list[tuple[Numbers, list[Instruction]]] = [
        (KILL, one_of(0, (own_pid,), FORBIDDEN)),
        (TGKILL, one_of(0, (own_pid,), FORBIDDEN)),
        (PRLIMIT, one_of(0, (0, own_pid), FORBIDDEN)),
        (PRCTL, one_of(0, PRCTL_OPTIONS, FORBIDDEN)),
        (IOCTL, one_of(1, IOCTL_REQUESTS, UNSUPPORTED)),
        (FCNTL, granted + one_of(1, FCNTL_COMMANDS, FORBIDDEN)),
        (SOCKETPAIR, one_of(0, UNIX, FORBIDDEN) + one_of(1, STREAM, FORBIDDEN)),
        (CLONE, _unless(JUMP_ANY_BIT, 0, (CLONE_THREAD,) if threads else (), FORBIDDEN)),
    ]
    for numbers, tests in checked:
        program += _when(numbers[column], [*tests, (RETURN, 0, 0, ALLOW)])
    return [*program, (RETURN, 0, 0, MISSING)]


def install(machine: str, threads: bool, modes: bool) -> None:
    """Apply the filter to this process irrevocably.  Raises OSError."""
    program = instructions(machine, os.getpid(), threads, modes)
    data = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(data, len(data))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)), 16)
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(header))


def _when(number: int | None, then: list[Instruction]) -> list[Instruction]:
    """Return instructions that run `then` for this call only; `then` must return an answer."""
    assert number is not None and len(then) <= 255
    return [(JUMP_EQUAL, 0, len(then), number), *then]


def _unless(test: int, argument: int, values: Sequence[int], refusal: int) -> list[Instruction]:
    """Return instructions that refuse the call unless an argument (low 32 bits) passes the test with one of the values."""
    tests = [(test, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, refusal)]
