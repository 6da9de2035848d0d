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
ORDINARY = {
    X86_64: {
        "read": 0,
        "write": 1,
        "openat": 257,
        "mmap": 9,
        "futex": 202,
        "getrandom": 318,
        "exit_group": 231,
        "wait4": 61,
    },
    AARCH64: {
        "read": 63,
        "write": 64,
        "openat": 56,
        "mmap": 222,
        "futex": 98,
        "getrandom": 278,
        "exit_group": 94,
        "wait4": 260,
    },
}
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


@both
def test_ordinary_calls_pass(machine: str, column: int) -> None:
    assert {verdict(machine, number) for number in ORDINARY[machine].values()} == {ALLOW}


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


def numbers_named(column: int) -> list[int]:
    """Every number that the filter knows of, as often as it stands there."""
    tables = seccomp.ALLOWED | seccomp.OF_MODES_AND_TIMES | seccomp.OF_ATTRIBUTES
    checked = (
        seccomp.CLONE, seccomp.KILL, seccomp.TGKILL, seccomp.PRLIMIT, seccomp.PRCTL, seccomp.IOCTL, seccomp.FCNTL,
        seccomp.SOCKETPAIR,
    )  # fmt: skip
    numbers = [each[column] for each in [*tables.values(), *checked]]
    return [number for number in numbers if number is not None]


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


@both
def test_unconditional_calls_pass_with_any_arguments(machine: str, column: int) -> None:
    numbers = [number for each in seccomp.ALLOWED.values() if (number := each[column]) is not None]
    assert {verdict(machine, number, *[2**64 - 1] * 6) for number in numbers} == {ALLOW}


@both
def test_extended_attributes_look_like_those_of_a_file_system_without_any(machine: str, column: int) -> None:
    numbers = [number for each in seccomp.OF_ATTRIBUTES.values() if (number := each[column]) is not None]
    assert {verdict(machine, number) for number in numbers} == {UNSUPPORTED}


@both
def test_threads_are_no_processes(machine: str, column: int) -> None:
    clone = seccomp.CLONE[column]
    as_glibc_does = 0x3D0F00
    assert verdict(machine, clone, as_glibc_does) == ALLOW
    assert verdict(machine, clone, as_glibc_does, threads=False) == FORBIDDEN
    assert verdict(machine, clone, 17) == FORBIDDEN


@both
def test_signals_go_to_the_program_alone(machine: str, column: int) -> None:
    for call in (seccomp.KILL, seccomp.TGKILL):
        assert verdict(machine, call[column], OWN_PID, 6, 6) == ALLOW
        for other in (1, 0, 2**32 - 1, OWN_PID + 1):
            assert verdict(machine, call[column], other, 9, 9) == FORBIDDEN


@both
def test_no_descriptor_has_others_signalled(machine: str, column: int) -> None:
    get, set_flags, set_owner, set_signal, set_any_owner = 3, 4, 8, 10, 15
    assert {verdict(machine, seccomp.FCNTL[column], 5, call) for call in (get, set_flags)} == {ALLOW}
    assert {verdict(machine, seccomp.FCNTL[column], 5, call) for call in (set_owner, set_signal, set_any_owner)} == {
        FORBIDDEN
    }
    assert {verdict(machine, seccomp.IOCTL[column], 5, call) for call in (0x8901, 0x8902)} == {UNSUPPORTED}


@both
def test_locks_never_reach_the_kernel(machine: str, column: int) -> None:
    """A lock on a library would hold up whoever updates it; leases and notifications would tell of others."""
    take, wait, of_descriptors, lease, notify = 6, 7, (36, 37, 38), 1024, 1026
    assert {verdict(machine, seccomp.FCNTL[column], 5, command) for command in (take, wait)} == {GRANTED}
    others = {verdict(machine, seccomp.FCNTL[column], 5, command) for command in (5, *of_descriptors, lease, notify)}
    assert others == {FORBIDDEN}


@both
def test_pairs_of_sockets_reach_nobody_else(machine: str, column: int) -> None:
    unix, stream, datagram, raw, closes, does_not_wait = 1, 1, 2, 3, 0x80000, 0x800
    assert verdict(machine, seccomp.SOCKETPAIR[column], unix, stream | closes | does_not_wait) == ALLOW
    for kind in (datagram, raw, datagram | closes):
        assert verdict(machine, seccomp.SOCKETPAIR[column], unix, kind) == FORBIDDEN
    for family in (0, 2, 10, 16, 30):
        assert verdict(machine, seccomp.SOCKETPAIR[column], family, stream) == FORBIDDEN


@both
def test_limits_of_others_stay(machine: str, column: int) -> None:
    assert verdict(machine, seccomp.PRLIMIT[column], 0, 7) == ALLOW
    assert verdict(machine, seccomp.PRLIMIT[column], OWN_PID, 7) == ALLOW
    assert verdict(machine, seccomp.PRLIMIT[column], OWN_PID + 1, 7) == FORBIDDEN


@both
def test_death_with_the_launcher_and_terminals_stay_as_they_are(machine: str, column: int) -> None:
    for option in (1, 4, 22, 33, 35, 38, 2**32 - 1):
        assert verdict(machine, seccomp.PRCTL[column], option, 0) == FORBIDDEN
    assert verdict(machine, seccomp.PRCTL[column], 15, 0) == ALLOW
    assert verdict(machine, seccomp.IOCTL[column], 0, 0x5401) == ALLOW
    type_for_others, paste, set_terminal, clone_file = 0x5412, 0x541C, 0x5402, 0x4004_9409
    for request in (type_for_others, paste, set_terminal, clone_file):
        assert verdict(machine, seccomp.IOCTL[column], 0, request) == UNSUPPORTED


@both
def test_modes_and_times_are_refused_where_others_files_are_seen(machine: str, column: int) -> None:
    for numbers in seccomp.OF_MODES_AND_TIMES.values():
        number = numbers[column]
        if number is not None:
            assert verdict(machine, number, modes=True) == ALLOW
            assert verdict(machine, number, modes=False) == FORBIDDEN


def test_calls_by_another_table_end_the_process() -> None:
    assert verdict(X86_64, 0, table=AARCH64) == KILL_PROCESS
    assert verdict(AARCH64, 0, table=X86_64) == KILL_PROCESS
