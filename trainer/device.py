"""Devices: which one a trainer computes on, in which precision, and how fast it multiplies matrices.

In torch ROCm has CUDA's names. Nothing was run on ROCm, or on MPS, which is used only if it is named.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

BF16_GAIN = 1.2
"""Least speed of bf16 products, as a multiple of fp32's, at which a trainer computes in bf16: conversions cost time, too."""
CPU_SIZE, GPU_SIZE = 512, 4096
"""Sizes of the square matrices of a measurement; without instructions for bf16, a CPU needs 0.5 s for its product."""
REPEATS = 5


def pick_device(name: str) -> torch.device:
    """Return the torch device of this name; `auto` is CUDA or ROCm if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def is_gpu(device: torch.device) -> bool:
    """Return True for a device with memory of its own, which works while the host does something else."""
    return device.type != "cpu"


def default_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of products on a device that was not measured."""
    return torch.bfloat16 if is_gpu(device) else torch.float32


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def on_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on a device.  A GPU copies it while the host goes on."""
    values = torch.from_numpy(array)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def release_memory() -> None:
    """Give back the GPU memory that torch has reserved and does not use."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


class GpuMemory:
    """Memory that some work takes on a GPU, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0

    def begin(self) -> None:
        """Begin to measure."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def used(self) -> int:
        """Return the most that was allocated since `begin`, beyond what was allocated then."""
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def free(self) -> int:
        """Return what could still have been allocated at that moment."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device) - torch.cuda.max_memory_allocated(self._device)


@dataclass(frozen=True)
class MatmulSpeed:
    """Measured speed of products of square matrices, in FLOP/s.  bf16: 0 if the device cannot multiply in bf16."""

    fp32: float
    bf16: float

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which this device should train."""
        return torch.bfloat16 if self.bf16 >= BF16_GAIN * self.fp32 else torch.float32


@cache
def matmul_speed(device: torch.device) -> MatmulSpeed:
    """Measure a device, once in a process.  Takes up to a second."""
    try:
        bf16 = _flops(device, torch.bfloat16)
    except RuntimeError:  # the device has no such product
        bf16 = 0.0
    return MatmulSpeed(_flops(device, torch.float32), bf16)


def _flops(device: torch.device, dtype: torch.dtype) -> float:
    size = GPU_SIZE if is_gpu(device) else CPU_SIZE
    one, other = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < 0.1:  # the first call is slower, and not the median of several
        wait_for(device)
        begun = time.perf_counter()
        torch.mm(one, other)
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 / median(seconds)
