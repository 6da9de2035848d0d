"""Memory check of a run before any of it is fetched or allocated, and choice of a peer's role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import trio

from peer.errors import ExitCode, PeerError, told_as
from peer.resources.computer import (
    StatePlace,
    available_memory,
    free_gpu_memories,
    free_gpu_memory,
    memory_need,
    memory_problem,
    offload_sentence,
    sole_process,
    state_place,
    training_sentence,
)
from protocol.events.events import Event, Notice, NoticeCode
from protocol.formatting import size
from protocol.run.manifest import RunManifest
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from trainer.generate.choice import GeneratorName, choose_generator
from trainer.memory import TrainerSetup

# ------------------------------------------------------------------------------------------------------------------------
# Choice of a peer's role if its owner sets none: from the manifest's needs and this computer's capacity.
#
# In a run without rollouts, every peer trains.  In a run with rollouts, a founder trains, because the run waits for its
# founders; if any peer may begin, the organiser trains, and so do peers with a suitable GPU.  Of the other peers, one in
# eight verifies, drawn by run and peer, and the rest generate.  If memory does not suffice for this role, the peer takes
# the first of generating, verifying and serving for which memory suffices.  The choice depends only on the manifest, the
# peer's ID and free memory.


VALIDATE_ONE_IN = 8
"""Number of peers for each validator: verifying a rollout costs less than a tenth of making it, and is done about once."""
WORDS = {
    Role.TRAINER: "training",
    Role.ROLLOUT: "generating rollouts",
    Role.VALIDATOR: "verifying rollouts",
    Role.SEED: "keeping and serving the run",
}


class RoleChoice(NamedTuple):
    """A role, and the reason in one sentence."""

    role: Role
    reason: str


def choose_role(
    manifest: RunManifest,
    run: Hash,
    peer: PeerId,
    available: int,
    gpu: int | None,
    state: str = "auto",
    *,
    may_train: bool = True,
) -> RoleChoice:
    """Choose a peer's role.  available: bytes of free memory.  gpu: free bytes of GPU memory, None without a GPU.

    state: the setting of this name.  may_train: True if this computer meets the run's requirements for training.
    """
    if manifest.rl is None:
        return RoleChoice(Role.TRAINER, "the run has no rollouts, so its peers train")
    wanted, why = _wanted(manifest, run, peer, gpu)
    short = f"and memory does not suffice for {WORDS[wanted]}"
    if wanted is Role.TRAINER and not may_train:
        short = "and this computer does not meet the run's requirements for training"
    for role in (wanted, Role.ROLLOUT, Role.VALIDATOR):
        if role is Role.TRAINER and not may_train:
            continue
        place = state_place(state, manifest, role, available, gpu)
        if memory_problem(manifest, role, available, gpu, place) is None:
            lacks = "" if role is wanted else f", {short}"
            need = memory_need(manifest, role, sole_process(gpu), place)
            taken = f"{size(need.host)} of memory" + (f" and {size(need.gpu)} of the GPU's" if need.gpu else "")
            return RoleChoice(role, f"{why}{lacks}; {WORDS[role]} takes {taken}")
    return RoleChoice(Role.SEED, f"memory suffices neither for training nor for rollouts ({size(available)} are free)")


def _wanted(manifest: RunManifest, run: Hash, peer: PeerId, gpu: int | None) -> tuple[Role, str]:
    if manifest.founders != "anyone" and peer in manifest.founders:
        return Role.TRAINER, "this peer is a founder, and the run waits for its founders to train"
    if manifest.founders == "anyone" and peer == manifest.organiser:
        return Role.TRAINER, "anybody may begin the run, and this peer is its organiser"
    if manifest.founders == "anyone" and gpu is not None and memory_problem(manifest, Role.TRAINER, 1 << 62, gpu) is None:
        return Role.TRAINER, "anybody may begin the run, and this computer has a GPU that can train it"
    if hash_bytes("role", run + peer.encode())[0] % VALIDATE_ONE_IN == 0:
        return Role.VALIDATOR, f"one in {VALIDATE_ONE_IN} of the peers that do not train verifies, and this peer was drawn"
    return Role.ROLLOUT, "others train in this run"


# ------------------------------------------------------------------------------------------------------------------------


FOUNDER_RESTS = (
    "this peer is a founder of the run, and does not vote with the role {role}: until four peers have earned a vote, the "
    "run may stand still without it; join with --role trainer, or name other founders in the run file"
)


def check_together(manifest: RunManifest, peers: int) -> None:
    """Raise `PeerError` unless memory suffices for this many peers, all of which start while the memory is still free."""
    need, available = memory_need(manifest, setup=sole_process(free_gpu_memory())), available_memory()
    if peers * need.host > available:
        raise PeerError(
            f"{peers} peers need about {size(peers * need.host)} of memory (each {size(need.peer)}, its trainer "
            f"{size(need.trainer)}) and {size(available)} are free here; start fewer, or choose a smaller model",
            ExitCode.RESOURCES,
        )


async def chosen_role(
    manifest: RunManifest,
    run: Hash,
    peer: PeerId,
    emit: Callable[[Event], None],
    wanted: Role | None = None,
    state: str = "auto",
    *,
    may_train: bool = True,
) -> Role:
    """Return the role that the peer's owner chose, or else one that suits the run and this computer.

    Emits a warning if a founder's chosen role may make the run wait; in a run with rollouts, emits the reason for the role
    if it was chosen here.
    """
    if wanted is not None:
        if wanted is not Role.TRAINER and manifest.founders != "anyone" and peer in manifest.founders:
            emit(Notice("warning", FOUNDER_RESTS.format(role=wanted.value)))
        return wanted
    available, gpu = await trio.to_thread.run_sync(available_memory), await trio.to_thread.run_sync(free_gpu_memory)
    role, reason = choose_role(manifest, run, peer, available, gpu, state, may_train=may_train)
    if manifest.rl is not None:
        details = {"role": role.value, "reason": reason}
        emit(Notice("info", f"role {role.value}: {reason}", NoticeCode.ROLE_CHOSEN, details))
    return role


def check_generator(wanted: GeneratorName) -> None:
    """Raise `PeerError` if the configured generator cannot be used here."""
    with told_as(ExitCode.RESOURCES, ImportError):
        choose_generator(wanted, free_gpu_memory() is not None)


IN_FILES = (
    "memory is short ({need} for a peer with its state in memory, and {available} are free), so the state lies in files, "
    'and rounds get slower; to keep it in memory, set state = "ram"'
)


class TrainerDivision(NamedTuple):
    """Processes of a trainer.  setup: their number and kind.  gpu: free bytes of the fullest GPU; None on a CPU.

    gpus: numbers of the GPUs, with commas between them; empty on a CPU.
    """

    setup: TrainerSetup
    gpu: int | None = None
    gpus: str = ""


MISSING_GPUS = "--gpus {gpus} names GPUs that this computer does not have (it has {here}, numbered from 0); give "
"other numbers, or leave --gpus out"
ONE_PROCESS = (
    "a peer that makes or verifies rollouts has one process; leave --processes out, start a peer for each GPU (--gpus 0, "
    "--gpus 1), or train with --role trainer"
)
GENERATOR_HOLDS_ALL = (
    "a peer that makes rollouts reads the whole frozen model for each token, so its layers stay where it computes; leave "
    "--offload out, or verify rollouts (--role validator)"
)
ONE_EACH = "each GPU has one process, and --processes divides a CPU; leave it out, or name GPUs with --gpus"


def check_division(
    manifest: RunManifest, role: Role, gpus: str | None, processes: int | None, offload: str = "auto"
) -> TrainerDivision:
    """Return the division of the trainer; raise `PeerError` if it is not possible.

    gpus: "all", or numbers of GPUs with commas between them, which share the model; None for one.  processes: number of
    processes that share the model on a CPU; None for one.  offload: the setting of this name; with "auto", parameters and
    optimiser, or beside an adapter the frozen layers, lie in the computer's memory if even the smallest micro-batch with all
    layers computed again does not fit on the GPU.  A CPU leaves frozen layers in their files if its memory does not suffice.
    """
    if role is Role.SEED:
        return TrainerDivision(sole_process(None))
    free, ranks = free_gpu_memories(), processes or 1
    if ranks > 1 and free:
        raise PeerError(ONE_EACH, ExitCode.RESOURCES)
    numbers = [free.index(max(free))] if free else []
    if gpus is not None:
        numbers = list(range(len(free))) if gpus == "all" else [int(number) for number in gpus.split(",")]
        if not numbers or max(numbers) >= len(free):
            raise PeerError(MISSING_GPUS.format(gpus=gpus, here=len(free) or "none"), ExitCode.RESOURCES)
        ranks, free = len(numbers), [min(free[number] for number in numbers)]
    if ranks > 1 and role is not Role.TRAINER:
        raise PeerError(ONE_PROCESS, ExitCode.RESOURCES)
    gpu = max(free, default=None)
    setup = replace(sole_process(gpu), ranks=ranks)
    if manifest.adapter is not None and offload == "on" and role is Role.ROLLOUT:
        raise PeerError(GENERATOR_HOLDS_ALL, ExitCode.RESOURCES)
    offloads = offload == "on" or (offload == "auto" and _is_short(manifest, role, setup, gpu))
    setup = replace(setup, offload=offloads and _can_offload(manifest, role, gpu))
    return TrainerDivision(setup, gpu, ",".join(map(str, numbers)))


def _can_offload(manifest: RunManifest, role: Role, gpu: int | None) -> bool:
    """Return True if a process of this role can work without all of its model where it computes.

    gpu: free bytes, None on a CPU, which leaves frozen layers in their files, if these have the format that it needs.
    """
    if manifest.base is None:
        return role is Role.TRAINER
    return role in (Role.TRAINER, Role.VALIDATOR) and (gpu is not None or manifest.base.format == "bf16")


def _is_short(manifest: RunManifest, role: Role, setup: TrainerSetup, gpu: int | None) -> bool:
    """Return True if memory is short where the trainer computes, and not if it offloads.  gpu: free bytes, None on a CPU."""
    whole, offloading = (memory_need(manifest, role, replace(setup, offload=offload)) for offload in (False, True))
    if gpu is not None:
        return whole.gpu > gpu
    return manifest.adapter is not None and offloading.host < whole.host and available_memory() < whole.host


def may_offload(manifest: RunManifest, role: Role, division: TrainerDivision, place: StatePlace) -> bool:
    """Return True if the trainer can keep parameters and optimiser, or frozen layers, in memory beside a GPU."""
    setup = replace(division.setup, offload=True)
    fits = memory_problem(manifest, role, available_memory(), division.gpu, place, setup) is None
    return division.gpu is not None and _can_offload(manifest, role, division.gpu) and fits


def check_memory(
    manifest: RunManifest,
    role: Role,
    state: str,
    emit: Callable[[Event], None],
    division: TrainerDivision | None = None,
) -> StatePlace:
    """Return the place of the peer's state; raise `PeerError` with numbers if memory does not suffice.

    state: the setting of this name; with "auto", a notice gives the reason for files.  division: the trainer's processes;
    None for one process.
    """
    division = division or check_division(manifest, role, None, None)
    available, setup, gpu = available_memory(), division.setup, division.gpu
    place = state_place(state, manifest, role, available, gpu, setup)
    problem = memory_problem(manifest, role, available, gpu, place, setup)
    if problem is not None:
        raise PeerError(problem, ExitCode.RESOURCES)
    if role is Role.TRAINER:
        emit(Notice("info", training_sentence(manifest, setup, gpu, place, available)))
    elif setup.offload and gpu is not None:
        emit(Notice("info", offload_sentence(manifest, gpu, memory_need(manifest, role, setup, place), available)))
    if state == "auto" and place is StatePlace.DISK:
        whole = memory_need(manifest, role, setup).host
        emit(Notice("info", IN_FILES.format(need=size(whole), available=size(available))))
    return place
