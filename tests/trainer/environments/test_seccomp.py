"""The filter by its meaning, for both processors: what it lets through and what it refuses.  Its programs are run here."""

from __future__ import annotations

import pytest

from trainer.environments import confinement as seccomp
from trainer.environments.confinement import (
    AARCH64,
    ALLOW,
    ARCHITECTURES,
    FORBIDDEN,
    GRANTED,
    KILL_PROCESS,
    MISSING,
    UNSUPPORTED,
    X86_64,
)

OWN_PID = 77
X32_BIT = 0x4000_0000
BEYOND_ALL_CALLS = 1024
both = pytest.mark.parametrize(("machine", "column"), [(X86_64, 0), (AARCH64, 1)])


def verdict(
    machine: str, number: int, *arguments: int, table: str | None = None, threads: bool = True, modes: bool = True
) -> int:
    """What the kernel would answer: the BPF machine, as far as our filters use it."""
    words = {0: number, 4: ARCHITECTURES[table or machine]}
    for place, value in enumerate(arguments):
        words |= {16 + 8 * place: value & 0xFFFF_FFFF, 20 + 8 * place: value >> 32}
    program = seccomp.instructions(machine, OWN_PID, threads, modes)
    place = accumulator = 0
    while True:
        code, jump, otherwise, operand = program[place]
        place += 1
        if code == seccomp.LOAD:
            accumulator = words.get(operand, 0)
        elif code == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.JUMP_EQUAL: accumulator == operand,
                seccomp.JUMP_ANY_BIT: accumulator & operand != 0,
            }[code]
            place += jump if holds else otherwise


DANGEROUS = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "setsockopt": (54, 208), "io_uring_setup": (425, 425),
    "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "process_madvise": (440, 440), "mount": (165, 40),
    "unshare": (272, 97), "setns": (308, 268), "open_tree_attr": (467, 467), "bpf": (321, 280), "keyctl": (250, 219),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "shmget": (29, 194), "mq_open": (240, 180),
    "flock": (73, 32), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "fanotify_init": (300, 262),
    "chown": (92, None), "fchownat": (260, 54), "setxattr": (188, 5), "removexattr": (197, 14), "setxattrat": (463, 463),
    "getxattrat": (464, 464), "listxattrat": (465, 465), "removexattrat": (466, 466), "file_getattr": (468, 468),
    "file_setattr": (469, 469), "mincore": (27, 232), "cachestat": (451, 451), "vmsplice": (278, 75), "sync": (162, 81),
    "setuid": (105, 146), "setsid": (112, 157), "personality": (135, 92), "modify_ldt": (154, None), "uprobe": (336, None),
}  # fmt: skip
"""Calls that the filter may never let through, with their numbers on x86-64 and AArch64."""


@both
def test_dangerous_calls_are_missing(machine: str, column: int) -> None:
    found = {
        name: verdict(machine, number) for name, numbers in DANGEROUS.items() if (number := numbers[column]) is not None
    }
    assert set(found.values()) == {MISSING}, found


def number_of(numbers: seccomp.Numbers, column: int) -> int:
    number = numbers[column]
    assert number is not None
    return number


def numbers_named(column: int) -> list[int]:
    """Every number that the filter knows of, as often as it stands there."""
    tables = seccomp.ALLOWED | seccomp.OF_MODES_AND_TIMES | seccomp.OF_ATTRIBUTES
    checked = (
        seccomp.CLONE, seccomp.KILL, seccomp.TGKILL, seccomp.PRLIMIT, seccomp.PRCTL, seccomp.IOCTL, seccomp.FCNTL,
        seccomp.SOCKETPAIR,
    )  # fmt: skip
    numbers = [each[column] for each in [*tables.values(), *checked]]
    return [number for number in numbers if number is not None]


@pytest.mark.slow
@both
@pytest.mark.parametrize("modes", [True, False])
@pytest.mark.parametrize("threads", [True, False])
def test_a_call_that_nobody_reviewed_is_missing(machine: str, column: int, threads: bool, modes: bool) -> None:
    """The running kernel may have any number of calls that are newer than the list."""
    unknown = set(range(BEYOND_ALL_CALLS)) - set(numbers_named(column))
    unknown |= {2**31 - 1, 2**31, 2**32 - 1} | {X32_BIT + number for number in range(BEYOND_ALL_CALLS)}
    assert {verdict(machine, number, threads=threads, modes=modes) for number in unknown} == {MISSING}


@both
def test_no_number_stands_for_two_calls(machine: str, column: int) -> None:
    numbers = numbers_named(column)
    assert len(numbers) == len(set(numbers))


OTHER = OWN_PID + 1
ARGUMENTS: dict[str, tuple[seccomp.Numbers, int, list[tuple[int, ...]]]] = {
    "a thread, as glibc starts it": (seccomp.CLONE, ALLOW, [(0x3D0F00,)]),
    "a process": (seccomp.CLONE, FORBIDDEN, [(17,)]),
    "a signal to itself": (seccomp.KILL, ALLOW, [(OWN_PID, 6)]),
    "a signal to others": (seccomp.KILL, FORBIDDEN, [(pid, 9) for pid in (1, 0, 2**32 - 1, OTHER)]),
    "a signal to its own thread": (seccomp.TGKILL, ALLOW, [(OWN_PID, 6, 6)]),
    "a signal to threads of others": (seccomp.TGKILL, FORBIDDEN, [(pid, 9, 9) for pid in (1, 0, 2**32 - 1, OTHER)]),
    "its own limits": (seccomp.PRLIMIT, ALLOW, [(0, 7), (OWN_PID, 7)]),
    "limits of others": (seccomp.PRLIMIT, FORBIDDEN, [(OTHER, 7)]),
    "flags of a descriptor": (seccomp.FCNTL, ALLOW, [(5, 3), (5, 4)]),
    "an owner, who is signalled": (seccomp.FCNTL, FORBIDDEN, [(5, command) for command in (8, 10, 15)]),
    "locks, which could hold up whoever updates a library": (seccomp.FCNTL, GRANTED, [(5, 6), (5, 7)]),
    "other locks, leases, notifications": (seccomp.FCNTL, FORBIDDEN, [(5, it) for it in (5, 36, 37, 38, 1024, 1026)]),
    "the owner of a socket": (seccomp.IOCTL, UNSUPPORTED, [(5, 0x8901), (5, 0x8902)]),
    "the mode of a terminal": (seccomp.IOCTL, ALLOW, [(0, 0x5401)]),
    "typing for others, pasting, setting a terminal, cloning a file": (
        seccomp.IOCTL, UNSUPPORTED, [(0, request) for request in (0x5412, 0x541C, 0x5402, 0x4004_9409)]),
    "its name": (seccomp.PRCTL, ALLOW, [(15, 0)]),
    "death with the launcher, and other options": (
        seccomp.PRCTL, FORBIDDEN, [(option, 0) for option in (1, 4, 22, 33, 35, 38, 2**32 - 1)]),
    "a pair of Unix stream sockets": (seccomp.SOCKETPAIR, ALLOW, [(1, 1 | 0x80000 | 0x800)]),
    "datagram and raw sockets": (seccomp.SOCKETPAIR, FORBIDDEN, [(1, kind) for kind in (2, 3, 2 | 0x80000)]),
    "sockets of other families": (seccomp.SOCKETPAIR, FORBIDDEN, [(family, 1) for family in (0, 2, 10, 16, 30)]),
}  # fmt: skip


@both
@pytest.mark.parametrize("what", ARGUMENTS)
def test_some_calls_pass_with_some_arguments_only(what: str, machine: str, column: int) -> None:
    numbers, answer, tried = ARGUMENTS[what]
    assert {verdict(machine, number_of(numbers, column), *arguments) for arguments in tried} == {answer}


@both
def test_threads_modes_and_times_can_be_forbidden(machine: str, column: int) -> None:
    assert verdict(machine, number_of(seccomp.CLONE, column), 0x3D0F00, threads=False) == FORBIDDEN
    for number in (number for each in seccomp.OF_MODES_AND_TIMES.values() if (number := each[column]) is not None):
        assert [verdict(machine, number, modes=modes) for modes in (True, False)] == [ALLOW, FORBIDDEN]


@both
def test_unconditional_calls_have_one_answer_whatever_the_arguments(machine: str, column: int) -> None:
    """Extended attributes look like those of a file system without any."""
    for table, answer in ((seccomp.ALLOWED, ALLOW), (seccomp.OF_ATTRIBUTES, UNSUPPORTED)):
        numbers = [number for each in table.values() if (number := each[column]) is not None]
        assert {verdict(machine, number, *[2**64 - 1] * 6) for number in numbers} == {answer}


def test_calls_by_another_table_end_the_process() -> None:
    assert verdict(X86_64, 0, table=AARCH64) == KILL_PROCESS
    assert verdict(AARCH64, 0, table=X86_64) == KILL_PROCESS
