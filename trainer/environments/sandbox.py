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
import selectors
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.silence import LONGEST

# ------------------------------------------------------------------------------------------------------------------------
# Parent side of a child process: sends the order, reads output and status, and ends the process at its deadline.
#
# The launcher itself enforces the deadline. The second deadline here is for a launcher that was killed or that hangs.


GRACE_S = 30.0
"""Seconds after the deadline during which the launcher ends everything and reports."""
MAX_STATUS_BYTES = 4096
READ_BYTES = 1 << 16


@dataclass
class ChildExit:
    """End of a child process.

    failed: the step of confinement that failed, and the reason. late: True if the time ran out.
    """

    failed: tuple[str, str] | None = None
    started: bool = False
    exit_code: int | None = None
    late: bool = False
    overflowed: bool = False
    output: bytes = b""
    errors: bytes = b""


@contextmanager
def order_file(order: Mapping[str, Any]) -> Iterator[int]:
    """Yield the descriptor of an unnamed file from which the launcher reads its order."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(order).encode())
        file.seek(0)
        yield file.fileno()


@dataclass
class Child:
    """Launcher process with our ends of its streams. Leaving the context kills the launcher, also after an exception."""

    process: subprocess.Popen[bytes]
    status: int
    _read: dict[str, bytearray] = field(
        default_factory=lambda: {"output": bytearray(), "errors": bytearray(), "status": bytearray()}
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        os.close(self.status)

    def watch(self, wall_s: float, output_bytes: int) -> ChildExit:
        """Read the streams until the launcher exits, and return its `ChildExit`."""
        assert self.process.stdout and self.process.stderr
        last = time.monotonic() + LONGEST * wall_s + GRACE_S
        ended = ChildExit()
        with selectors.DefaultSelector() as selector:
            streams = {"output": self.process.stdout.fileno(), "errors": self.process.stderr.fileno(), "status": self.status}
            for name, descriptor in streams.items():
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, name)
            while "status" in (key.data for key in selector.get_map().values()):
                ready = selector.select(max(0.0, last - time.monotonic()))
                if not ready:
                    ended.late = True
                    break
                for key, _ in ready:
                    if self._take(key.data, key.fd, output_bytes) == 0:
                        selector.unregister(key.fd)
                ended.overflowed = ended.overflowed or self._overflowed(output_bytes)
                if ended.overflowed:
                    self.process.terminate()
            for name in ("output", "errors"):
                while not ended.overflowed and self._take(name, streams[name], output_bytes):
                    ended.overflowed = self._overflowed(output_bytes)
        return self._told(ended, output_bytes)

    def _take(self, name: str, descriptor: int, output_bytes: int) -> int | None:
        """Read available bytes and keep them up to the limit; return their number, 0 at the end, None if there are none."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        most = MAX_STATUS_BYTES if name == "status" else output_bytes + 1
        self._read[name] += data[: most - len(self._read[name])]
        return len(data)

    def _overflowed(self, output_bytes: int) -> bool:
        return len(self._read["output"]) + len(self._read["errors"]) > output_bytes

    def _told(self, ended: ChildExit, output_bytes: int) -> ChildExit:
        """Complete `ended` with the launcher's status and the program's output."""
        for line in bytes(self._read["status"]).splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue  # the launcher was killed in the middle of a line
            if "failed" in said:
                ended.failed = (said["failed"], said["why"])
            ended.started = ended.started or "started" in said
            ended.late = ended.late or bool(said.get("late"))
            ended.exit_code = said.get("exit", ended.exit_code)
        ended.output, ended.errors = (bytes(self._read[name][:output_bytes]) for name in ("output", "errors"))
        return ended


# ------------------------------------------------------------------------------------------------------------------------
# Removal of a folder to which an untrusted program wrote.


def remove_folder(path: str) -> None:
    """Remove a folder of any depth, with any modes and file names, without following links.

    A tree can be deeper than a path or Python's stack allows, so inner folders are moved to the top and removed one by one.
    No process may write to the folder meanwhile.
    """
    os.chmod(path, 0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        moved = 0
        while names := os.listdir(top):
            for name in names:
                moved = _remove_entry(top, name, moved)
    finally:
        os.close(top)
    os.rmdir(path)


def _remove_entry(top: int, name: str, moved: int) -> int:
    """Remove a file, or a folder after moving its inner folders to the top; return the number for the next moved folder."""
    if not _is_folder(top, name):
        os.unlink(name, dir_fd=top)
        return moved
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            if not _is_folder(inner, entry):
                os.unlink(entry, dir_fd=inner)
                continue
            os.chmod(entry, 0o700, dir_fd=inner)
            while _exists(top, f"{moved}"):
                moved += 1
            os.rename(entry, f"{moved}", src_dir_fd=inner, dst_dir_fd=top)
            moved += 1
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------------------


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


class Mechanism(StrEnum):
    """Kernel mechanism that gives protections; each value is the launcher's name for the mechanism."""

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
    """Error if this computer cannot run programs with the required protections; the text says what is missing."""


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
                f"no program of a model is run on this computer, which cannot protect its {', '.join(lacking)} ({reasons})"
            )

    def run(self, program: str, given: bytes = b"") -> Outcome:
        """Run the text of a program, with `given` on its standard input.

        Raises SandboxUnavailable if the child process could not be confined or started; nothing ran in that case.
        """
        child = _run(program, given, self._limits, self._mechanisms, self._packages)
        if child.failed is not None:
            raise SandboxUnavailable(f"the sandbox could not be set up this time ({child.failed[0]}: {child.failed[1]})")
        if not child.started:
            raise SandboxUnavailable(f"the sandbox's process did not start: {child.errors[-300:].decode(errors='replace')}")
        return _outcome(child)


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
        child = _run("print(6 * 7)", b"", Limits(), frozenset(wanted), [])
        if child.failed is None or child.failed[0] not in wanted:
            break
        wanted.discard(Mechanism(child.failed[0]))
        missing[Mechanism(child.failed[0])] = child.failed[1]
    if child.output != b"42\n":
        why = child.failed[1] if child.failed else child.errors[-300:].decode(errors="replace")
        return Protections(frozenset(), missing | dict.fromkeys(wanted, f"no program ran: {why}"))
    return Protections(frozenset(wanted), missing)


def _run(text: str, given: bytes, limits: Limits, mechanisms: frozenset[Mechanism], packages: list[str]) -> ChildExit:
    """Run one child process, from the start of the process to the removal of its folder."""
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


def _outcome(child: ChildExit) -> Outcome:
    if child.overflowed:
        verdict = RunOutcome.TOO_MUCH_OUTPUT
    elif child.late:
        verdict = RunOutcome.OUT_OF_TIME
    elif child.exit_code is None:
        verdict = RunOutcome.KILLED
    else:
        verdict = RunOutcome.FINISHED
    return Outcome(verdict, child.exit_code if verdict is RunOutcome.FINISHED else None, child.output, child.errors)


def _python() -> str:
    """Return the path of the interpreter itself, not of a virtual environment's link, which may be in any folder."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _package_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(paths[name]) for name in ("purelib", "platlib")})
