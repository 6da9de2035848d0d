"""Sandbox that runs Python programs written by a model, in a confined child process.

The protections depend on the computer (`protections` lists them):

* always: limits on CPU time, memory, size of a file, open files and processes; a deadline; bounded output; only the given
  input; no environment variables of the user; a separate folder that is removed afterwards.
* namespaces (`confinement.py`): no network, no view of other processes, a file system with only Python's own files.
* Landlock (`confinement.py`): no access to other files, if namespaces are forbidden.
* seccomp (`confinement.py`): no sockets, no other processes, no rare kernel interfaces.
* another user, if we are root: the program runs as a user that owns nothing.

A sandbox names the protections that it requires, and creating it fails if one is missing: a program never runs with fewer. A
failure of the sandbox proves nothing about a program, so the sandbox raises an error and gives no score. Systems other than
Linux have none of these protections, so the sandbox runs nothing there.
"""

from __future__ import annotations

import functools
import json
import os
import random
import secrets
import select
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainer.environments.confinement import Mechanism
from trainer.silence import LONGEST

GRACE_S = 30.0
"""Seconds after the deadline during which the launcher ends everything and reports."""
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from trainer.environments.launcher import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLES = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""All environment variables of a program.  With the fixed hash seed, sets have the same order on every computer."""
FIRST_UNUSED_USER = 0x6000_0000
"""First of 2^24 user numbers that own nothing on any computer; each run picks one at random."""


class Protection(StrEnum):
    """Protection of a part of the computer from a program."""

    NETWORK = "network"
    FILES = "files"
    PROCESSES = "processes"
    SYSTEM_CALLS = "system calls"


GIVES = {
    Mechanism.NAMESPACES: {Protection.NETWORK, Protection.FILES, Protection.PROCESSES},
    Mechanism.LANDLOCK: {Protection.FILES},
    Mechanism.SECCOMP: {Protection.NETWORK, Protection.PROCESSES, Protection.SYSTEM_CALLS},
    Mechanism.OTHER_USER: set(),
}
REQUIRED = frozenset({Protection.NETWORK, Protection.FILES, Protection.PROCESSES})
"""Protections without which a program could reach the home network, read the user's files, or outlive its run."""


@dataclass(frozen=True)
class Protections:
    """Mechanisms available on this computer. missing: the other mechanisms, each with a reason that a person can read."""

    mechanisms: frozenset[Mechanism]
    missing: dict[Mechanism, str]

    @property
    def given(self) -> frozenset[Protection]:
        """Protections that the mechanisms give."""
        return frozenset(protection for mechanism in self.mechanisms for protection in GIVES[mechanism])

    def describe(self) -> list[str]:
        """Return one line for each protection and mechanism."""
        lines = [f"{name}: {'protected' if name in self.given else 'NOT protected'}" for name in Protection]
        return lines + [f"{name}: {self.missing.get(name, 'in use')}" for name in Mechanism]


@dataclass(frozen=True)
class Limits:
    """Limits of one run.

    cpu_s is the limit that normally applies.  wall_s ends programs that wait; it counts by `trainer.silence.SilenceClock`,
    because the computer may be busy with other work.
    """

    cpu_s: int = 5
    wall_s: float = 30.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 8 << 20
    folder_bytes: int = 32 << 20
    output_bytes: int = 1 << 20
    open_files: int = 64
    processes: int = 16


class RunOutcome(StrEnum):
    """Way in which a run ended. FINISHED covers any exit code."""

    FINISHED = "finished"
    KILLED = "killed"
    OUT_OF_TIME = "out of time"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.  exit_code: None unless FINISHED.  output, errors: bytes of the two streams, within the limit."""

    verdict: RunOutcome
    exit_code: int | None
    output: bytes
    errors: bytes

    @property
    def succeeded(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.verdict is RunOutcome.FINISHED and self.exit_code == 0


class SandboxUnavailable(RuntimeError):
    """Error if this computer cannot run programs with the required protections; the text says what is missing.

    step, why: the mechanism that failed, or another step of the confinement, and the reason; empty if none did.
    """

    def __init__(self, text: str, step: str = "", why: str = "") -> None:
        super().__init__(text)
        self.step, self.why = step, why


class Sandbox:
    """Sandbox that runs each program in its own child process.  Threads may share a sandbox."""

    def __init__(
        self,
        limits: Limits = Limits(),
        required: Iterable[Protection] = REQUIRED,
        mechanisms: Iterable[Mechanism] = tuple(Mechanism),
        packages: bool = False,
    ) -> None:
        """Find the mechanisms. Raises SandboxUnavailable if a required protection is missing.

        required: protections without which nothing runs. mechanisms: the only mechanisms to use. packages: True to allow
        installed packages.
        """
        here = protections()
        self._limits = limits
        self._mechanisms = here.mechanisms & set(mechanisms)
        self._packages = _package_folders() if packages else []
        given = Protections(self._mechanisms, {}).given
        lacking = sorted(set(required) - given)
        if lacking:
            reasons = "; ".join(f"{name}: {why}" for name, why in here.missing.items()) or "left out on purpose"
            raise SandboxUnavailable(
                f"this computer does not run programs of a model, because it cannot protect its "
                f"{', '.join(lacking)} ({reasons})"
            )

    def run(self, program: str, given: bytes = b"") -> Outcome:
        """Run the text of a program, with `given` on its standard input.

        Raises SandboxUnavailable if the child process could not be confined or started; nothing ran in that case.
        """
        return _run(program, given, self._limits, self._mechanisms, self._packages)


def protections() -> Protections:
    """Return this computer's protections, found by a trial run. A result with all required protections is cached."""
    found = _tried()
    if not found.given >= REQUIRED:
        _tried.cache_clear()  # there may have been too little memory or too few processes
    return found


@functools.cache
def _tried() -> Protections:
    if sys.platform != "linux":
        return Protections(frozenset(), dict.fromkeys(Mechanism, "needs Linux"))
    wanted = set(Mechanism)
    missing = {}
    if os.geteuid() != 0:
        wanted.discard(Mechanism.OTHER_USER)
        missing[Mechanism.OTHER_USER] = "needs root"
    while True:
        try:
            outcome = _run("print(6 * 7)", b"", Limits(), frozenset(wanted), [])
            if outcome.output == b"42\n":
                return Protections(frozenset(wanted), missing)
            why = outcome.errors[-300:].decode(errors="replace")
        except SandboxUnavailable as error:
            if error.step in wanted:
                wanted.discard(Mechanism(error.step))
                missing[Mechanism(error.step)] = error.why
                continue
            why = error.why
        return Protections(frozenset(), missing | dict.fromkeys(wanted, f"no program ran: {why}"))


def _run(text: str, given: bytes, limits: Limits, mechanisms: frozenset[Mechanism], packages: list[str]) -> Outcome:
    """Run one child process, from the start of the process to the removal of its folder.  Raises SandboxUnavailable.

    The launcher gets its order and the program its input from files in memory, and both write to such files: the kernel
    bounds their sizes, and nothing has to be read while the program runs.
    """
    folder = tempfile.mkdtemp(prefix="manyhands-sandbox-")
    user = FIRST_UNUSED_USER + random.SystemRandom().randrange(1 << 24)
    order = {
        **asdict(limits), "program": text, "mechanisms": sorted(mechanisms), "folder": folder, "user": user,
        "packages": packages, "parent": os.getpid(),
    }  # fmt: skip
    # the interpreter itself, not the link of a virtual environment, which may be in any folder
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    try:
        if Mechanism.OTHER_USER in mechanisms and Mechanism.NAMESPACES not in mechanisms:
            os.chown(folder, user, user)
        with ExitStack() as files:
            contents = (json.dumps(order).encode(), given, b"", b"")
            ordered, stdin, stdout, stderr = (files.enter_context(_file_in_memory(content)) for content in contents)
            status, writing = os.pipe()
            files.callback(os.close, status)
            try:
                process = subprocess.Popen(
                    [python, "-s", "-P", "-S", "-X", "utf8", "-c", BOOT, str(ROOT), str(ordered), str(writing), folder],
                    stdin=stdin, stdout=stdout, stderr=stderr, env=VARIABLES, cwd=folder, pass_fds=(ordered, writing),
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(writing)
            try:
                said = _watch(status, LONGEST * limits.wall_s + GRACE_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            is_too_much = os.fstat(stdout).st_size + os.fstat(stderr).st_size > limits.output_bytes
            output, errors = (os.pread(file, limits.output_bytes, 0) for file in (stdout, stderr))
    finally:
        remove_folder(folder)
    if "failed" in said:
        step, why = said["failed"], said["why"]
        raise SandboxUnavailable(f"the sandbox could not be set up this time ({step}: {why})", step, why)
    if "started" not in said:
        why = errors[-300:].decode(errors="replace")
        raise SandboxUnavailable(f"the sandbox's process did not start: {why}", why=why)
    if is_too_much:
        return Outcome(RunOutcome.TOO_MUCH_OUTPUT, None, output, errors)
    if "late" in said:
        return Outcome(RunOutcome.OUT_OF_TIME, None, output, errors)
    code = said.get("exit")
    return Outcome(RunOutcome.KILLED if code is None else RunOutcome.FINISHED, code, output, errors)


@contextmanager
def _file_in_memory(content: bytes) -> Iterator[int]:
    with os.fdopen(os.memfd_create("manyhands-sandbox"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def _watch(status: int, seconds: float) -> dict[str, Any]:
    """Return all messages of the launcher until it exits, and `{"late": True}` if it takes longer than this many seconds.

    The launcher itself enforces the deadline. The deadline here is for a launcher that was killed or that hangs.
    """
    said, data, last = dict[str, Any](), b"", time.monotonic() + seconds
    poll = select.poll()
    poll.register(status)
    while True:
        if not poll.poll(1000 * max(0.0, last - time.monotonic())):
            said["late"] = True
            break
        if not (read := os.read(status, 4096)):
            break
        data += read
    for line in data.splitlines():
        with suppress(ValueError):  # the launcher was killed in the middle of a line
            said |= json.loads(line)
    return said


def remove_folder(path: str) -> None:
    """Remove a folder to which an untrusted program wrote: of any depth, with any modes and names; follow no links.

    A tree can be deeper than a path or Python's stack allows, so inner folders are moved to the top and removed one by one.
    No process may write to the folder meanwhile.
    """
    os.chmod(path, 0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        while names := os.listdir(top):
            for name in names:
                if not _is_folder(top, name):
                    os.unlink(name, dir_fd=top)
                    continue
                os.chmod(name, 0o700, dir_fd=top)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                try:
                    for entry in os.listdir(inner):
                        if _is_folder(inner, entry):
                            os.chmod(entry, 0o700, dir_fd=inner)
                            os.rename(entry, secrets.token_hex(), src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(entry, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _package_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(paths[name]) for name in ("purelib", "platlib")})
