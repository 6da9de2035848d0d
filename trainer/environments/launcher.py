"""Launcher of one untrusted Python program: one process watches the program, and a second process becomes the program.

    sandbox (the peer's process) -> launcher (watches the deadline, ends everything) -> program (confined, then runs)

The launcher reads its order as JSON from one descriptor, and writes its status to another, one JSON object per line. If a
required protection could not be set up, it writes `{"failed": mechanism, "why": text}`, and nothing runs. It writes
`{"started": true}` just before the program's first statement, and at the end `{"exit": code}`, `{"signal": number}` or
`{"late": true}`. The program has none of these descriptors.
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
from trainer.environments.confinement import Mechanism
from trainer.silence import LOOK_S, SilenceClock, load_average, usable_cores

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
    if Mechanism.NAMESPACES in use:
        try:
            if confinement.leave():
                use.discard(Mechanism.OTHER_USER)  # this namespace has only our own user
        except OSError as error:
            _tell(status_fd, failed=Mechanism.NAMESPACES, why=str(error))
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
    """Wait until the program ends, or until its CPU time or its elapsed time runs out; reap orphans.

    A program with one thread cannot use CPU time faster than elapsed time, so the launcher rarely has to check.
    Elapsed time counts less while the program computes on a busy computer: otherwise an answer would be right on some
    computers only.
    """
    clock = SilenceClock(time.monotonic(), 0.0, usable_cores())
    processor = ~program << 3 | 2  # the clock that clock_getcpuclockid(3) gives for our child, even for a zombie
    while True:
        used_s = time.clock_gettime(processor)
        clock.look(time.monotonic(), used_s, load_average())
        left = min(wall_s - clock.counted_s, cpu_s - used_s)
        if left <= 0 or clock.is_over(wall_s):
            return {"late": True}
        signal.sigtimedwait({signal.SIGCHLD}, max(LOOK_AGAIN_S, min(left, LOOK_S)))
        pid = -1
        while pid not in (0, program):
            pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return {"exit": code} if code >= 0 else {"signal": -code}


def _end_all() -> None:
    """Kill all remaining processes of the program, and reap them.

    In a process namespace, all processes die with the program. Otherwise orphans become our children. A killed process can
    no longer fork, so killing children until none is left terminates.
    """
    own = os.getpid()
    while True:
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if reaped:
            continue
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == own:
                os.kill(int(name), signal.SIGKILL)  # not reaped yet, so the number still belongs to this child
        os.waitpid(-1, 0)


def _become_program(order: dict[str, Any], use: set[str], status_fd: int, started: int) -> None:
    """Confine this process as the order requires, and run the program in it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    step = "limits"
    ours = os.path.realpath(sys.path[0])
    library = [path for path in sys.path[1:] if os.path.realpath(path) != ours]
    readable = [*SYSTEM_FOLDERS, *SYSTEM_FILES, os.path.join(sys.base_prefix, "lib"), *library, *order["packages"]]
    try:
        if Mechanism.NAMESPACES in use:
            step = Mechanism.NAMESPACES
            confinement.enter_root(order["folder"], readable, order["folder_bytes"])
        work = os.getcwd()
        os.environ |= {"HOME": work, "TMPDIR": work}
        step = "limits"
        _limit(
            order,
            order["processes"] + (0 if use & {Mechanism.NAMESPACES, Mechanism.OTHER_USER} else _threads_of(os.getuid())),
        )
        if Mechanism.OTHER_USER in use:
            step = Mechanism.OTHER_USER
            _become(order["user"], work, owns=Mechanism.NAMESPACES in use)
        step = "limits"
        confinement.drop_capabilities()
        confinement.prctl(confinement.PR_SET_PDEATHSIG, signal.SIGKILL)  # cleared by the change of user
        confinement.prctl(confinement.PR_SET_DUMPABLE, 0)
        confinement.prctl(confinement.PR_SET_NO_NEW_PRIVS, 1)
        if Mechanism.LANDLOCK in use:
            step = Mechanism.LANDLOCK
            confinement.restrict(readable, confinement.DEVICES, work)
        if Mechanism.SECCOMP in use:
            step = Mechanism.SECCOMP
            confinement.install(confinement.machine(), threads=os.getuid() != 0, modes=Mechanism.NAMESPACES in use)
    except (OSError, ValueError) as error:
        _tell(status_fd, failed=step, why=str(error))
        os._exit(1)
    _tell(status_fd, started=True)
    os.close(status_fd)
    os.close(started)
    _run(order["program"], order["packages"])


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
