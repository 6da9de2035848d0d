"""No program does harm, whatever it tries, under every mechanism that the kernel has; and a harmless one runs."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiers import first_fast
from tests.trainer.environments import attacks
from tests.trainer.environments.test_seccomp import numbers_named
from trainer.environments import confinement
from trainer.environments import sandbox as sandboxes
from trainer.environments.confinement import Mechanism
from trainer.environments.sandbox import (
    REQUIRED,
    Limits,
    Outcome,
    Protection,
    Protections,
    RunOutcome,
    Sandbox,
    SandboxUnavailable,
    protections,
)

QUICK = Limits(cpu_s=1, wall_s=4.0, memory_bytes=256 << 20, output_bytes=64 << 10)
WITHOUT = {
    "everything": set(),
    "no namespaces": {Mechanism.NAMESPACES, Mechanism.OTHER_USER},
    "no seccomp": {Mechanism.SECCOMP},
    "namespaces alone": {Mechanism.SECCOMP, Mechanism.LANDLOCK},
}
"""Mechanisms left out."""
HERE = protections().mechanisms
KINDS = [kind for kind, without in WITHOUT.items() if Protections(HERE - without, {}).given >= REQUIRED]
"""Those that this computer can protect itself with; on a kernel with everything, all."""
every_kind = pytest.mark.parametrize("kind", KINDS)
every_kind_slowly = pytest.mark.parametrize("kind", first_fast(KINDS))
"""For programs that use up their time or all the memory; the fast tier runs them under one kind."""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sandboxes have their folders meanwhile.  Nothing of them is left there afterwards, and no process of theirs.

    Depends on `tmp_path`, which would otherwise be made in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-", dir="/tmp"))
    folder.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    assert processes_with(str(folder)) == []
    folder.rmdir()


def processes_with(text: str) -> list[str]:
    """Command lines of living processes in which `text` stands; all children of a sandbox name their folder there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


def sandbox(kind: str, limits: Limits = QUICK) -> Sandbox:
    return Sandbox(limits, mechanisms=set(Mechanism) - WITHOUT[kind])


def run(kind: str, program: str, limits: Limits = QUICK) -> Outcome:
    return sandbox(kind, limits).run(program)


@every_kind
def test_harmless_program_runs_to_its_end(kind: str, room: Path) -> None:
    program = "import json, sys, threading\nt = threading.Thread(target=print, args=(sys.stdin.read(),))\n"
    threads = "t.start()\nt.join()\n" if os.geteuid() or kind == "everything" else "t.run()\n"
    outcome = sandbox(kind).run(program + threads + "open('own', 'w').write('x')", b"given")
    assert outcome == Outcome(RunOutcome.FINISHED, 0, b"given\n", b"")


LATE, KILLED, LOUD = RunOutcome.OUT_OF_TIME, RunOutcome.KILLED, RunOutcome.TOO_MUCH_OUTPUT
BIG_FILE = "with open('big', 'wb') as file:\n    for _ in range(64): file.write(bytes(1 << 20))"
HOSTILE: dict[str, tuple[str, RunOutcome | None]] = {
    "too much output": (attacks.SHOUT, LOUD),
    "too many errors": (attacks.COMPLAIN, LOUD),
    "a large file": (BIG_FILE, None),
    "another program": (attacks.EXECUTE, None),
    "a crash": (attacks.CRASH, KILLED),
    "a deep source": (attacks.DEEP_SOURCE, None),
}
"""Programs that fail, and how they end; None where that depends on the protections and on the load."""
PATIENT = replace(QUICK, cpu_s=60, wall_s=120.0)
"""Limits of a program that must meet another limit than that of time, also on a busy computer."""
HUNGRY: dict[str, tuple[str, RunOutcome | None, bytes, Limits]] = {
    "an endless loop": (attacks.LOOP, LATE, b"", QUICK),
    "processes": (attacks.FORK_BOMB, None, b"", QUICK),
    "threads": (attacks.THREAD_BOMB, None, b"", QUICK),
    "memory at once": (attacks.ALLOCATE, None, b"MemoryError", PATIENT),
    "memory slowly": (attacks.ALLOCATE_SLOWLY, None, b"MemoryError", PATIENT),
}
"""The same for programs that use up their time or all the memory, with a part of their errors and their limits."""


def check(kind: str, program: str, verdict: RunOutcome | None, errors: bytes = b"", limits: Limits = QUICK) -> None:
    outcome = run(kind, program, limits)
    assert verdict in (None, outcome.verdict) and not outcome.succeeded and errors in outcome.errors
    assert b"mine" not in outcome.output and len(outcome.output) + len(outcome.errors) <= 2 * QUICK.output_bytes


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_program_fails(kind: str, what: str, room: Path) -> None:
    check(kind, *HOSTILE[what])


@pytest.mark.slow
@every_kind_slowly
@pytest.mark.parametrize("what", HUNGRY)
def test_a_hungry_program_ends_and_leaves_nothing(kind: str, what: str, room: Path) -> None:
    check(kind, *HUNGRY[what])


@pytest.mark.slow
@every_kind_slowly
@pytest.mark.parametrize("program", [attacks.SLEEP, attacks.SILENT], ids=["sleeping", "without descriptors"])
def test_a_program_that_waits_for_nothing_meets_the_deadline(kind: str, program: str, room: Path) -> None:
    check(kind, program, LATE, limits=Limits(cpu_s=1, wall_s=0.5))


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("program", [attacks.STOP_ITSELF, attacks.IGNORE_SIGNALS], ids=["stopped", "ignoring"])
def test_signals_change_nothing_about_time(kind: str, program: str, room: Path) -> None:
    check(kind, program, LATE)


@every_kind
def test_orphans_do_not_outlive_the_run(kind: str, room: Path) -> None:
    run(kind, attacks.OUTLIVE)


def test_disk_is_bounded(room: Path) -> None:
    check("everything", attacks.FILL_DISK, None, b"OSError")


SERVICES = {
    "this computer": (socket.AF_INET, socket.SOCK_STREAM, attacks.CONNECT),
    "a local service": (socket.AF_UNIX, socket.SOCK_STREAM, attacks.CONNECT_LOCAL),
    "a local service by a datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, attacks.SEND_LOCAL),
}


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("what", SERVICES)
def test_nothing_reaches_a_service(kind: str, what: str, room: Path, tmp_path: Path) -> None:
    family, sort, attack = SERVICES[what]
    path = str(tmp_path / "service")
    with socket.socket(family, sort) as server:
        server.bind(("127.0.0.1", 0) if family is socket.AF_INET else path)
        if sort is socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        port = server.getsockname()[1] if family is socket.AF_INET else 0
        assert not run(kind, attack.format(host="127.0.0.1", port=port, path=path)).succeeded
        with pytest.raises(BlockingIOError):
            server.accept() if sort is socket.SOCK_STREAM else server.recv(100)


OUTSIDE = {
    "write": (attacks.WRITE_OUTSIDE, 0o666), "truncate": (attacks.TRUNCATE_OUTSIDE, 0o666),
    "remove": (attacks.REMOVE_OUTSIDE, 0o666), "change mode": (attacks.CHANGE_MODE_OUTSIDE, 0o666),
    "link": (attacks.LINK_OUTSIDE, 0o666), "read": (attacks.READ_OUTSIDE, 0o666),
    "change attributes": (attacks.CHANGE_ATTRIBUTES_OUTSIDE, 0o600),
}  # fmt: skip
"""Attacks on a file with a mode.  An access list would open a private file, by a call that is younger than most kernels."""


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("what", OUTSIDE)
def test_files_outside_are_out_of_reach(kind: str, what: str, room: Path, tmp_path: Path) -> None:
    (attack, mode), secret = OUTSIDE[what], tmp_path / "secret"
    secret.write_text("nobody's business")
    secret.chmod(mode)
    tmp_path.chmod(0o777)
    outcome = run(kind, attack.format(path=str(secret)))
    assert not outcome.succeeded and b"nobody" not in outcome.output
    assert secret.read_text() == "nobody's business" and secret.stat().st_mode & 0o777 == mode


PAST_EVERY_FILTER = {confinement.X86_64: [335, 336]}
"""uretprobe and uprobe, which Linux (6.14) shows to no filter.  Outside a probe they end the process."""
with_seccomp = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if Mechanism.SECCOMP in HERE and Mechanism.SECCOMP not in WITHOUT[kind]]
)


@with_seccomp
def test_calls_that_are_not_listed_fail_on_the_running_kernel(kind: str, room: Path) -> None:
    """Whatever this kernel has, also what it got after the list was written."""
    known = numbers_named((confinement.X86_64, confinement.AARCH64).index(confinement.machine()))
    known += PAST_EVERY_FILTER.get(confinement.machine(), [])
    outcome = run(kind, attacks.CALL_ALL_BUT.format(most=601, known=known))
    assert outcome == Outcome(RunOutcome.FINISHED, 0, b"{}\n", b"")


@with_seccomp
def test_a_lock_on_a_library_is_not_taken(kind: str, room: Path) -> None:
    """The kernel would refuse it: the file is open for reading alone, and we have a lock on it."""
    with open(json.__file__, "rb") as library:
        fcntl.flock(library, fcntl.LOCK_EX)
        assert run(kind, attacks.LOCK_LIBRARY).output == b"granted, refused"


@every_kind
def test_databases_in_the_own_folder_work(kind: str, room: Path) -> None:
    """SQLite locks its files."""
    program = (
        "import sqlite3\nd = sqlite3.connect('d')\nd.execute('create table t(a)')\nd.execute('insert into t values (7)')\n"
    )
    outcome = run(kind, program + "d.commit()\nprint(sqlite3.connect('d').execute('select a from t').fetchall())")
    assert outcome == Outcome(RunOutcome.FINISHED, 0, b"[(7,)]\n", b"")


@every_kind
def test_nothing_is_written_to_folders_of_everybody(kind: str, room: Path) -> None:
    path = f"/tmp/{room.name}-written"
    run(kind, attacks.WRITE_OUTSIDE.format(path=path))
    assert not os.path.exists(path)


@every_kind
def test_variables_of_other_processes_are_out_of_reach(kind: str, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_TEST", "hidden")
    outcome = run(kind, attacks.READ_PARENTS_VARIABLES + "import os\nprint(os.environ)")
    assert b"SECRET_OF_THIS_TEST" not in outcome.output
    assert outcome.output.count(b"PYTHONHASHSEED") <= 3


@every_kind
def test_nobody_is_killed(kind: str, room: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        run(kind, attacks.KILL_PARENT.format(pid=bystander.pid))
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


@every_kind_slowly
def test_folder_is_removed_however_hard(kind: str, room: Path) -> None:
    program = attacks.HARD_TO_REMOVE
    if kind != "no namespaces" and Mechanism.NAMESPACES in HERE:
        program = program.replace("os.chdir('deep')", "os.chmod('locked', 0)\nos.chdir('deep')")
    assert run(kind, program).output == b"done\n"


def test_order_of_sets_is_the_same_in_every_run(room: Path) -> None:
    program = "print({str(n) for n in range(50)}, hash('text'))"
    assert len({run("everything", program).output for _ in range(2)}) == 1


def test_sandbox_without_a_required_protection_does_not_exist() -> None:
    with pytest.raises(SandboxUnavailable, match="cannot protect its files, network, processes"):
        Sandbox(mechanisms=())
    with pytest.raises(SandboxUnavailable, match="system calls"):
        Sandbox(required=[Protection.SYSTEM_CALLS], mechanisms=[Mechanism.NAMESPACES])


@pytest.mark.slow
def test_bare_limits_hold_what_they_can(room: Path) -> None:
    bare = Sandbox(QUICK, required=(), mechanisms=())
    assert bare.run("print('well')").succeeded
    assert bare.run(attacks.LOOP).verdict is RunOutcome.OUT_OF_TIME
    assert b"MemoryError" in bare.run(attacks.ALLOCATE).errors
    assert bare.run(attacks.SHOUT).verdict is RunOutcome.TOO_MUCH_OUTPUT
    bare.run(attacks.OUTLIVE)


def test_mechanism_that_fails_at_run_time_runs_nothing(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sandbox(QUICK)
    monkeypatch.setattr(sandboxes, "BOOT", sandboxes.BOOT.replace("; main(", "; import sys; sys.exit('broken'); main("))
    with pytest.raises(SandboxUnavailable, match="broken"):
        made.run("print(1)")


OWNER = """
import os, signal, sys
from trainer.environments import sandbox
from trainer.environments.sandbox import Sandbox, protections
protections()
def watch(status, seconds):
    said = b''
    while b'started' not in said:
        said += os.read(status, 4096)
    print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)
    signal.pause()
sandbox._watch = watch
Sandbox().run('import time; time.sleep(10_000)')
"""


def test_program_dies_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path)}  # an empty folder stays behind
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=variables) as owner:
        assert owner.stdout
        launcher = int(owner.stdout.readline())
        program = int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0])
        watched = [os.pidfd_open(pid) for pid in (launcher, program)]
        owner.send_signal(signal.SIGKILL)
    for descriptor in watched:
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)


def test_a_computer_that_lacked_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one moment of it kept a peer from the tasks of its run for good."""
    sandboxes._tried.cache_clear()
    with monkeypatch.context() as poor:
        poor.setattr(sandboxes, "_run", lambda *order: SimpleNamespace(failed=None, output=b"", errors=b"no memory"))
        assert not protections().given
    assert protections().mechanisms == HERE
