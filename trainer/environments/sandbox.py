"""Runs Python programs that a model wrote, in a child process that can do no harm.

What keeps a program from what depends on the computer (`protections` says what there is here):

* always: limits of CPU time, memory, size of a file, open files and processes; a deadline; bounded
  output; no input but what is given; an environment without anybody's variables; a folder of its own that is removed.
* namespaces (`confinement/namespaces.py`): no network, no sight of other processes, a file system with nothing in it but
  Python's own files.
* Landlock (`confinement/landlock.py`): the same for files, where namespaces are forbidden.
* seccomp (`confinement/seccomp.py`): no sockets, no other processes, no rare kernel interfaces.
* another user, when we are root: a user that owns nothing.

A sandbox names the protections that it requires, and refuses to exist where one is missing: a program is never run with
less.  What a sandbox cannot do on its computer is no verdict about a program, so it raises and scores nothing.  Other
systems than Linux have none of this, and run nothing.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from trainer.environments.child import Child, Ended, order_file
from trainer.environments.folder import remove_folder

BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from trainer.environments.confinement.launcher import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLES = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""All variables of a program.  With a fixed hash seed, sets and dictionaries have the same order for everybody."""
FIRST_UNUSED_USER = 0x6000_0000
"""Users from here on own nothing on any computer; each run is another one of the next 2^24."""


class Protection(StrEnum):
    """What a program is kept from."""

    NETWORK = "network"
    FILES = "files"
    PROCESSES = "processes"
    SYSTEM_CALLS = "system calls"


class Mechanism(StrEnum):
    """What the kernel keeps it with.  The names are those that the launcher uses."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    OTHER_USER = "other user"


GIVES = {
    Mechanism.NAMESPACES: {Protection.NETWORK, Protection.FILES, Protection.PROCESSES},
    Mechanism.LANDLOCK: {Protection.FILES},
    Mechanism.SECCOMP: {Protection.NETWORK, Protection.PROCESSES, Protection.SYSTEM_CALLS},
    Mechanism.OTHER_USER: set(),
}
REQUIRED = frozenset({Protection.NETWORK, Protection.FILES, Protection.PROCESSES})
"""Without these a program could reach the home network, read what the user can read, or outlive its run."""


@dataclass(frozen=True)
class Protections:
    """What this computer has.  missing: why a mechanism is not to be had, for a person."""

    mechanisms: frozenset[Mechanism]
    missing: dict[Mechanism, str]

    @property
    def given(self) -> frozenset[Protection]:
        """What programs are kept from."""
        return frozenset(protection for mechanism in self.mechanisms for protection in GIVES[mechanism])

    def describe(self) -> list[str]:
        """One line for each protection and mechanism."""
        lines = [f"{name}: {'protected' if name in self.given else 'NOT protected'}" for name in Protection]
        return lines + [f"{name}: {self.missing.get(name, 'in use')}" for name in Mechanism]


@dataclass(frozen=True)
class Limits:
    """What one run may use.  wall_s is for a computer that is busy with other things; cpu_s is what counts."""

    cpu_s: int = 5
    wall_s: float = 30.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 8 << 20
    folder_bytes: int = 32 << 20
    output_bytes: int = 1 << 20
    open_files: int = 64
    processes: int = 16


class Verdict(StrEnum):
    """How a run ended.  FINISHED says nothing about the exit code."""

    FINISHED = "finished"
    KILLED = "killed"
    OUT_OF_TIME = "out of time"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True)
class Outcome:
    """One run.  exit_code: None unless FINISHED.  output, errors: what came on the two streams, within the limit."""

    verdict: Verdict
    exit_code: int | None
    output: bytes
    errors: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the program ended by itself and said that all is well."""
        return self.verdict is Verdict.FINISHED and self.exit_code == 0


class SandboxUnavailable(RuntimeError):
    """No program can be run here as required; the text says what is missing, and what helps."""


class Sandbox:
    """Runs programs one at a time, each in a child process of its own.  Threads may share a sandbox."""

    def __init__(
        self,
        limits: Limits = Limits(),
        required: Iterable[Protection] = REQUIRED,
        mechanisms: Iterable[Mechanism] = tuple(Mechanism),
        packages: bool = False,
    ) -> None:
        """required: run nothing without these.  mechanisms: use no others.  packages: may programs import installed ones?

        Raises SandboxUnavailable.
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
                f"no program of a model is run on this computer, which cannot protect its {', '.join(lacking)} ({reasons})"
            )

    def run(self, program: str, given: bytes = b"") -> Outcome:
        """Runs the text of a program, with `given` on its standard input.

        Raises SandboxUnavailable when the child process could not be confined or started, so that nothing ran.
        """
        child = _run(program, given, self._limits, self._mechanisms, self._packages)
        if child.failed is not None:
            raise SandboxUnavailable(f"the sandbox could not be set up this time ({child.failed[0]}: {child.failed[1]})")
        if not child.started:
            raise SandboxUnavailable(f"the sandbox's process did not start: {child.errors[-300:].decode(errors='replace')}")
        return _outcome(child)


def protections() -> Protections:
    """What this computer can protect from a program; found out by trying, in each process until it is enough."""
    found = _tried()
    if not found.given >= REQUIRED:
        _tried.cache_clear()  # it may be for want of memory or processes, and there may be some later
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
        child = _run("print(6 * 7)", b"", Limits(), frozenset(wanted), [])
        if child.failed is None or child.failed[0] not in wanted:
            break
        wanted.discard(Mechanism(child.failed[0]))
        missing[Mechanism(child.failed[0])] = child.failed[1]
    if child.output != b"42\n":
        why = child.failed[1] if child.failed else child.errors[-300:].decode(errors="replace")
        return Protections(frozenset(), missing | dict.fromkeys(wanted, f"no program ran: {why}"))
    return Protections(frozenset(wanted), missing)


def _run(text: str, given: bytes, limits: Limits, mechanisms: frozenset[Mechanism], packages: list[str]) -> Ended:
    """One child process from its start to its last trace."""
    folder = tempfile.mkdtemp(prefix="manyhands-sandbox-")
    user = FIRST_UNUSED_USER + random.SystemRandom().randrange(1 << 24)
    order = {
        **asdict(limits), "program": text, "mechanisms": sorted(mechanisms), "folder": folder, "user": user,
        "packages": packages, "parent": os.getpid(),
    }  # fmt: skip
    try:
        if Mechanism.OTHER_USER in mechanisms and Mechanism.NAMESPACES not in mechanisms:
            os.chown(folder, user, user)
        with order_file(order) as ordered, tempfile.TemporaryFile() as stdin:
            stdin.write(given)
            stdin.seek(0)
            reading, writing = os.pipe()
            try:
                process = subprocess.Popen(
                    [_python(), "-s", "-P", "-S", "-X", "utf8", "-c", BOOT, str(ROOT), str(ordered), str(writing), folder],
                    stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=VARIABLES, cwd=folder,
                    pass_fds=(ordered, writing), start_new_session=True,
                )  # fmt: skip
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
        with Child(process, reading) as child:
            return child.watch(limits.wall_s, limits.output_bytes)
    finally:
        remove_folder(folder)


def _outcome(child: Ended) -> Outcome:
    if child.overflowed:
        verdict = Verdict.TOO_MUCH_OUTPUT
    elif child.late:
        verdict = Verdict.OUT_OF_TIME
    elif child.exit_code is None:
        verdict = Verdict.KILLED
    else:
        verdict = Verdict.FINISHED
    return Outcome(verdict, child.exit_code if verdict is Verdict.FINISHED else None, child.output, child.errors)


def _python() -> str:
    """The interpreter itself, not a virtual environment's link to it, whose folder may be anywhere."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _package_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(paths[name]) for name in ("purelib", "platlib")})
