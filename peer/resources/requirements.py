"""Needs of a run, and the check of this computer against its section `[requires]`, before any part of the run is fetched.

The memory that follows from the model is checked separately (`peer.resources.check`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from peer.resources.check import WORDS
from peer.resources.computer import (
    available_memory,
    free_gpu_memory,
    gpu_memories,
    memory_need,
    memory_problem,
    shared_bytes,
)
from peer.resources.pace import MBIT, MeasuredLine, kept_line
from peer.resources.room import STATES_ON_DISK, DiskRoom, used_bytes
from peer.settings.preferences import Preferences
from protocol.formatting import duration, size
from protocol.run.manifest import RunManifest
from protocol.run.sections import RequiresSection
from protocol.version import version
from protocol.wire.presence import Role
from trainer.memory import TrainerSetup

GB = 10**9


@dataclass(frozen=True)
class Computer:
    """Hardware and limits of this computer.

    memory: its total bytes.  gpu: total bytes of the largest GPU; None without one.  disk: bytes that the run may take up.
    max_up, max_down: the settings of these names, in bytes a second; None without a limit.  line: the measured line, if any.
    """

    memory: int
    gpu: int | None
    disk: int
    max_up: float | None
    max_down: float | None
    line: MeasuredLine | None = None


def this_computer(room: DiskRoom, run: Path, preferences: Preferences) -> Computer:
    """Return the facts about this computer.  run: folder of the run, whose bytes count as free.  Blocking."""
    return Computer(
        int(psutil.virtual_memory().total),
        max((total for _, total in gpu_memories()), default=None),
        room.left_bytes() + used_bytes(run),
        preferences.max_up,
        preferences.max_down,
        kept_line(room.folder),
    )


def required(requires: RequiresSection) -> str:
    """Describe the requirements that the organiser states; empty if there are none."""
    parts = [
        (requires.memory_gb, f"{requires.memory_gb:g} GB of memory"),
        (requires.gpu_gb, f"a GPU of {requires.gpu_gb:g} GB"),
        (requires.disk_gb, f"{requires.disk_gb:g} GB on disk"),
        (requires.up_mbit, f"{requires.up_mbit:g} Mbit/s up"),
        (requires.down_mbit, f"{requires.down_mbit:g} Mbit/s down"),
        (requires.version, f"manyhands {_least(requires)} or later"),
    ]
    return ", ".join(text for wanted, text in parts if wanted)


def training_needs(manifest: RunManifest) -> str:
    """Describe the needs of a computer that trains: stated needs, and otherwise needs that follow from the model.

    Stated amounts of memory are totals of a computer; amounts that follow from the model have to be free.
    """
    stated = manifest.requires or RequiresSection()
    on_cpu, on_gpu = memory_need(manifest), memory_need(manifest, setup=TrainerSetup("cuda"))
    derived = []
    if not stated.memory_gb and stated.gpu_gb:
        derived.append(f"{size(on_gpu.host)} of memory")
    elif not stated.memory_gb:
        on_a_gpu = f"{size(on_gpu.gpu)} of a GPU's and {size(on_gpu.host)} of the computer's"
        derived.append(f"{size(on_cpu.host)} of memory on a CPU, or {on_a_gpu}")
    elif not stated.gpu_gb:
        derived.append(f"{size(on_gpu.gpu)} of a GPU's memory if there is one")
    if not stated.disk_gb:
        base = manifest.base.size_bytes if manifest.base is not None else 0
        derived.append(f"{size(STATES_ON_DISK * manifest.stored_bytes + base)} on disk")
    parts = [required(stated), f"about {', '.join(derived)}" if derived else ""]
    return "; its model needs ".join(part for part in parts if part)


def requirement_problem(manifest: RunManifest, role: Role, computer: Computer) -> str:
    """Return a sentence with the requirements that this computer does not meet, and a possible role; empty if it may train.

    Only trainers have to meet them.
    """
    if manifest.requires is None or role is not Role.TRAINER:
        return ""
    missing = list(_missing(manifest.requires, computer))
    update = f"install manyhands {_least(manifest.requires)}, or " if _is_behind(manifest.requires) else ""
    return f"training in this run requires {', '.join(missing)}; {update}{_instead(manifest)}" if missing else ""


def slow_line(manifest: RunManifest, role: Role, computer: Computer) -> str:
    """Return a sentence if the line was measured to be slower than the run requires; empty otherwise.

    It is a warning: the lines of the peers with which it was measured may have been the limit.
    """
    requires, line = manifest.requires, computer.line
    if requires is None or line is None or role is not Role.TRAINER:
        return ""
    rates = ((line.up, requires.up_mbit, "up"), (line.down, requires.down_mbit, "down"))
    slow = [
        f"{wanted:g} Mbit/s {name} (at least {rate / MBIT:.1f} Mbit/s were measured on {line.day})"
        for rate, wanted, name in rates
        if 0 < rate < wanted * MBIT
    ]
    return (
        f"training in this run requires {', '.join(slow)}, and others may wait for a slower line; measure again with "
        f"`peer bench --only lines` while a peer runs, or {_instead(manifest)}"
        if slow
        else ""
    )


def _missing(requires: RequiresSection, computer: Computer) -> Iterator[str]:
    if computer.memory < requires.memory_gb * GB:
        yield f"{requires.memory_gb:g} GB of memory (this computer has {size(computer.memory)})"
    if requires.gpu_gb and (computer.gpu is None or computer.gpu < requires.gpu_gb * GB):
        here = f"has {size(computer.gpu)}" if computer.gpu is not None else "has none that can train"
        yield f"a GPU of {requires.gpu_gb:g} GB (this computer {here})"
    if computer.disk < requires.disk_gb * GB:
        yield f"{requires.disk_gb:g} GB on disk ({size(computer.disk)} are left here)"
    for limit, wanted, name in (
        (computer.max_up, requires.up_mbit, "up"),
        (computer.max_down, requires.down_mbit, "down"),
    ):
        if limit is not None and limit < wanted * MBIT:
            yield f"{wanted:g} Mbit/s {name} (max_{name} is {limit / MBIT:g} Mbit/s)"
    if _is_behind(requires):
        yield f"manyhands {_least(requires)} or later (this is {version()})"


def _least(requires: RequiresSection) -> str:
    return requires.version.removeprefix(">=")


def _is_behind(requires: RequiresSection) -> bool:
    """Return True if this software is older than the run requires; a number that a version leaves out is 0."""

    def numbers(text: str) -> tuple[int, ...]:
        found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
        return tuple(int(number or 0) for number in found.groups()) if found else (0, 0, 0)

    return numbers(version()) < numbers(_least(requires))


def _instead(manifest: RunManifest) -> str:
    """Return the advice to take the first other role for which memory suffices."""
    others = [Role.ROLLOUT, Role.VALIDATOR, Role.SEED] if manifest.rl is not None else [Role.SEED]
    available, gpu = available_memory(), free_gpu_memory()
    for role in others:
        if memory_problem(manifest, role, available, gpu) is None:
            return f"join with --role {role.value} ({WORDS[role]}), which does not need that"
    return "join a smaller run"


# ------------------------------------------------------------------------------------------------------------------------
# Needs of a run, for people who decide whether to take part: memory by kind of computer, and bytes and time of a round.


GPU_SIZES = (8, 12, 16, 24, 80)
"""Memory of usual GPUs, in GB."""
NODE_GPUS, NODE_GPU_SIZE = 8, 80
LINES = (10, 50, 200, 1000)
"""Speeds of usual lines in each direction, in Mbit/s."""
MEMBERS = 8
"""Members of the round whose exchange is described; with many more, a member sends at most an eighth more."""
FULL = 0.9
"""Share of a GPU's memory that a trainer can use."""


def need_lines(manifest: RunManifest, *, whole: bool = True) -> list[tuple[str, str]]:
    """Return the needs of a run as pairs (subject, statement).

    whole: True to include the memory of each kind of peer, and all suitable GPUs even if the smallest of `GPU_SIZES` fits.
    """
    any_gpu = memory_need(manifest, setup=TrainerSetup("cuda")).gpu <= FULL * GPU_SIZES[0] * 1e9
    return [
        ("to train", training_needs(manifest)),
        *([("memory", _memory(manifest))] if whole else []),
        *([("GPUs", _gpus(manifest))] if whole or not any_gpu else []),
        ("a round", _round(manifest)),
    ]


def _memory(manifest: RunManifest) -> str:
    """Describe the memory that each role needs without a GPU."""
    need = memory_need(manifest)
    others = [(Role.ROLLOUT, "a rollout peer"), (Role.VALIDATOR, "a validator")] if manifest.rl is not None else []
    more = [f"{size(memory_need(manifest, role).host)} for {name}" for role, name in [*others, (Role.SEED, "a seed")]]
    return (
        f"{size(need.host)} for a peer that trains on its CPU ({size(need.peer)} in the peer, {size(need.trainer)} in "
        f"the trainer), {', '.join(more)}; {size(shared_bytes(manifest, Role.TRAINER))} less, or for a seed "
        f'{size(shared_bytes(manifest, Role.SEED))} less, with the setting state = "disk"'
    )


def _gpus(manifest: RunManifest) -> str:
    """Describe the GPUs on which the run can train, and the computer's memory beside them."""
    need = memory_need(manifest, setup=TrainerSetup("cuda"))
    fitting = [f"{each} GB" for each in GPU_SIZES if need.gpu <= FULL * each * 1e9]
    one = f"fits one of {', '.join(fitting)}" if fitting else f"fits no single one of {GPU_SIZES[-1]} GB"
    host = f"; and {size(need.host)} of the computer's"
    offloading = memory_need(manifest, setup=TrainerSetup("cuda", offload=True))
    smaller = [f"{each} GB" for each in GPU_SIZES if offloading.gpu <= FULL * each * 1e9 < need.gpu]
    if smaller:
        what = "parameters and optimiser" if manifest.adapter is None else "the layers of the frozen model"
        host += (
            f"; or, with {what} in the computer's memory (--offload), {size(offloading.gpu)} of a GPU's "
            f"(fits one of {', '.join(smaller)}) and {size(offloading.host)} of the computer's"
        )
    if manifest.rl is not None or manifest.data.format == "preference":  # one process trains
        return f"at least {size(need.gpu)} of a GPU's memory ({one}){host}"
    each = memory_need(manifest, setup=TrainerSetup("cuda", NODE_GPUS)).gpu
    fits = "" if each <= FULL * NODE_GPU_SIZE * 1e9 else ", which is too much"
    several = f"{size(each)} of each of {NODE_GPUS} of {NODE_GPU_SIZE} GB{fits}"
    return f"at least {size(need.gpu)} of a GPU's memory ({one}), or {several}{host}"


def _round(manifest: RunManifest) -> str:
    """Describe the bytes that a member of a round sends and receives, and the time that they take."""
    sent = (MEMBERS - 1) / MEMBERS * manifest.layouts.exchanged_bytes
    times = [f"{duration(8 * sent / (line * 1e6))} at {line}{' Mbit/s' * (line == LINES[0])}" for line in LINES]
    return f"{size(sent)} up and as much down for each of {MEMBERS} members: {', '.join(times)}"
