"""The filter by its meaning, for both processors: what it lets through and what it refuses.  Its programs are run here."""

from __future__ import annotations

import errno

import pytest

from trainer.environments.confinement import seccomp
from trainer.environments.confinement.seccomp import ALLOW, ARCHITECTURES, ERRNO, KILL_PROCESS
from trainer.environments.confinement.system import AARCH64, X86_64

OWN_PID = 77
REFUSAL = ERRNO | errno.EPERM
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
                seccomp.JUMP_AT_LEAST: accumulator >= operand,
                seccomp.JUMP_ANY_BIT: accumulator & operand != 0,
            }[code]
            place += jump if holds else otherwise


@both
def test_ordinary_calls_pass(machine: str, column: int) -> None:
    assert {verdict(machine, number) for number in ORDINARY[machine].values()} == {ALLOW}


@both
def test_every_named_call_is_refused(machine: str, column: int) -> None:
    numbers = [numbers[column] for numbers in seccomp.REFUSED.values()]
    assert {verdict(machine, number) for number in numbers if number is not None} == {REFUSAL}


@both
def test_no_number_stands_for_two_calls(machine: str, column: int) -> None:
    tables = seccomp.REFUSED | seccomp.OF_MODES_AND_TIMES
    numbers = [numbers[column] for numbers in tables.values() if numbers[column] is not None]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & set(ORDINARY[machine].values())


@both
def test_threads_are_no_processes(machine: str, column: int) -> None:
    clone = seccomp.CLONE[column]
    as_glibc_does = 0x3D0F00
    assert verdict(machine, clone, as_glibc_does) == ALLOW
    assert verdict(machine, clone, as_glibc_does, threads=False) == REFUSAL
    assert verdict(machine, clone, 17) == REFUSAL
    assert verdict(machine, seccomp.CLONE3[column], 0) == ERRNO | errno.ENOSYS


@both
def test_signals_go_to_the_program_alone(machine: str, column: int) -> None:
    for call in (seccomp.KILL, seccomp.TGKILL):
        assert verdict(machine, call[column], OWN_PID, 6, 6) == ALLOW
        for other in (1, 0, 2**32 - 1, OWN_PID + 1):
            assert verdict(machine, call[column], other, 9, 9) == REFUSAL


@both
def test_no_descriptor_has_others_signalled(machine: str, column: int) -> None:
    get, set_flags, set_owner, set_signal, set_any_owner = 3, 4, 8, 10, 15
    assert {verdict(machine, seccomp.FCNTL[column], 5, call) for call in (get, set_flags)} == {ALLOW}
    assert {verdict(machine, seccomp.FCNTL[column], 5, call) for call in (set_owner, set_signal, set_any_owner)} == {REFUSAL}
    assert {verdict(machine, seccomp.IOCTL[column], 5, call) for call in (0x8901, 0x8902)} == {REFUSAL}


@both
def test_pairs_of_sockets_reach_nobody_else(machine: str, column: int) -> None:
    unix, stream, datagram, raw, closes, does_not_wait = 1, 1, 2, 3, 0x80000, 0x800
    assert verdict(machine, seccomp.SOCKETPAIR[column], unix, stream | closes | does_not_wait) == ALLOW
    for kind in (datagram, raw, datagram | closes):
        assert verdict(machine, seccomp.SOCKETPAIR[column], unix, kind) == REFUSAL


@both
def test_limits_of_others_stay(machine: str, column: int) -> None:
    assert verdict(machine, seccomp.PRLIMIT[column], 0, 7) == ALLOW
    assert verdict(machine, seccomp.PRLIMIT[column], OWN_PID, 7) == ALLOW
    assert verdict(machine, seccomp.PRLIMIT[column], OWN_PID + 1, 7) == REFUSAL


@both
def test_death_with_the_launcher_and_terminals_stay_as_they_are(machine: str, column: int) -> None:
    assert verdict(machine, seccomp.PRCTL[column], 1, 0) == REFUSAL
    assert verdict(machine, seccomp.PRCTL[column], 15, 0) == ALLOW
    assert verdict(machine, seccomp.IOCTL[column], 0, 0x5401) == ALLOW
    for request in seccomp.PUSH_INTO_TERMINAL:
        assert verdict(machine, seccomp.IOCTL[column], 0, request) == REFUSAL


@both
def test_modes_and_times_are_refused_where_others_files_are_seen(machine: str, column: int) -> None:
    for numbers in seccomp.OF_MODES_AND_TIMES.values():
        number = numbers[column]
        if number is not None:
            assert verdict(machine, number, modes=True) == ALLOW
            assert verdict(machine, number, modes=False) == REFUSAL


def test_calls_by_another_table_end_the_process() -> None:
    assert verdict(X86_64, 0, table=AARCH64) == KILL_PROCESS
    assert verdict(X86_64, seccomp.X32_BIT) == REFUSAL
