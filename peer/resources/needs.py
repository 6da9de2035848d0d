"""Needs of a run, for people who decide whether to take part: memory by kind of computer, and bytes and time of a round."""

from __future__ import annotations

from peer.resources.computer import memory_need, shared_bytes
from peer.resources.requirements import training_needs
from protocol.formatting import duration, size
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role
from trainer.memory import TrainerSetup

GPU_SIZES = (12, 24, 80)
"""Memory of usual GPUs, in GB."""
NODE_GPUS, NODE_GPU_SIZE = 8, 80
LINES = (10, 50, 200, 1000)
"""Speeds of usual lines in each direction, in Mbit/s."""
MEMBERS = 8
"""Members of the round whose exchange is described; with many more, a member sends at most an eighth more."""
FULL = 0.9
"""Share of a GPU's memory that a trainer can use."""


def need_lines(manifest: RunManifest, *, whole: bool = True) -> list[tuple[str, str]]:
    """Return what a run needs: (subject, statement).

    whole: with the memory of each kind of peer, and the GPUs that will do even if the smallest of `GPU_SIZES` does.
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
        host += (
            f"; or, with parameters and optimiser in the computer's memory (--offload), {size(offloading.gpu)} of a GPU's "
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
