"""Devices of a trainer: the choice of a device, its precision, and its measured speed of matrix products.

In torch, ROCm uses CUDA's names. Nothing was run on ROCm, or on MPS, which is used only if it is named.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

BF16_GAIN = 1.2
"""Least speed of bf16 products, as a multiple of fp32's, at which a trainer computes in bf16: conversions also cost time."""
CPU_SIZE, CPU_PEAK_SIZE, GPU_SIZE = 256, 512, 4096
"""Sizes of square matrices: without instructions for bf16, a CPU needs 0.04 s for the smallest, and 0.5 s for the next."""
LEAST_REPEATS, REPEATS, LONGEST_S = 4, 8, 0.05
"""Smallest and largest number of products in a measurement, and the seconds after which only the smallest number is
completed.

The fastest product counts, because other programs may disturb a product, by 50 ms and more on a busy computer.
"""


OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
"""Errors of an allocation for which there is no memory."""


def pick_device(name: str) -> torch.device:
    """Return the torch device of this name; `auto` is CUDA or ROCm if available, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda", 0) if name == "cuda" else torch.device(name)  # a device without a number cannot be current


def pick_devices(name: str, gpus: str, processes: int) -> tuple[torch.device, ...]:
    """Return the devices of a trainer's ranks.

    gpus: "all", or numbers of GPUs with commas between them; empty for one device, of this `name`.  processes: number of
    ranks on a CPU.  Raises ValueError for GPUs that are not here, and for processes on a GPU.
    """
    if not gpus:
        device = pick_device(name)
        if processes > 1 and is_gpu(device):
            raise ValueError("only CPUs are divided between processes; leave --processes out, or name GPUs with --gpus")
        return (device,) * processes
    if processes > 1:
        raise ValueError("each GPU has one process; give --gpus or --processes, not both")
    here = torch.cuda.device_count()
    numbers = list(range(here)) if gpus == "all" else [int(number) for number in gpus.split(",")]
    missing = [number for number in numbers if number >= here]
    if missing or not numbers:
        raise ValueError(f"--gpus {gpus} names GPUs that this computer does not have; it has {here}, numbered from 0")
    return tuple(torch.device("cuda", number) for number in numbers)


def is_gpu(device: torch.device) -> bool:
    """Return True for a device with memory of its own, which works while the host does something else."""
    return device.type != "cpu"


def default_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of products on a device that was not measured."""
    return torch.bfloat16 if is_gpu(device) else torch.float32


def use_device(device: torch.device) -> None:
    """Make a GPU the current one, on which libraries such as Triton start their kernels."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


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
    """Release the GPU memory that torch has reserved and does not use."""
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
        """Return the peak of the memory allocated since `begin`, beyond the memory allocated then."""
        return torch.cuda.max_memory_allocated(self._device) - self._before

    def free(self) -> int:
        """Return the memory that could still have been allocated at the peak."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device) - torch.cuda.max_memory_allocated(self._device)


@dataclass(frozen=True)
class DeviceSpeed:
    """Measured speed of a device.  dtype: precision of products in which it trains.  flops: their speed, in FLOP/s.

    The speed is that of large square matrices, which training cannot exceed.
    """

    dtype: torch.dtype
    flops: float


@cache
def device_speed(device: torch.device) -> DeviceSpeed:
    """Measure a device, once in a process.  Takes about 0.1 s."""
    small, large = (GPU_SIZE, GPU_SIZE) if is_gpu(device) else (CPU_SIZE, CPU_PEAK_SIZE)
    try:
        bf16 = _flops(device, torch.bfloat16, small)
    except RuntimeError:  # the device has no such product
        bf16 = 0.0
    dtype = torch.bfloat16 if bf16 >= BF16_GAIN * _flops(device, torch.float32, small) else torch.float32
    return DeviceSpeed(dtype, _flops(device, dtype, large))


def _flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    one, other = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    if is_gpu(device):
        torch.mm(one, other)  # the first product on a GPU loads its library
    seconds: list[float] = []
    while len(seconds) < LEAST_REPEATS or (len(seconds) < REPEATS and sum(seconds) < LONGEST_S):
        wait_for(device)
        begun = time.perf_counter()
        torch.mm(one, other)
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 / min(seconds)
