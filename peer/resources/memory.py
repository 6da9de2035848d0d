"""Memory that a run takes in the peer and in its trainer, from the manifest alone.

Memory that both processes share (the parameters, the contribution) is the peer's and counted once.  `trainer.memory`
computes the trainer's part; `python -m benchmarks.memory` compares the sum with the use of real peers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from kernels.codec import encoded_bytes
from kernels.layout import chunk_layout, payload_bytes
from peer.formatting import size
from protocol.allreduce.buffers import PART_BUFFERS
from protocol.run.manifest import RunManifest
from protocol.wire.presence import Role
from trainer.config import TrainingConfig
from trainer.memory import TrainerWork, trainer_memory

# ------------------------------------------------------------------------------------------------------------------------
# The GPU on which a trainer would compute, found without loading torch.


def free_gpu_memory() -> int | None:
    """Return the free bytes of the roomiest NVIDIA GPU; None if a trainer would compute on the CPU.

    A trainer does so if torch is built for CPUs, if CUDA_VISIBLE_DEVICES hides all GPUs, or if no GPU works.
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
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return max((int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in handles), default=None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


# ------------------------------------------------------------------------------------------------------------------------


PROCESS_BYTES = 130 << 20
"""Bytes for Python, the network and its connections."""
WORK = {Role.TRAINER: TrainerWork.TRAIN, Role.ROLLOUT: TrainerWork.GENERATE, Role.VALIDATOR: TrainerWork.VERIFY}
MEMORY_OF_FILES = 6
"""Bytes in the trainer process for each byte of a tokenizer or of chats."""
CHUNKS_AT_WORK = 16
"""Chunks that are averaged, sent, applied or written at one time, besides the parts that wait."""


@dataclass(frozen=True)
class Need:
    """Peak memory in bytes.  trainer: of the computer's memory; gpu: of the GPU's, 0 without one."""

    peer: int
    trainer: int
    gpu: int

    @property
    def host(self) -> int:
        """Bytes of the computer's memory, both processes together."""
        return self.peer + self.trainer


def memory_need(manifest: RunManifest, role: Role = Role.TRAINER, device: str = "cpu") -> Need:
    """Return the memory that a peer of this role needs.  device: "cpu" or "cuda", where its trainer computes."""
    payload = payload_bytes(chunk_layout(manifest.parameters, manifest.chunk_parameters))
    chunk = encoded_bytes(min(manifest.chunk_parameters, manifest.parameters))
    peer = PROCESS_BYTES + manifest.state_bytes + payload + (PART_BUFFERS + CHUNKS_AT_WORK) * chunk  # the round's result
    if role is Role.SEED:
        return Need(peer, 0, 0)
    trainer = trainer_memory(TrainingConfig.from_sections(manifest.trainer_sections()), device, WORK[role])
    files = MEMORY_OF_FILES * sum(file.size for file in manifest.files.values())
    contribution = payload if role is Role.TRAINER else 0
    return Need(peer + contribution, trainer.host + files, trainer.device)


def memory_problem(manifest: RunManifest, role: Role, available: int, gpu: int | None) -> str | None:
    """Return why the run does not fit, with numbers and a remedy; None if it fits.

    available: bytes of memory.  gpu: free bytes of the GPU's memory, None if the trainer computes on the CPU.
    """
    need = memory_need(manifest, role, "cpu" if gpu is None else "cuda")
    remedies = ["close other programs"]
    seed = memory_need(manifest, Role.SEED)
    if role is not Role.SEED and seed.host <= available:
        remedies.append(f"keep and serve the run without training (--role seed, {size(seed.host)})")
    remedy = ", ".join([*remedies, "or join a smaller run"])
    if need.host > available:
        parts = f" ({size(need.peer)} in the peer, {size(need.trainer)} in the trainer)" if need.trainer else ""
        return f"the run needs about {size(need.host)} of memory{parts} and {size(available)} are free here; {remedy}"
    if gpu is not None and need.gpu > gpu:
        return f"the run needs about {size(need.gpu)} of the GPU's memory and {size(gpu)} are free there; {remedy}"
    return None


def memory_line(manifest: RunManifest) -> str:
    """Describe the memory of each role for a person who looks at a run."""
    need = memory_need(manifest)
    others = [(Role.ROLLOUT, "a rollout peer"), (Role.VALIDATOR, "a validator")] if manifest.rl is not None else []
    more = [f"{size(memory_need(manifest, role).host)} for {name}" for role, name in [*others, (Role.SEED, "a seed")]]
    return (
        f"{size(need.host)} for a peer that trains on its CPU ({size(need.peer)} in the peer, {size(need.trainer)} in "
        f"the trainer), {', '.join(more)}"
    )
