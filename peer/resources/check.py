"""Whether a run fits into this computer's memory, asked before anything of it is fetched or allocated."""

from __future__ import annotations

from collections.abc import Callable

import trio

from peer.errors import ExitCode, PeerError
from peer.formatting import size
from peer.resources.computer import available_memory
from peer.resources.gpu import free_gpu_memory
from peer.resources.memory import memory_need, memory_problem
from peer.resources.role import choose_role
from protocol.events.events import Event, Notice, RoleChosen
from protocol.run.manifest import RunManifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from trainer.generate.choice import GeneratorName, choose_generator

FOUNDER_RESTS = (
    "this peer is a founder of the run, and does not vote with the role {role}: until four peers have earned a vote, the "
    "run may stand still without it; join with --role trainer, or name other founders in the run file"
)


def check_together(manifest: RunManifest, peers: int) -> None:
    """Whether so many peers that start here at the same moment, and so all find the memory free, fit; raises `PeerError`."""
    need, available = memory_need(manifest, device="cpu" if free_gpu_memory() is None else "cuda"), available_memory()
    if peers * need.host > available:
        raise PeerError(
            f"{peers} peers need about {size(peers * need.host)} of memory (each {size(need.peer)}, its trainer "
            f"{size(need.trainer)}) and {size(available)} are free here; start fewer, or take a smaller model",
            ExitCode.RESOURCES,
        )


async def chosen_role(
    manifest: RunManifest, run: Hash, peer: PeerId, emit: Callable[[Event], None], wanted: Role | None = None
) -> Role:
    """The role of a peer: what its owner wants, with a warning where the run may wait for something else; where that is left
    open, what suits, and in a run with rollouts it is told why it is that one."""
    if wanted is not None:
        if wanted is not Role.TRAINER and manifest.founders != "anyone" and peer in manifest.founders:
            emit(Notice("warning", FOUNDER_RESTS.format(role=wanted.value)))
        return wanted
    available, gpu = await trio.to_thread.run_sync(available_memory), await trio.to_thread.run_sync(free_gpu_memory)
    role, reason = choose_role(manifest, run, peer, available, gpu)
    if manifest.rl is not None:
        emit(RoleChosen(role.value, reason))
    return role


def check_generator(wanted: GeneratorName) -> None:
    """Raise `PeerError` if the generator that is set cannot be used here."""
    try:
        choose_generator(wanted, free_gpu_memory() is not None)
    except ImportError as error:
        raise PeerError(str(error), ExitCode.RESOURCES) from error


def check_memory(manifest: RunManifest, role: Role) -> None:
    """Raises `PeerError` with numbers when it does not suffice."""
    problem = memory_problem(manifest, role, available_memory(), None if role is Role.SEED else free_gpu_memory())
    if problem is not None:
        raise PeerError(problem, ExitCode.RESOURCES)
