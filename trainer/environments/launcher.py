"""Launcher of one untrusted Python program: one process watches the program, and a second process becomes the program.

    sandbox (the peer's process) -> launcher (watches the deadline, ends everything) -> program (confined, then runs)

The launcher reads its order as JSON from one descriptor, and writes its status to another, one JSON object per line. If a
required protection could not be set up, it writes `{"failed": mechanism, "why": text}`, and nothing runs. It writes
`{"started": true}` just before the program's first statement, and at the end `{"exit": code}`, `{"signal": number}` or
`{"late": true}`. The program has none of these descriptors. SIGTERM to the launcher ends the program early.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import types
from typing import Any

from trainer.environments import confinement
from trainer.silence import LOOK_S, SilenceClock, load_average, usable_cores

NAMESPACES, LANDLOCK, SECCOMP, OTHER_USER = "namespaces", "landlock", "seccomp", "other user"
LOOK_AGAIN_S = 0.01
SYSTEM_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/nix/store")
SYSTEM_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
"""Files of Python and its system libraries; they hold no secrets."""


def main(order_fd: int, status_fd: int) -> None:
    """Launch the program.  In the program's process, returns after the program ends; in the launcher's process, exits."""
    with os.fdopen(order_fd) as order_file:
        order = json.load(order_file)
    confinement.prctl(confinement.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        os._exit(1)  # the sandbox's process died before the prctl call
    confinement.prctl(confinement.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGTERM})
    use = set(order["mechanisms"])
    if NAMESPACES in use:
        try:
            if confinement.leave():
                use.discard(OTHER_USER)  # this namespace has only our own user
        except OSError as error:
            _tell(status_fd, failed=NAMESPACES, why=str(error))
            os._exit(1)
    ready, started = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(ready)
        _become_program(order, use, status_fd, started)
        return
    os.close(started)
    os.read(ready, 1)  # confinement can take long and does not count as the program's time
    os.close(ready)
    os.close(0)
    os.close(1)
    os.close(2)
    status = _watch(program, order["wall_s"], order["cpu_s"])
    _end_all()
    _tell(status_fd, **status)
    os._exit(0)


def _watch(program: int, wall_s: float, cpu_s: float) -> dict[str, Any]:
    """Wait until the program ends, its CPU time or its elapsed time runs out, or SIGTERM arrives; reap orphans.

    A program with one thread cannot use CPU time faster than elapsed time, so the launcher rarely has to check.
    Elapsed time counts less while the program computes on a busy computer: otherwise an answer would be right on some
    computers only.
    """
    clock = SilenceClock(time.monotonic(), 0.0, usable_cores())
    while True:
        used_s = _processor_time(program)
        clock.look(time.monotonic(), used_s, load_average())
        left = min(wall_s - clock.counted_s, cpu_s - used_s)
        if left <= 0 or clock.is_over(wall_s):
            return {"late": True}
        arrived = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, max(LOOK_AGAIN_S, min(left, LOOK_S)))
        if arrived is not None and arrived.si_signo == signal.SIGTERM:
            return {"signal": int(signal.SIGKILL)}
        status = _reaped(program)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return {"exit": code} if code >= 0 else {"signal": -code}


def _reaped(program: int) -> int | None:
    """Reap all dead children; return the program's status if it was one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, program):
            return status if pid else None


def _processor_time(process: int) -> float:
    """Return the CPU seconds of our child, even of a zombie, from the clock that clock_getcpuclockid(3) gives."""
    return time.clock_gettime(~process << 3 | 2)


def _end_all() -> None:
    """Kill all remaining processes of the program, and reap them.

    In a process namespace, all processes die with the program. Otherwise orphans become our children. A killed process can
    no longer fork, so killing children until none is left terminates.
    """
    while True:
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not reaped:
            for child in _children():
                os.kill(child, signal.SIGKILL)  # not reaped yet, so the number still belongs to this child
            os.waitpid(-1, 0)


def _children() -> set[int]:
    """Return the process ids of our children, including inherited orphans."""
    own = os.getpid()
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == own:
                found.add(int(name))
    return found


def _become_program(order: dict[str, Any], use: set[str], status_fd: int, started: int) -> None:
    """Confine this process as the order requires, and run the program in it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    step = "limits"
    try:
        readable = _readable(order["packages"])
        if NAMESPACES in use:
            step = NAMESPACES
            confinement.enter_root(order["folder"], readable, order["folder_bytes"])
        work = os.getcwd()
        os.environ |= {"HOME": work, "TMPDIR": work}
        step = "limits"
        _limit(order, order["processes"] + (0 if use & {NAMESPACES, OTHER_USER} else _threads_of(os.getuid())))
        if OTHER_USER in use:
            step = OTHER_USER
            _become(order["user"], work, owns=NAMESPACES in use)
        step = "limits"
        confinement.drop_capabilities()
        confinement.prctl(confinement.PR_SET_PDEATHSIG, signal.SIGKILL)  # cleared by the change of user
        confinement.prctl(confinement.PR_SET_DUMPABLE, 0)
        confinement.prctl(confinement.PR_SET_NO_NEW_PRIVS, 1)
        if LANDLOCK in use:
            step = LANDLOCK
            confinement.restrict(readable, confinement.DEVICES, work)
        if SECCOMP in use:
            step = SECCOMP
            confinement.install(confinement.machine(), threads=os.getuid() != 0, modes=NAMESPACES in use)
    except (OSError, ValueError) as error:
        _tell(status_fd, failed=step, why=str(error))
        os._exit(1)
    _tell(status_fd, started=True)
    os.close(status_fd)
    os.close(started)
    _run(order["program"], order["packages"])


def _readable(packages: list[str]) -> list[str]:
    """Return the folders and files that a Python program needs."""
    ours = os.path.realpath(sys.path[0])
    library = [path for path in sys.path[1:] if os.path.realpath(path) != ours]
    prefix = os.path.join(sys.base_prefix, "lib")
    return [*SYSTEM_FOLDERS, *SYSTEM_FILES, prefix, *library, *packages]


def _limit(order: dict[str, Any], processes: int) -> None:
    """Set the limits that every kernel enforces. processes: limit for this user, threads included.

    The launcher watches CPU time, because the kernel counts it only in whole ticks. The kernel's higher limit is for
    processes that the launcher does not see.
    """
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: 4 * order["cpu_s"] + 4,
        resource.RLIMIT_AS: order["memory_bytes"],
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_NOFILE: order["open_files"],
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    os.umask(0o077)


def _threads_of(user: int) -> int:
    """Return the number of a user's threads on this computer."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count


def _become(user: int, work: str, owns: bool) -> None:
    """Become a user that owns only the working folder. Raises OSError, also if that user cannot read Python's files."""
    if owns:
        os.chown(work, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.close(os.open(os.__file__, os.O_RDONLY | os.O_CLOEXEC))
    os.listdir(work)


def _run(text: str, packages: list[str]) -> None:
    """Run the program as `__main__`.  An exception in the program ends this process, as usual."""
    del sys.path[0]
    sys.path += packages
    sys.argv = ["program.py"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer"]:
        del sys.modules[name]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(text, "program.py", "exec"), module.__dict__)


def _tell(status_fd: int, **said: Any) -> None:
    os.write(status_fd, json.dumps(said).encode() + b"\n")
