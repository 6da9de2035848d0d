"""The GPU that a trainer would compute on, seen without loading torch."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version


def free_gpu_memory() -> int | None:
    """Free bytes of the roomiest NVIDIA GPU; None when a trainer would compute on the CPU.

    That is when torch is built for CPUs, when CUDA_VISIBLE_DEVICES hides all GPUs, or when there is no working one.
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
