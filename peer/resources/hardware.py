"""Hardware of this computer as its owner sees it: load, memory, heat and power, and the energy that a peer's work takes.

NVIDIA GPUs tell their figures through NVML, the processor through psutil, and its power through Linux's powercap, which only
an administrator can read on many systems.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import trio

from peer.files import read_json, write_atomically
from peer.resources.computer import memory_limit, open_nvml, visible_gpus
from peer.rests.sensors import quietly
from protocol.events.status import ComputerStatus, GpuStatus
from protocol.formatting import clean

# ------------------------------------------------------------------------------------------------------------------------
# Readings.


POWERCAP = Path("/sys/class/powercap")
PROCESSORS = Path("/proc/cpuinfo")
MOST_NAME = 60


class Hardware:
    """Reader of this computer's figures.

    gpus: returns the GPUs that the peer may use, as the setting `gpus` has them: "all", or numbers with commas.

    `read` blocks for milliseconds if all is well, and never raises.
    """

    def __init__(
        self,
        gpus: Callable[[], str],
        powercap: Path = POWERCAP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus, self._clock = gpus, clock
        self._nvml: Any = None
        self._tried = False
        self._processor = processor_name(PROCESSORS)
        self._package = PackagePower(powercap, clock)
        self._times: tuple[float, float] | None = None
        """Seconds of all cores together at the last reading: busy, and in all."""

    def read(self) -> ComputerStatus:
        """Return the present figures, without energy."""
        memory = quietly(psutil.virtual_memory)
        return ComputerStatus(
            processor=self._processor,
            busy_share=self._busy_share(),
            memory_used=int(memory.total - memory.available) if memory is not None else 0,
            memory_total=int(memory.total) if memory is not None else 0,
            memory_limit=memory_limit(),
            watts=self._package.read(),
            gpus=[self._read_gpu(handle) for handle in self._handles()],
        )

    def _busy_share(self) -> float | None:
        """Return the share of the cores' time since the last reading in which they worked."""
        times = quietly(psutil.cpu_times)
        if times is None:
            return None
        busy = float(times.user + getattr(times, "nice", 0.0) + times.system)
        whole = busy + float(times.idle + getattr(times, "iowait", 0.0))
        last, self._times = self._times, (busy, whole)
        if last is None or whole <= last[1]:
            return None
        return min(1.0, max(0.0, (busy - last[0]) / (whole - last[1])))

    def _handles(self) -> Iterator[Any]:
        """Yield NVML's handles of the GPUs that the peer may use; None for a lost GPU."""
        if not self._tried:
            self._tried, self._nvml = True, quietly(open_nvml)
        if self._nvml is None:
            return
        visible = quietly(lambda: list(visible_gpus(self._nvml))) or []
        chosen = self._gpus()
        numbers = range(len(visible)) if chosen == "all" else map(int, chosen.split(","))
        for number in numbers:
            if number < len(visible):
                yield quietly(visible[number])

    def _read_gpu(self, handle: Any) -> GpuStatus:
        nvml = self._nvml
        if handle is None:
            return GpuStatus(name="lost")
        name = quietly(nvml.nvmlDeviceGetName, handle) or ""
        load = quietly(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = quietly(nvml.nvmlDeviceGetMemoryInfo, handle)
        temperature = quietly(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = quietly(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuStatus(
            name=clean(name.decode("utf-8", "replace") if isinstance(name, bytes) else name, MOST_NAME),
            busy_share=load.gpu / 100 if load is not None else None,
            memory_used=int(memory.used) if memory is not None else None,
            memory_total=int(memory.total) if memory is not None else None,
            temperature=float(temperature) if temperature is not None else None,
            watts=milliwatts / 1000 if milliwatts is not None else None,
        )


def processor_name(file: Path) -> str:
    """Return the model of the processor; its architecture if the system does not tell more."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return clean(" ".join(value.split()), MOST_NAME)
    return clean(platform.processor() or platform.machine(), MOST_NAME)


class PackagePower:
    """Average power of the processor packages between two readings of their counters of energy (RAPL, Linux).

    A package is a folder `intel-rapl:N`, also on AMD; its parts, `intel-rapl:N:M`, count in it.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._last: tuple[float, dict[Path, int]] | None = None

    def read(self) -> float | None:
        """Return the watts since the last reading; None if a counter cannot be read, or was not read before."""
        now, counters = self._clock(), self._counters()
        last, self._last = self._last, (now, counters)
        if not counters or last is None or last[1].keys() != counters.keys() or now <= last[0]:
            return None
        microjoules = 0
        for zone, count in counters.items():
            before = last[1][zone]
            if count < before:  # it begins again at 0 after its maximum
                with suppress(OSError, ValueError):
                    count += int((zone / "max_energy_range_uj").read_text())
            microjoules += max(0, count - before)
        return microjoules / 1e6 / (now - last[0])

    def _counters(self) -> dict[Path, int]:
        """Return the microjoules of each package; nothing if one cannot be read."""
        try:
            zones = sorted(self._folder.glob("intel-rapl:*"))
            packages = [
                zone
                for zone in zones
                if zone.name.count(":") == 1 and (zone / "name").read_text().strip().startswith("package")
            ]
            return {zone: int((zone / "energy_uj").read_text()) for zone in packages}
        except (OSError, ValueError):
            return {}


# ------------------------------------------------------------------------------------------------------------------------
# Energy, kept in a file of the data directory.
#
# The file is written whole or not at all, so it survives any death; a killed process loses only the energy since the last
# write.


FILE = "energy.json"
MAX_FILE_BYTES = 1024
MOST_JOULES = 1e15
LOOK_S = 2.0
KEEP_S = 20.0
"""Seconds between two writes of the energy: a killed process loses at most the energy of this time."""
MOST_GAP_S = 5 * LOOK_S
"""Longest time for which a reading counts, because a driver may hang for a while."""


class EnergyMeter:
    """Energy that a peer's work has taken: power multiplied by the time since the previous reading.

    joules: energy since the start; None if no power was ever read.  earlier: joules before the start, in the same data
    directory.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.earlier = 0.0
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            joules = float(read_json(self._path, MAX_FILE_BYTES)["joules"])
            self.earlier = joules if math.isfinite(joules) and 0 <= joules <= MOST_JOULES else 0.0
        self.joules: float | None = None
        self._kept: float | None = None
        self._at: float | None = None

    @property
    def all_joules(self) -> float | None:
        """Joules of all peers until now; None if no power was ever read."""
        return self.earlier + (self.joules or 0.0) if self.earlier or self.joules is not None else None

    def count(self, watts: float | None, at: float, works: bool) -> None:
        """Count power read at the time `at`.  works: False while the peer rests, when nothing is counted."""
        last, self._at = self._at, at
        if watts is None:
            return
        self.joules = self.joules or 0.0
        if works and last is not None:
            self.joules += watts * min(max(0.0, at - last), MOST_GAP_S)

    def keep(self) -> None:
        """Write the energy if it has grown.  Blocking.  Raises OSError."""
        if self.joules and self.joules != self._kept:
            joules = self.joules
            write_atomically(self._path, json.dumps({"joules": self.earlier + joules}).encode())
            self._kept = joules


# ------------------------------------------------------------------------------------------------------------------------


class HardwareMonitor:
    """Monitor that reads the hardware regularly, in `run`, and counts its energy.

    ask: returns the present figures; None if the hardware does not answer in time.  works: returns False while the peer
    rests.  status: the last figures; None before the first.
    """

    def __init__(
        self, meter: EnergyMeter, ask: Callable[[], Awaitable[ComputerStatus | None]], works: Callable[[], bool]
    ) -> None:
        self._meter, self._ask, self._works = meter, ask, works
        self.status: ComputerStatus | None = None

    async def run(self) -> None:
        """Read and count until cancelled."""
        kept_at = trio.current_time()
        try:
            while True:
                told = await self._ask()
                now = trio.current_time()
                if told is not None:
                    known = [watts for watts in (told.watts, *(gpu.watts for gpu in told.gpus)) if watts is not None]
                    self._meter.count(math.fsum(known) if known else None, now, self._works())
                    self.status = replace(told, joules=self._meter.joules, all_joules=self._meter.all_joules)
                if now - kept_at >= KEEP_S:
                    kept_at = now
                    with suppress(OSError):  # the store reports a full disk
                        await trio.to_thread.run_sync(self._meter.keep)
                await trio.sleep(LOOK_S)
        finally:
            with suppress(OSError):
                self._meter.keep()
