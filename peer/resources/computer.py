"""Resources that this computer gives a process: cores and memory, within affinity and containers.

Linux's control groups limit a container (or a service) to a part of the computer; each group above ours limits us as well.
Both versions of their file system are read.  Without control groups, only the computer's own resources are the limit.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from protocol.allreduce.buffers import PART_BUFFERS
from protocol.formatting import amount, size
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role
from trainer.config import TrainingConfig
from trainer.memory import TrainerSetup, TrainerWork, step_plan, trainer_memory

# ------------------------------------------------------------------------------------------------------------------------
# The GPU on which a trainer would compute, found without loading torch.


def free_gpu_memory() -> int | None:
    """Return the free bytes of the NVIDIA GPU with the most free memory; None if a trainer would compute on the CPU."""
    return max(free_gpu_memories(), default=None)


def free_gpu_memories() -> list[int]:
    """Return the free bytes of each NVIDIA GPU; nothing if a trainer would compute on the CPU."""
    return [free for free, _ in gpu_memories()]


def gpu_memories() -> list[tuple[int, int]]:
    """Return the free and all bytes of each NVIDIA GPU; nothing if a trainer would compute on the CPU."""
    nvml = open_nvml()
    if nvml is None:
        return []
    try:
        found = [nvml.nvmlDeviceGetMemoryInfo(handle()) for handle in visible_gpus(nvml)]
        return [(int(memory.free), int(memory.total)) for memory in found]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def open_nvml() -> Any:
    """Return the library NVML, initialised; None if a trainer would compute on the CPU.

    A trainer computes on the CPU if torch is built for CPUs, if CUDA_VISIBLE_DEVICES hides all GPUs, or if no GPU works.
    """
    try:
        if version("torch").endswith("+cpu") or os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
            return None
        import pynvml

        pynvml.nvmlInit()
    except (PackageNotFoundError, ImportError):
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def visible_gpus(nvml: Any) -> Iterator[Callable[[], Any]]:
    """Yield functions that return NVML's handle of each GPU that CUDA_VISIBLE_DEVICES leaves, up to the first unknown one.

    The variable contains numbers or UUIDs.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    here = nvml.nvmlDeviceGetCount()
    for name in map(str, range(here)) if names is None else names.split(","):
        if name.strip().isdigit() and int(name) < here:
            yield partial(nvml.nvmlDeviceGetHandleByIndex, int(name))
        elif name.strip().startswith("GPU-"):
            yield partial(nvml.nvmlDeviceGetHandleByUUID, name.strip().encode())
        else:
            return


# ------------------------------------------------------------------------------------------------------------------------
# Memory that a run needs in the peer and in its trainer, estimated from the manifest alone.
#
# Memory that both processes share (the parameters, the contribution) is counted once, for the peer.  `trainer.memory`
# computes the trainer's part; `python -m benchmarks.memory` compares the sum with the use of real peers.


PROCESS_BYTES = 144 << 20
"""Bytes for Python, the network and its connections."""
WORK = {Role.TRAINER: TrainerWork.TRAIN, Role.ROLLOUT: TrainerWork.GENERATE, Role.VALIDATOR: TrainerWork.VERIFY}
RECEIPTS_HELD = 11
"""Receipts of rounds in the peer's memory at most: of three rounds of its own, and of four members, while they arrive."""
MEMORY_OF_FILES = 6
"""Bytes in the trainer process for each byte of a tokenizer or of chats."""
CHUNKS_AT_WORK = 16
"""Chunks that are averaged, sent, applied or written at one time, besides waiting parts."""


class StatePlace(Enum):
    """Place of the outer state and of the contribution: memory, or files of a scratch folder."""

    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True)
class Need:
    """Peak memory in bytes.  trainer: bytes of the computer's memory.  gpu: bytes of the GPU's memory; 0 without a GPU."""

    peer: int
    trainer: int
    gpu: int

    @property
    def host(self) -> int:
        """Bytes of the computer's memory for both processes together."""
        return self.peer + self.trainer


def sole_process(gpu: int | None) -> TrainerSetup:
    """Return the setup of a trainer of one process.  gpu: free bytes of its GPU; None for this CPU."""
    return TrainerSetup("cuda") if gpu is not None else TrainerSetup(bf16=multiplies_bf16())


def multiplies_bf16(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if a trainer will probably compute in bf16 on this CPU: Intel's with AMX.  The trainer measures it."""
    return "amx_bf16" in _text(processor).split()


def memory_need(
    manifest: RunManifest,
    role: Role = Role.TRAINER,
    setup: TrainerSetup | None = None,
    place: StatePlace = StatePlace.RAM,
) -> Need:
    """Return the memory that a peer of this role needs; the GPU memory is per GPU.

    setup: the trainer's processes; None for one process on this CPU.

    The results of rounds are not included, because a result is always a file and passes through memory chunk by chunk.
    """
    chunk = max(layout[0].size for layout in (manifest.layouts.contribution, manifest.layouts.result))
    peer = PROCESS_BYTES + (PART_BUFFERS + CHUNKS_AT_WORK) * chunk
    if place is StatePlace.RAM:
        peer += shared_bytes(manifest, role)
    if role is Role.SEED:
        return Need(peer, 0, 0)
    peer += RECEIPTS_HELD * manifest.receipt_bytes
    config = TrainingConfig.from_sections(manifest.trainer_sections())
    trainer = trainer_memory(config, setup or sole_process(None), WORK[role])
    base = manifest.base.size_bytes if manifest.base is not None else 0  # read tensor by tensor
    files = MEMORY_OF_FILES * (sum(file.size for file in manifest.files.values()) - base)
    residual = manifest.residual_bytes if role is Role.TRAINER else 0  # always in the memory of the computer
    return Need(peer, trainer.host + files + residual, trainer.device)


def shared_bytes(manifest: RunManifest, role: Role) -> int:
    """Return the size of the outer state and, of a peer that trains, its contribution with the receipts of its rows.

    They are in memory or in scratch files.
    """
    contribution = manifest.layouts.contribution.payload_bytes + manifest.receipt_bytes
    return manifest.state_bytes + (contribution if role is Role.TRAINER else 0)


def state_place(
    wanted: str,
    manifest: RunManifest,
    role: Role,
    available: int,
    gpu: int | None,
    setup: TrainerSetup | None = None,
) -> StatePlace:
    """Return the place that the setting `state` names: with "auto", disk if memory is short.

    `memory_problem` checks the rest.
    """
    if wanted != "auto":
        return StatePlace(wanted)
    need = memory_need(manifest, role, setup or sole_process(gpu))
    return StatePlace.DISK if need.host > available else StatePlace.RAM


def offload_sentence(manifest: RunManifest, gpu: int, need: Need, available: int) -> str:
    """Return the sentence on what a trainer keeps in the computer's memory instead of a GPU's.  gpu: free bytes there."""
    if manifest.adapter is not None:
        return (
            f"a frozen model of {amount(manifest.model.parameters)} parameters on a GPU with {size(gpu)} free: its layers "
            "are copied to the GPU when they are computed, and lie in the computer's memory, of which "
            f"{size(need.host)} are needed and {size(available)} are free"
        )
    return (
        f"{amount(manifest.parameters)} parameters on a GPU with {size(gpu)} free: parameters and optimiser lie in the "
        f"computer's memory, of which {size(need.host)} are needed and {size(available)} are free"
    )


def training_sentence(manifest: RunManifest, setup: TrainerSetup, gpu: int | None, place: StatePlace, available: int) -> str:
    """Return the sentence on the memory that training takes, and the division of its steps.

    gpu: free bytes of its memory; None on a CPU.  available: free bytes of memory.
    """
    need = memory_need(manifest, Role.TRAINER, setup, place)
    if gpu is not None and setup.offload:
        return offload_sentence(manifest, gpu, need, available)
    if gpu is not None:
        return (
            f"training takes {size(need.host)} of memory and at least {size(need.gpu)} of the {size(gpu)} that are free on "
            f"the GPU; after its first step the trainer takes as many {_units(manifest, 2)} at a time as fit"
        )
    plan = step_plan(TrainingConfig.from_sections(manifest.trainer_sections()), setup)
    again = f", with {plan.recomputed} of {manifest.model.layers} layers computed again" if plan.recomputed else ""
    ranks = f" in each of {setup.ranks} processes" if setup.ranks > 1 else ""
    files = ", and the frozen layers are read from their files" if setup.offload and manifest.adapter is not None else ""
    steps = f", with {plan.units} {_units(manifest, plan.units)} at a time{ranks}{again}{files}"
    return f"training takes {size(need.host)} of memory on the CPU{steps if manifest.rl is None else ''}"


def _units(manifest: RunManifest, count: int) -> str:
    """Return the word for the units of a step."""
    word = "pair" if manifest.data.format == "preference" else "row"
    return word if count == 1 else f"{word}s"


def memory_problem(
    manifest: RunManifest,
    role: Role,
    available: int,
    gpu: int | None,
    place: StatePlace = StatePlace.RAM,
    setup: TrainerSetup | None = None,
) -> str | None:
    """Return a sentence with numbers and a remedy if the run does not fit; None if it fits.

    available: bytes of memory.  gpu: free bytes of the GPU's memory, the least of several; None if the trainer computes on
    the CPU.  setup: the trainer's processes; None for one process.
    """
    setup = setup or sole_process(gpu)
    need, on_disk = (memory_need(manifest, role, setup, each) for each in (place, StatePlace.DISK))
    remedies = ["close other programs"]
    if place is StatePlace.RAM and on_disk.host <= available < need.host:
        remedies.append(f"keep the state in files (--state disk, {size(on_disk.host)})")
    seed = memory_need(manifest, Role.SEED, place=place)
    if role is not Role.SEED and seed.host <= available:
        remedies.append(f"keep and serve the run without training (--role seed, {size(seed.host)})")
    remedy = ", ".join([*remedies, "or join a smaller run"])
    if need.host > available and setup.offload and gpu is not None:
        return f"{offload_sentence(manifest, gpu, need, available)}; {remedy}"
    if need.host > available:
        parts = f" ({size(need.peer)} in the peer, {size(need.trainer)} in the trainer)" if need.trainer else ""
        files = ", with its state in files," if place is StatePlace.DISK else ""
        return f"the run needs about {size(need.host)} of memory{parts}{files} and {size(available)} are free here; {remedy}"
    if gpu is not None and need.gpu > gpu:
        whose = "the GPU's memory" if setup.ranks == 1 else f"the memory of each of {setup.ranks} GPUs"
        return f"the run needs about {size(need.gpu)} of {whose} and {size(gpu)} are free there; {remedy}"
    return None


# ------------------------------------------------------------------------------------------------------------------------
# Limit on the files and sockets that this process may have open.


WANTED = 4096
"""Desired limit: more than a peer's permitted connections and its own files together."""


def raise_open_files() -> int:
    """Raise this process's limit to `WANTED`, or as far as the system allows; return the resulting limit.

    The usual limit of 1024 is less than the connections that strangers may open, and a peer that cannot open a file stops.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    limit = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return soft
    return limit


# ------------------------------------------------------------------------------------------------------------------------
# Clock that keeps running while the computer is suspended; the event loop's clock stops then.


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock that counts suspended time: CLOCK_BOOTTIME on Linux, on macOS a monotonic clock that Python's own functions do not
read."""


def seconds_since_boot() -> float:
    """Return the seconds since boot, including suspended time."""
    return time.clock_gettime(CLOCK)


# ------------------------------------------------------------------------------------------------------------------------


GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
PROCESSORS = Path("/sys/devices/system/cpu")
UNLIMITED = 1 << 60
"""Smallest limit that counts as no limit: version 1 has a huge number where version 2 has "max"."""


def usable_cores(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of cores that we may use all the time; at least 1.  Two hardware threads of a core count once."""
    if hasattr(os, "sched_getaffinity"):
        topology = [PROCESSORS / f"cpu{number}/topology" for number in os.sched_getaffinity(0)]
        cores = float(len({_text(each / "thread_siblings_list") or each for each in topology}))
    else:
        cores = float(psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    for folder in _folders("cpu", groups, membership):
        limit = _text(folder / "cpu.max").split()
        with suppress(ValueError, IndexError):  # "max" is no limit
            quota, period = limit or [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
            if int(quota) > 0 and int(period) > 0:
                cores = min(cores, int(quota) / int(period))
    return max(1, math.ceil(cores))


def available_memory(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory available without swapping or eviction."""
    available = int(psutil.virtual_memory().available)
    for folder in _folders("memory", groups, membership):
        limit = _memory_limit(folder)
        if limit < UNLIMITED:
            used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
            kept = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            droppable = kept.get("total_inactive_file", kept.get("inactive_file", "0"))  # file pages
            available = min(available, limit - used + (int(droppable) if droppable.isdigit() else 0))
    return max(0, available)


def _folders(controller: str, groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of our control group and of the groups above it.

    A container may not see the path of its own group; then only the visible groups above it count.
    """
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups  # version 1 has a tree for each controller
        inside = Path(path.lstrip("/"))
        yield from (root / part for part in (inside, *inside.parents))


def memory_limit(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the bytes to which control groups limit our memory; None if they do not limit it."""
    limit = min(map(_memory_limit, _folders("memory", groups, membership)), default=UNLIMITED)
    return limit if limit < UNLIMITED else None


def _memory_limit(folder: Path) -> int:
    limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    return UNLIMITED if limit is None else min(limit, UNLIMITED)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """Return a small file's contents; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
