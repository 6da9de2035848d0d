"""The NVIDIA GPUs of this computer: how hot they are, and how busy other programs keep those on which peers compute.

NVML as it is documented: `nvmlDeviceGetProcessUtilization` gives, for each process, the share of a second in which one of
its kernels ran.  Processes are told apart by their IDs, so in a container, which numbers them anew, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINER = b"\0-m\0trainer\0"
"""Part of a trainer's command line, as /proc has it."""
MAX_COMMAND_BYTES = 4096


def is_trainer(pid: int) -> bool:
    """Whether this is a trainer: ours, or that of another peer, which has as much right to the GPU (Linux)."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return TRAINER in file.read(MAX_COMMAND_BYTES)
    except OSError:
        return False


class Gpus:
    """Every question blocks for some milliseconds where all is well, and never raises: None where nobody can tell."""

    def __init__(self, nvml: Any = None, is_ours: Callable[[int], bool] = is_trainer) -> None:
        self._nvml, self._tried = nvml, nvml is not None
        self._is_ours = is_ours
        self._seen: dict[int, int] = {}
        """Of each GPU, the time of the newest sample (µs)."""

    def hottest(self) -> float | None:
        """Celsius."""
        nvml = self._open()
        found = [_quietly(nvml.nvmlDeviceGetTemperature, each, nvml.NVML_TEMPERATURE_GPU) for _, each in self._handles()]
        return max((float(each) for each in found if each is not None), default=None)

    def used_by_others(self) -> float | None:
        """Percent of the last second or so, of the GPU that other programs use most among those with a trainer."""
        found = [self._others_on(index, handle) for index, handle in self._handles()]
        return max((each for each in found if each is not None), default=None)

    def _others_on(self, index: int, handle: Any) -> float | None:
        nvml = self._open()
        computing = _quietly(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        if not any(self._is_ours(each.pid) for each in computing):
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen.get(index, 0))
        except nvml.NVMLError_NotFound:  # nobody used it
            return 0.0
        except Exception:  # a card that does not count, or is lost
            return None
        self._seen[index] = max((each.timeStamp for each in samples), default=self._seen.get(index, 0))
        return float(min(100, sum(each.smUtil for each in samples if not self._is_ours(each.pid))))

    def _handles(self) -> list[tuple[int, Any]]:
        """Of the GPUs that answer: one that is lost must not hide the others."""
        nvml = self._open()
        if nvml is None:
            return []
        indices = range(_quietly(nvml.nvmlDeviceGetCount) or 0)
        found = [(index, _quietly(nvml.nvmlDeviceGetHandleByIndex, index)) for index in indices]
        return [(index, handle) for index, handle in found if handle is not None]

    def _open(self) -> Any:
        """The library, or None where it does not work."""
        if not self._tried:
            self._tried = True
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
            except Exception:  # no library, no driver, no card: each version of it says so in its own way
                self._nvml = None
        return self._nvml


def _quietly(ask: Any, *words: Any) -> Any:
    """What a driver answers; None when it cannot."""
    try:
        return ask(*words)
    except Exception:  # as when a card falls off the bus
        return None
