"""Checks of this computer alone.  Blocking; each takes a moment, the speeds two seconds."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from peer.bench.disk import measure_disk
from peer.doctor.check import Check, CheckResult, at_least, ok
from peer.errors import PeerError
from peer.formatting import size
from peer.resources.computer import available_memory, usable_cores
from peer.resources.memory import free_gpu_memory, memory_need
from peer.resources.room import STATES_ON_DISK
from protocol.membership.handshake import TOLERANCE_S
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role
from trainer.environments.packages import PackageMissing
from trainer.environments.registry import check_packages
from trainer.environments.sandbox import SandboxUnavailable
from trainer.generate.choice import GeneratorName, choose_generator

LEAST_PYTHON = (3, 11)
LEAST_DISK_RATE = 20e6
"""Bytes a second; on a slower disk, a round waits until its state is written."""
LEAST_COPY_RATE = 1e9
COPIED_BYTES = 64 << 20
EARLIEST = 1_767_225_600.0
"""2026 in unix seconds, before this software was made."""
TIMEX_BYTES = 512
"""Bytes for the C library's `struct timex`, more than on any system."""
NOT_SYNCHRONISED = 5


def python() -> Check:
    """Check the interpreter's version."""
    found = platform.python_version()
    limit = ".".join(map(str, LEAST_PYTHON))
    if sys.version_info >= LEAST_PYTHON:
        return ok("python", f"{found}, {platform.system()} {platform.machine()}", f"at least {limit}")
    return Check("python", CheckResult.FAIL, found, f"at least {limit}", f"install manyhands with Python {limit} or later")


def torch() -> Check:
    """Check that the package that trains is installed; it is not loaded here."""
    try:
        return ok("torch", version_of("torch"))
    except PackageNotFoundError:
        return Check("torch", CheckResult.FAIL, "not installed", "", "install manyhands again, in an environment of its own")


def gpu(free: int | None = None) -> list[Check]:
    """Check the NVIDIA GPU, its driver, and triton, which fast kernels need."""
    free = free_gpu_memory() if free is None else free
    if free is None:
        remedy = (
            "nothing to do without an NVIDIA GPU; with one, install a CUDA build of torch and see that `nvidia-smi` works"
        )
        return [Check("gpu", CheckResult.WARN, "none that torch could use; the trainer computes on the CPU", "", remedy)]
    name, driver = _gpu_name()
    checks = [ok("gpu", f"{name}, driver {driver}, {size(free)} free")]
    try:
        checks.append(ok("triton", version_of("triton")))
    except PackageNotFoundError:
        checks.append(Check("triton", CheckResult.WARN, "not installed", "", "pip install triton, for faster kernels"))
    return checks


def _gpu_name() -> tuple[str, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            return _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return "unnamed", f"unknown ({error})"


def _text(told: str | bytes) -> str:
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else told


SET_CLOCK = "set this computer's clock; invitations end by it"


def clock(now: float | None = None) -> Check:
    """Check the clock: invitations expire by it; nothing in a round depends on it."""
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < EARLIEST:
        return Check("clock", CheckResult.FAIL, shown, "not before this software was made", SET_CLOCK)
    if not _is_synchronised():
        return Check("clock", CheckResult.WARN, f"{shown}, not synchronised", "kept by NTP", "switch network time on")
    return ok("clock", shown, "kept by NTP")


def skewed(skew: str) -> Check:
    """Return the check of a clock that differs from other peers' clocks, as `skew` says."""
    return Check("clock", CheckResult.WARN, skew, f"within {TOLERANCE_S:.0f} s of them", SET_CLOCK)


def _is_synchronised() -> bool:
    """Ask the kernel whether the clock is synchronised; True if it cannot be asked."""
    try:
        found = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return True
    return bool(found != NOT_SYNCHRONISED)


def disk(folder: Path, manifest: RunManifest) -> list[Check]:
    """Check the room for the run, and the speed of writing."""
    remedy = "make room or choose another --data-dir"
    free = shutil.disk_usage(folder).free
    room = at_least("disk space", free, STATES_ON_DISK * manifest.stored_bytes, size, remedy, CheckResult.FAIL)
    try:
        speed = measure_disk(folder)
    except (PeerError, OSError) as error:
        said = error.text if isinstance(error, PeerError) else f"{error.strerror or error}"
        return [room, Check("disk speed", CheckResult.FAIL, said, "", remedy)]
    slow = "put --data-dir on a faster disk"
    return [room, at_least("disk speed", speed.write_bytes_per_s, LEAST_DISK_RATE, _rate, slow, CheckResult.WARN)]


def memory(manifest: RunManifest, role: Role, gpu_free: int | None) -> list[Check]:
    """Check the memory of the computer and of the GPU against the run's need at a peer with this role."""
    need = memory_need(manifest, role, "cpu" if gpu_free is None else "cuda")
    seed = memory_need(manifest, Role.SEED).host
    serve = f", join as a seed (--role seed, {size(seed)})" if role is not Role.SEED and seed <= available_memory() else ""
    remedy = f"close other programs{serve}, or join a smaller run"
    found = [at_least("memory", available_memory(), need.host, size, remedy, CheckResult.FAIL)]
    if gpu_free is not None and role is not Role.SEED:
        found.append(at_least("gpu memory", gpu_free, need.gpu, size, remedy, CheckResult.FAIL))
    return found


def tasks(environment: str) -> Check:
    """Check the requirements of the tasks of a run with rollouts, as far as the manifest's `environment` names them."""
    try:
        check_packages(environment)
    except PackageMissing as error:
        return Check("tasks", CheckResult.FAIL, error.what, "", error.remedy)
    except SandboxUnavailable as error:
        return Check("tasks", CheckResult.FAIL, str(error), "", "join as a seed (--role seed), which solves no tasks")
    except ValueError as error:
        return Check("tasks", CheckResult.FAIL, str(error), "", "install the version of manyhands that the organiser has")
    return ok("tasks", environment)


def generator(wanted: GeneratorName, gpu_free: int | None) -> Check:
    """Check which generator would make this computer's rollouts, and give the reason."""
    try:
        chosen, why = choose_generator(wanted, gpu_free is not None)
    except ImportError as error:
        return Check("generator", CheckResult.FAIL, "vLLM is set, and not installed", "", str(error))
    return ok("generator", f"{chosen.value}: {why}")


def memory_speed() -> Check:
    """Measure how fast one core copies, which bounds averaging and hashing."""
    source, target = bytearray(os.urandom(1 << 20)) * (COPIED_BYTES >> 20), bytearray(COPIED_BYTES)
    rates = []
    for _ in range(3):
        begun = time.perf_counter()
        memoryview(target)[:] = source
        rates.append(COPIED_BYTES / max(time.perf_counter() - begun, 1e-9))
    remedy = "stop what else keeps this computer busy"
    return at_least("memory speed", max(rates), LEAST_COPY_RATE, _rate, remedy, CheckResult.WARN)


def cores() -> Check:
    """Return a check with the number of cores that this computer, or its container, gives."""
    return ok("cores", str(usable_cores()))


def _rate(count: float) -> str:
    return f"{size(count)}/s"
