"""Seccomp: limits the system calls that a program may make, by a classic BPF filter for x86-64 and AArch64.

`ALLOWED` lists the calls that Python, its standard library and the C library need for files, memory, threads, waiting and
clocks.  The other mechanisms decide which files may be opened.  A few more calls are allowed with some arguments only
(`CLONE` to `SOCKETPAIR`).  Every other call fails with ENOSYS, as on a kernel that lacks it, so calls that later kernels add
are refused without a review.  C libraries fall back to older calls on this error.  The calls of the x32 table have other
numbers, so they fail as well; a call by another architecture's table ends the process.

Programs have no sockets (except a connected pair), other processes (starting, executing, tracing, signalling, scheduling),
notifications of files (other processes read the same libraries), changes of owners and extended attributes, shared memory,
message queues, or interfaces that configure the kernel.  Locks of files succeed without effect: no other process shares the
files of a program, and a lock on a library would hold up others.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Mapping, Sequence

from trainer.environments.confinement.system import AARCH64, PR_SET_SECCOMP, X86_64, prctl_pointer

KILL_PROCESS, ERRNO, ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
MISSING, FORBIDDEN, UNSUPPORTED = (ERRNO | number for number in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP))
"""Answers to unlisted calls, to unlisted arguments, and to calls for which Python falls back only on this error."""
GRANTED = ERRNO
"""Answer 0 without doing anything."""
ARCHITECTURES = {X86_64: 0xC000_003E, AARCH64: 0xC000_00B7}

LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

Numbers = tuple[int | None, int | None]
"""Numbers of a call on x86-64 and AArch64; None if there is no such call."""

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
    # threads and the end
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "set_tid_address": (218, 96),
    "arch_prctl": (158, None), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168), "getpriority": (140, 141), "wait4": (61, 260), "waitid": (247, 95), "exit": (60, 93),
    "exit_group": (231, 94),
    # signals to itself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
    "restart_syscall": (219, 128), "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102),
    # waiting
    "select": (23, None), "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "signalfd4": (289, 74),
    "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    # pairs of connected sockets, which asyncio needs
    "recvfrom": (45, 207), "recvmsg": (47, 212), "sendto": (44, 206), "sendmsg": (46, 211), "shutdown": (48, 210),
    "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
    # clocks
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    # itself
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
}  # fmt: skip

OF_MODES_AND_TIMES: dict[str, Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Calls that are allowed only if other files are hidden: Landlock does not protect visible files from them."""

OF_ATTRIBUTES: dict[str, Numbers] = {
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12),
    "flistxattr": (196, 13),
}  # fmt: skip
"""Calls answered as by a file system without extended attributes: `shutil` asks for them, and ignores only this error."""

CLONE, CLONE_THREAD = (56, 220), 0x0001_0000
"""Call that may start threads, but no process.  `clone3` is not allowed: a filter cannot see its flags."""
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
"""Calls that are allowed only on the program's own process."""
PRCTL, PRCTL_OPTIONS = (157, 167), (3, 15, 16, 23, 0x5356_4D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ and PR_SET_VMA, which names memory."""
IOCTL, IOCTL_REQUESTS = (16, 29), (0x5401, 0x802C_542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX."""
FCNTL, FCNTL_COMMANDS = (72, 25), (0, 1, 2, 3, 4, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC and F_GETPIPE_SZ."""
LOCKS = (6, 7)
"""F_SETLK and F_SETLKW, which SQLite needs.  They succeed without reaching the kernel."""
SOCKETPAIR, UNIX, STREAM = (53, 199), (1,), tuple(1 | flags for flags in (0, 0x800, 0x8_0000, 0x8_0800))
"""Stream sockets, with or without SOCK_NONBLOCK and SOCK_CLOEXEC.  A pair for datagrams could send to any local service."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def instructions(machine: str, own_pid: int, threads: bool, modes: bool) -> list[Instruction]:
    """Return the filter for the process with this number.

    threads: True to allow starting threads.  modes: True to allow changing modes and times of files.
    """
    column = (X86_64, AARCH64).index(machine)
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    program += _all_of(ALLOWED, column, ALLOW)
    program += _all_of(OF_MODES_AND_TIMES, column, ALLOW if modes else FORBIDDEN)
    program += _all_of(OF_ATTRIBUTES, column, UNSUPPORTED)
    one_of = functools.partial(_unless, JUMP_EQUAL)
    checked: list[tuple[Numbers, list[Instruction]]] = [
        (KILL, one_of(0, (own_pid,), FORBIDDEN)),
        (TGKILL, one_of(0, (own_pid,), FORBIDDEN)),
        (PRLIMIT, one_of(0, (0, own_pid), FORBIDDEN)),
        (PRCTL, one_of(0, PRCTL_OPTIONS, FORBIDDEN)),
        (IOCTL, one_of(1, IOCTL_REQUESTS, UNSUPPORTED)),
        (FCNTL, _if(1, LOCKS, GRANTED) + one_of(1, FCNTL_COMMANDS, FORBIDDEN)),
        (SOCKETPAIR, one_of(0, UNIX, FORBIDDEN) + one_of(1, STREAM, FORBIDDEN)),
        (CLONE, _unless(JUMP_ANY_BIT, 0, (CLONE_THREAD,) if threads else (), FORBIDDEN)),
    ]
    for numbers, tests in checked:
        program += _when(numbers[column], [*tests, (RETURN, 0, 0, ALLOW)])
    return [*program, (RETURN, 0, 0, MISSING)]


def install(machine: str, threads: bool, modes: bool) -> None:
    """Put this process under its filter, irrevocably.  Raises OSError."""
    program = instructions(machine, os.getpid(), threads, modes)
    data = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(data, len(data))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)), 16)
    prctl_pointer(PR_SET_SECCOMP, 2, ctypes.byref(header))


def _all_of(calls: Mapping[str, Numbers], column: int, answer: int) -> list[Instruction]:
    """Give each of these calls the same answer."""
    found = [_when(numbers[column], [(RETURN, 0, 0, answer)]) for numbers in calls.values() if numbers[column] is not None]
    return [instruction for each in found for instruction in each]


def _when(number: int | None, then: list[Instruction]) -> list[Instruction]:
    """Return instructions that run `then`, which returns, for this call only."""
    assert number is not None and len(then) <= 255
    return [(JUMP_EQUAL, 0, len(then), number), *then]


def _unless(test: int, argument: int, values: Sequence[int], refusal: int) -> list[Instruction]:
    """Refuse the call unless an argument (its low 32 bits) passes the test with one of the values."""
    tests = [(test, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, refusal)]


def _if(argument: int, values: Sequence[int], answer: int) -> list[Instruction]:
    """Give this answer when an argument (its low 32 bits) is one of the values."""
    last = len(values) - 1
    tests = [(JUMP_EQUAL, last - place, int(place == last), value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, answer)]
