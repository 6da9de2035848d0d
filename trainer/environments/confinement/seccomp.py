"""Seccomp: which system calls a program may make.  A classic BPF filter, for x86-64 and AArch64.

Refused (EPERM) are: new sockets, other processes (starting, executing, tracing, signalling, reading, scheduling them),
mounts and namespaces, kernel interfaces that programs rarely need and attackers often do, memory that no limit counts,
and messages between processes.  Threads stay possible unless the filter is made without.  `clone3` is said not to exist,
whose flags a filter cannot see; the C library then takes `clone`.  A call by another architecture's table ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from trainer.environments.confinement.system import AARCH64, PR_SET_PDEATHSIG, PR_SET_SECCOMP, X86_64, prctl_pointer

KILL_PROCESS, ERRNO, ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
ARCHITECTURES = {X86_64: 0xC000_003E, AARCH64: 0xC000_00B7}
X32_BIT = 0x4000_0000

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

CLONE_THREAD = 0x0001_0000
PUSH_INTO_TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: to type into somebody's terminal, or to paste."""
SIGNAL_BY_DESCRIPTOR = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX: whom the kernel signals when something comes, and with which signal, SIGKILL too."""
SIGNAL_BY_SOCKET = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP: the same as F_SETOWN."""
NOT_A_STREAM = 0b1110
"""In a socket's type.  A datagram can be sent from one of a pair to any service of this computer, such as its log."""

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # sockets; a pair of connected streams stays possible, which asyncio needs
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # other processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "mknod": (133, None), "mknodat": (259, 33),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "personality": (135, 92), "lookup_dcookie": (212, 18),
    "vhangup": (153, 58), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    # memory that no limit counts, and messages that outlive a process
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # owners and attributes of files
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}  # fmt: skip
"""Name: numbers on x86-64 and AArch64 (None where there is no such call)."""

OF_MODES_AND_TIMES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Refused as well where the files of others are still to be seen, which Landlock does not keep from being touched so."""

CLONE, CLONE3, KILL, TGKILL, PRLIMIT, PRCTL, IOCTL, FCNTL, SOCKETPAIR = (
    (56, 220),
    (435, 435),
    (62, 129),
    (234, 131),
    (302, 261),
    (157, 167),
    (16, 29),
    (72, 25),
    (53, 199),
)

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def instructions(machine: str, own_pid: int, threads: bool, modes: bool) -> list[Instruction]:
    """The filter of a process with this number.  threads: may it start threads?  modes: may it change modes and times?"""
    column = (X86_64, AARCH64).index(machine)
    refusal = ERRNO | errno.EPERM
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine == X86_64:
        program += [(JUMP_AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, refusal)]
    refused = dict(REFUSED) if modes else REFUSED | OF_MODES_AND_TIMES
    for numbers in refused.values():
        if numbers[column] is not None:
            program += _when(numbers[column], [(RETURN, 0, 0, refusal)])
    program += _when(CLONE3[column], [(RETURN, 0, 0, ERRNO | errno.ENOSYS)])
    if threads:
        program += _when(CLONE[column], _unless(JUMP_ANY_BIT, 0, [CLONE_THREAD], refusal))
    else:
        program += _when(CLONE[column], [(RETURN, 0, 0, refusal)])
    program += _when(KILL[column], _unless(JUMP_EQUAL, 0, [own_pid], refusal))
    program += _when(TGKILL[column], _unless(JUMP_EQUAL, 0, [own_pid], refusal))
    program += _when(PRLIMIT[column], _unless(JUMP_EQUAL, 0, [0, own_pid], refusal))
    program += _when(PRCTL[column], _if(JUMP_EQUAL, 0, [PR_SET_PDEATHSIG], refusal))
    program += _when(IOCTL[column], _if(JUMP_EQUAL, 1, [*PUSH_INTO_TERMINAL, *SIGNAL_BY_SOCKET], refusal))
    program += _when(FCNTL[column], _if(JUMP_EQUAL, 1, [*SIGNAL_BY_DESCRIPTOR], refusal))
    program += _when(SOCKETPAIR[column], _if(JUMP_ANY_BIT, 1, [NOT_A_STREAM], refusal))
    return [*program, (RETURN, 0, 0, ALLOW)]


def install(machine: str, threads: bool, modes: bool) -> None:
    """Puts this process under its filter, for good.  Raises OSError."""
    program = instructions(machine, os.getpid(), threads, modes)
    data = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(data, len(data))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)), 16)
    prctl_pointer(PR_SET_SECCOMP, 2, ctypes.byref(header))


def _when(number: int | None, then: list[Instruction]) -> list[Instruction]:
    """These instructions, which return, for this call alone."""
    assert number is not None and len(then) <= 255
    return [(JUMP_EQUAL, 0, len(then), number), *then]


def _unless(test: int, argument: int, values: list[int], refusal: int) -> list[Instruction]:
    """Allows the call when an argument (its low 32 bits) passes the test with one of the values."""
    tests = [(test, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, refusal), (RETURN, 0, 0, ALLOW)]


def _if(test: int, argument: int, values: list[int], refusal: int) -> list[Instruction]:
    """Refuses the call when an argument (its low 32 bits) passes the test with one of the values."""
    tests = [(test, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, refusal)]
