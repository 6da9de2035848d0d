"""Check of this computer against the section `[requires]` of a run, before anything of the run is fetched.

The memory that follows from the model is checked apart from it (`peer.resources.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from peer.formatting import size
from peer.resources.check import WORDS
from peer.resources.computer import available_memory, free_gpu_memory, gpu_memories, memory_problem
from peer.resources.room import DiskRoom, used_bytes
from peer.settings.preferences import Preferences
from protocol.run.manifest import RunManifest
from protocol.run.sections import RequiresSection
from protocol.wire.presence import Role

GB = 10**9
MBIT = 10**6 / 8
"""Bytes a second in a Mbit/s, the unit of run files."""


@dataclass(frozen=True)
class Computer:
    """Hardware and limits of this computer.

    memory: bytes in all.  gpu: bytes in all of the largest GPU; None without one.  disk: bytes that the run may take up.
    max_up, max_down: the settings of these names, in bytes a second; None without a limit.
    """

    memory: int
    gpu: int | None
    disk: int
    max_up: float | None
    max_down: float | None


def this_computer(room: DiskRoom, run: Path, preferences: Preferences) -> Computer:
    """Return the facts about this computer.  run: folder of the run, whose bytes count as free.  Blocking."""
    return Computer(
        int(psutil.virtual_memory().total),
        max((total for _, total in gpu_memories()), default=None),
        room.left_bytes() + used_bytes(run),
        preferences.max_up,
        preferences.max_down,
    )


def required(requires: RequiresSection) -> str:
    """Describe the requirements of a run; empty if there are none."""
    parts = [
        (requires.memory_gb, f"{requires.memory_gb:g} GB of memory"),
        (requires.gpu_gb, f"a GPU of {requires.gpu_gb:g} GB"),
        (requires.disk_gb, f"{requires.disk_gb:g} GB on disk"),
        (requires.up_mbit, f"{requires.up_mbit:g} Mbit/s up"),
        (requires.down_mbit, f"{requires.down_mbit:g} Mbit/s down"),
    ]
    return ", ".join(text for wanted, text in parts if wanted)


def requirement_problem(manifest: RunManifest, role: Role, computer: Computer) -> str:
    """Return a sentence with the requirements that this computer does not meet, and a possible role; empty if it may train.

    Only trainers have to meet them.
    """
    if manifest.requires is None or role is not Role.TRAINER:
        return ""
    missing = ", ".join(_missing(manifest.requires, computer))
    return f"the run requires of those who train {missing}; {_instead(manifest)}" if missing else ""


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


def _instead(manifest: RunManifest) -> str:
    """Return the advice to take the first other role for which memory suffices."""
    others = [Role.ROLLOUT, Role.VALIDATOR, Role.SEED] if manifest.rl is not None else [Role.SEED]
    available, gpu = available_memory(), free_gpu_memory()
    for role in others:
        if memory_problem(manifest, role, available, gpu) is None:
            return f"join with --role {role.value} ({WORDS[role]}), which does not need that"
    return "join a smaller run"
