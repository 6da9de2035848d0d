"""Checks of this computer alone.  Blocking; each takes a moment, and a measurement of speed two seconds."""

from __future__ import annotations

import ast
import ctypes
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from peer.discovery.port_mapping import NatPmp, PortMapping
from peer.discovery.upnp import Upnp
from peer.errors import PeerError
from peer.measurements.speeds import measure_disk
from peer.resources.check import TrainerDivision
from peer.resources.computer import (
    StatePlace,
    available_memory,
    free_gpu_memory,
    memory_need,
    training_sentence,
    usable_cores,
)
from peer.resources.requirements import required, requirement_problem, slow_line, this_computer
from peer.resources.room import STATES_ON_DISK, DiskRoom
from peer.settings.preferences import Preferences
from protocol.events.events import Event, PortMapped
from protocol.formatting import size
from protocol.membership.handshake import TOLERANCE_S
from protocol.run.manifest import RunManifest
from protocol.transport.addresses import interface_addresses, is_public
from protocol.transport.nat.punching import ports_outside
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.nat.reachability import Reachability
from protocol.transport.network import Libp2pNetwork
from protocol.wire.presence import Role
from trainer.environments.packages import PackageMissing
from trainer.environments.registry import check_packages
from trainer.environments.sandbox import SandboxUnavailable
from trainer.extras import install_command, torch_command
from trainer.generate.choice import GeneratorName, choose_generator

# ------------------------------------------------------------------------------------------------------------------------
# Result of one check.


class CheckResult(Enum):
    """Verdict of a check.  WARN: can take part, but with a drawback; FAIL: cannot take part; UNKNOWN: no answer."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One check.  value: the finding.  limit: limit on it; empty if there is none.  remedy: empty if all is well."""

    name: str
    verdict: CheckResult
    value: str
    limit: str = ""
    remedy: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "verdict": self.verdict.value}


def ok(name: str, value: str, limit: str = "") -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, CheckResult.OK, value, limit)


def flawed(name: str, verdict: CheckResult, sentence: str, remedy: str = "", limit: str = "") -> Check:
    """Return a check from a sentence, whose remedy follows a semicolon.  remedy: remedy for a sentence without one."""
    value, _, own = sentence.partition("; ")
    return Check(name, verdict, value, limit, own or remedy)


def at_least(
    name: str, found: float, least: float, show: Callable[[float], str], remedy: str, verdict: CheckResult
) -> Check:
    """Return OK if `found` is at least `least`, else `verdict`."""
    limit = f"at least {show(least)}"
    return ok(name, show(found), limit) if found >= least else Check(name, verdict, show(found), limit, remedy)


# ------------------------------------------------------------------------------------------------------------------------
# Reachability of this computer, and its router, according to other peers and the router itself.


OPENING_S = 10.0
"""Seconds for the router to open a port; a silent router counts as unable."""
REFLECTORS = 2
KEEPS = "it keeps ports, so holes can be punched through it"
RENUMBERS = "it gives each connection a different port, so peers behind such routers meet through a relay"


class OpenedPort:
    """Port that the router opens for the time of a visit.  by: name of the protocol; empty if the port was not opened."""

    def __init__(self) -> None:
        self.by = ""
        self._asked, self._told = False, trio.Event()

    async def keep(self, network: Libp2pNetwork) -> None:
        """Ask the router until cancelled; then close the port."""
        self._asked = True
        await PortMapping(network.own.port, (Upnp(), NatPmp()), network.own.map, self._tell).keep()

    async def wait(self) -> None:
        """Wait until the router has answered, or counts as unable."""
        if self._asked:
            with trio.move_on_after(OPENING_S):
                await self._told.wait()

    def _tell(self, event: Event) -> None:
        if isinstance(event, PortMapped) and event.by:
            self.by = event.by
            self._told.set()


async def port_keeping(network: Libp2pNetwork) -> str:
    """Describe how the router translates ports, as peers see it; empty if unknown."""
    parts = [address.split("/") for address in network.reached_there()]
    ends = [
        (part[2], int(part[4])) for part in parts if len(part) > 4 and part[1] == "ip4" and is_public("/".join(part[:5]))
    ]
    try:
        ours, seen = await ports_outside(list(dict.fromkeys(ends))[:REFLECTORS])
    except OSError:
        return ""
    if not seen:
        return ""
    return KEEPS if set(seen) == {ours} or len(seen) > 1 == len(set(seen)) else RENUMBERS


def reachable(found: Reachability, announced: Sequence[str] = (), opened_by: str = "", ports: str = "") -> list[Check]:
    """Return the checks of our reachability and our router, from the answers of peers.

    opened_by: protocol by which the router opened the port.  ports: how it translates ports.
    """
    seen = [address for address, verdict in found.verdicts.items() if verdict is not Reached.UNKNOWN]
    translates = not {address.split("/")[2] for address in found.verdicts if "/ip4/" in address} & {*interface_addresses()}
    router = ok("router", "; ".join(filter(None, (_kind(found, announced, opened_by), ports if translates else ""))))
    match found.overall:
        case Reached.REACHABLE:
            return [ok("reachable", f"others reach {', '.join(found.reached[:2])}"), router]
        case Reached.UNREACHABLE:
            value = f"nobody reaches {', '.join(seen[:2])}"
            remedy = "forward this TCP port in your router; reachable peers still work with you"
            if opened_by:
                remedy = "another router stands before yours: ask the provider for a public address, or for IPv6"
            return [Check("reachable", CheckResult.WARN, value, "", remedy), router]
        case _:
            remedy = "nothing to do; `peer status` shows it once the peer has run for a while"
            return [Check("reachable", CheckResult.UNKNOWN, "no peer could tell", "", remedy)]


def _kind(found: Reachability, announced: Sequence[str], opened_by: str) -> str:
    """Describe the router in the usual terms of router settings."""
    ours, seen = set(interface_addresses()), {address.split("/")[2] for address in found.verdicts}
    public = {address.split("/")[2] for address in found.verdicts if is_public(address)}
    reached = found.overall is Reached.REACHABLE
    if not public:
        return "all peers that answered are on this network"
    if seen & ours & public:
        return "none: this computer has a public address" + ("" if reached else ", and a firewall that lets nobody in")
    if opened_by:
        return f"a router that opens the port by {opened_by}"
    forwarded = "that forwards the port" if reached else "or firewall that lets nobody in"
    return f"a router {forwarded}{' (announced)' if announced and reached else ''}"


# ------------------------------------------------------------------------------------------------------------------------


LEAST_PYTHON = (3, 11)
LEAST_DISK_RATE = 20e6
"""Bytes a second; on a slower disk, a round waits until its state is written."""
EARLIEST = 1_767_225_600.0
"""Start of 2026 in unix seconds; this software is newer."""
TIMEX_BYTES = 512
"""Bytes for the C library's `struct timex`, more than any system needs."""
NOT_SYNCHRONISED = 5


def python() -> Check:
    """Check the interpreter's version."""
    found = platform.python_version()
    limit = ".".join(map(str, LEAST_PYTHON))
    if sys.version_info >= LEAST_PYTHON:
        return ok("python", f"{found}, {platform.system()} {platform.machine()}", f"at least {limit}")
    return Check("python", CheckResult.FAIL, found, f"at least {limit}", f"install manyhands with Python {limit} or later")


NVIDIA_DRIVER = (Path("/dev/nvidiactl"), Path("/usr/lib/wsl/lib/libnvidia-ml.so.1"))
"""Files of NVIDIA's driver, on Linux itself and in WSL2."""
AMD_DRIVER = Path("/dev/kfd")
BUILDS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
"""Names of torch's builds, by the variables of torch/version.py that only this build sets."""


def torch() -> Check:
    """Check that the package that trains is installed, in the build for this computer's GPU; it is not loaded here."""
    try:
        found = version_of("torch")
    except PackageNotFoundError:
        return Check("torch", CheckResult.FAIL, "not installed", "", "install manyhands again, in an environment of its own")
    build, has_nvidia = _torch_build(), any(path.exists() for path in NVIDIA_DRIVER)
    suitable = "CUDA" if has_nvidia else "ROCm" if AMD_DRIVER.exists() else ""
    value = f"{found}, built for {build}" if build else found
    if build and suitable and build != suitable:
        return Check("torch", CheckResult.WARN, value, f"built for {suitable}", torch_command(found, suitable))
    return ok("torch", value)


def _torch_build() -> str:
    """Return the name of the hardware that torch was built for, from its file of variables; empty if unknown."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        body = ast.parse((Path(spec.origin).parent / "version.py").read_text("utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return ""
    values = {
        node.target.id: node.value.value
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant)
    }
    return next((name for variable, name in BUILDS.items() if values.get(variable)), "CPU")


def gpu(free: int | None = None) -> list[Check]:
    """Check the NVIDIA GPU, its driver, and triton, which fast kernels need."""
    free = free_gpu_memory() if free is None else free
    if free is None:
        remedy = "nothing to do without an NVIDIA GPU; with one, see that `nvidia-smi` works and torch is built for CUDA"
        return [Check("gpu", CheckResult.WARN, "none that torch could use; the trainer computes on the CPU", "", remedy)]
    name, driver = _gpu_name()
    checks = [ok("gpu", f"{name}, driver {driver}, {size(free)} free")]
    try:
        checks.append(ok("triton", version_of("triton")))
    except PackageNotFoundError:
        remedy = f"{install_command('gpu')}, for faster kernels"
        checks.append(Check("triton", CheckResult.WARN, "not installed", "", remedy))
    return checks


def _gpu_name() -> tuple[str, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            told = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion()
            name, driver = (each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in told)
            return name, driver
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return "unnamed", f"unknown ({error})"


SET_CLOCK = "set this computer's clock, which decides when invitations expire"


def clock(now: float | None = None) -> Check:
    """Check the clock, which decides when invitations expire; nothing in a round depends on it."""
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < EARLIEST:
        return Check("clock", CheckResult.FAIL, shown, "not before this software was made", SET_CLOCK)
    try:
        found = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        found = None  # the kernel cannot be asked
    if found == NOT_SYNCHRONISED:
        return Check("clock", CheckResult.WARN, f"{shown}, not synchronised", "kept by NTP", "switch network time on")
    return ok("clock", shown, "kept by NTP")


def skewed(skew: str) -> Check:
    """Return the check of a clock that differs from other peers' clocks, as `skew` says."""
    return Check("clock", CheckResult.WARN, skew, f"within {TOLERANCE_S:.0f} s of them", SET_CLOCK)


def disk(folder: Path, manifest: RunManifest, scratch_bytes: int = 0) -> list[Check]:
    """Check the room for the run, and the speed of writing.  scratch_bytes: size of the files in place of memory."""
    remedy = "make room or choose another --data-dir"
    free = shutil.disk_usage(folder).free
    needed = STATES_ON_DISK * manifest.stored_bytes + scratch_bytes
    room = at_least("disk space", free, needed, size, remedy, CheckResult.FAIL)
    try:
        speed = measure_disk(folder)
    except (PeerError, OSError) as error:
        said = error.text if isinstance(error, PeerError) else f"{error.strerror or error}"
        return [room, Check("disk speed", CheckResult.FAIL, said, "", remedy)]
    found, slow = speed.write_bytes_per_s, "put --data-dir on a faster disk"
    rate = at_least("disk speed", found, LEAST_DISK_RATE, lambda count: f"{size(count)}/s", slow, CheckResult.WARN)
    return [room, rate]


def requirements(folder: Path, run: Path, manifest: RunManifest, role: Role, preferences: Preferences) -> Check:
    """Check the requirements that the organiser stated.  folder: data directory.  run: folder of the run in it."""
    wanted = required(manifest.requires) if manifest.requires is not None else ""
    facts = this_computer(DiskRoom(folder, lambda: preferences.max_disk), run, preferences)
    for sentence, verdict in (
        (requirement_problem(manifest, role, facts), CheckResult.FAIL),
        (slow_line(manifest, role, facts), CheckResult.WARN),
    ):
        problem, _, remedy = sentence.rpartition("; ")
        if problem:
            return Check("requirements", verdict, problem, wanted, remedy)
    return ok("requirements", "met" if role is Role.TRAINER else f"none for the role {role.value}", wanted)


def memory(manifest: RunManifest, role: Role, division: TrainerDivision, place: StatePlace = StatePlace.RAM) -> list[Check]:
    """Check the memory of the computer and of the GPU against the run's need at a peer with this role.

    division: division of the trainer's steps, as `peer join` chooses it.
    """
    setup, gpu_free, available = division.setup, division.gpu, available_memory()
    need, on_disk = (memory_need(manifest, role, setup, each) for each in (place, StatePlace.DISK))
    seed = memory_need(manifest, Role.SEED, place=place).host
    files = f", keep the state in files (--state disk, {size(on_disk.host)})"
    fits = place is StatePlace.RAM and on_disk.host <= available
    serve = f", join as a seed (--role seed, {size(seed)})" if role is not Role.SEED and seed <= available else ""
    remedy = f"close other programs{files if fits else ''}{serve}, or join a smaller run"
    found = [at_least("memory", available, need.host, size, remedy, CheckResult.FAIL)]
    if gpu_free is not None and role is not Role.SEED:
        found.append(at_least("gpu memory", gpu_free, need.gpu, size, remedy, CheckResult.FAIL))
    if role is Role.TRAINER and all(check.verdict is CheckResult.OK for check in found):
        found.append(ok("steps", training_sentence(manifest, setup, gpu_free, place, available)))
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
        return Check("generator", CheckResult.FAIL, "vLLM is chosen, but not installed", "", str(error))
    return ok("generator", f"{chosen.value}: {why}")


def cores() -> Check:
    """Return a check with the number of cores that this computer, or its container, gives."""
    return ok("cores", str(usable_cores()))
