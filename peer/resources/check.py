"""Whether a run fits on this computer, asked before anything of it is fetched or allocated."""

from __future__ import annotations

import shutil
from pathlib import Path

from peer.errors import ExitCode, PeerError
from peer.formatting import size
from peer.resources.computer import available_memory
from peer.resources.gpu import free_gpu_memory
from peer.resources.memory import memory_need, memory_problem
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role

STATES_ON_DISK = 3
"""Two checkpoints, and results between them, in multiples of the state."""


def check_together(manifest: RunManifest, peers: int) -> None:
    """Whether so many peers that start here at the same moment, and so all find the memory free, fit; raises `PeerError`."""
    need, available = memory_need(manifest, device="cpu" if free_gpu_memory() is None else "cuda"), available_memory()
    if peers * need.host > available:
        raise PeerError(
            f"{peers} peers need about {size(peers * need.host)} of memory (each {size(need.peer)}, its trainer "
            f"{size(need.trainer)}) and {size(available)} are free here; start fewer, or take a smaller model",
            ExitCode.RESOURCES,
        )


def check_resources(manifest: RunManifest, role: Role, folder: Path) -> None:
    """Raises `PeerError` with numbers when memory, or the disk that holds `folder`, does not suffice."""
    problem = memory_problem(manifest, role, available_memory(), None if role is Role.SEED else free_gpu_memory())
    if problem is not None:
        raise PeerError(problem, ExitCode.RESOURCES)
    room = shutil.disk_usage(folder).free
    if room < STATES_ON_DISK * manifest.state_bytes:
        raise PeerError(
            f"the run needs about {size(STATES_ON_DISK * manifest.state_bytes)} on disk and {folder} has {size(room)} free; "
            "make room or choose another --data-dir",
            ExitCode.RESOURCES,
        )
