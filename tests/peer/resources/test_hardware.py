"""What a computer says of itself, and the energy that a peer's work takes, with drivers and clocks that are made up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
import trio
import trio.testing

from peer.resources import computer
from peer.resources.hardware import (
    FILE,
    KEEP_S,
    LOOK_S,
    MOST_GAP_S,
    EnergyMeter,
    Hardware,
    HardwareMonitor,
    PackagePower,
    processor_name,
)
from protocol.events.status import ComputerStatus, GpuStatus

# ------------------------------------------------------------------------------------------------------------------------
# GPUs, through a library that answers as pynvml does: milliwatts, percent, and its own errors.


class Driver:
    """The part of pynvml that is used.  lacking: functions that the card does not support."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, cards: int = 1, lacking: tuple[str, ...] = (), error: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        self.cards, self.lacking, self.error, self.inits = cards, lacking, error, 0

    def nvmlInit(self) -> None:
        self.inits += 1
        self._check("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._check(f"card {index}")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        self._check("nvmlDeviceGetName")
        return f"NVIDIA Card {handle}\x1b[31m"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._check("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(free=18_000_000_000, used=6_000_000_000, total=24_000_000_000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._check("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self._check("nvmlDeviceGetTemperature")
        return 71

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._check("nvmlDeviceGetPowerUsage")
        return 310_400

    def _check(self, name: str) -> None:
        if name in self.lacking:
            raise pynvml.NVMLError(self.error)


FULL = GpuStatus(
    name="NVIDIA Card 0[31m",
    busy_share=0.87,
    memory_used=6_000_000_000,
    memory_total=24_000_000_000,
    temperature=71.0,
    watts=310.4,
)


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that has a driver loaded in place of NVIDIA's."""
    monkeypatch.setattr(computer, "version", lambda name: "2.13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield lambda driver: monkeypatch.setitem(sys.modules, "pynvml", driver)


def gpus_of(chosen: str = "0") -> list[GpuStatus]:
    return Hardware(lambda: chosen).read().gpus


def test_a_card_tells_all_figures(with_driver: Any) -> None:
    with_driver(Driver())
    assert gpus_of() == [FULL], "without control characters"


@pytest.mark.parametrize(
    ("lacks", "figures"),
    [
        ("nvmlDeviceGetPowerUsage", {"watts": None}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used": None, "memory_total": None}),
    ],
)
def test_a_figure_that_a_card_lacks_is_unknown_and_the_others_are_told(
    with_driver: Any, lacks: str, figures: dict[str, Any]
) -> None:
    with_driver(Driver(lacking=(lacks,)))
    assert gpus_of() == [replace(FULL, **figures)]


def test_without_a_driver_there_is_no_gpu_and_it_is_tried_once(with_driver: Any) -> None:
    driver = Driver(lacking=("nvmlInit",), error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    with_driver(driver)
    told = Hardware(lambda: "0")
    assert [told.read().gpus, told.read().gpus] == [[], []] and driver.inits == 1


@pytest.mark.parametrize(
    ("chosen", "visible", "numbers"),
    [("0", None, [0]), ("all", None, [0, 1, 2]), ("0,2", None, [0, 2]), ("0", "2,1", [2]), ("7", None, []), ("0", "", [])],
)
def test_only_the_gpus_that_the_peer_may_use_are_told(
    with_driver: Any, monkeypatch: pytest.MonkeyPatch, chosen: str, visible: str | None, numbers: list[int]
) -> None:
    with_driver(Driver(3))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in gpus_of(chosen)] == [f"NVIDIA Card {number}[31m" for number in numbers]


# ------------------------------------------------------------------------------------------------------------------------
# The processor.


def test_the_processor_is_busy_for_the_share_of_time_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [(10.0, 1.0, 5.0, 100.0, 4.0), (12.0, 1.0, 6.0, 106.0, 5.0), (12.0, 1.0, 6.0, 106.0, 5.0)]
    kinds = ("user", "nice", "system", "idle", "iowait")
    read = iter([SimpleNamespace(**dict(zip(kinds, each, strict=True))) for each in times])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(read))
    told = Hardware(lambda: "0")
    assert [told.read().busy_share for _ in range(3)] == [None, 0.3, None]


def test_the_processor_has_the_name_that_the_system_tells(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name : \x1b]0;x\x07" + "y" * 99)
    assert processor_name(tmp_path / "cpuinfo") == "]0;x" + "y" * 56
    assert processor_name(tmp_path / "none"), "its architecture"


def zone(folder: Path, name: str, kind: str, microjoules: int) -> Path:
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "name").write_text(f"{kind}\n")
    (place / "max_energy_range_uj").write_text("1000000000\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place


def test_the_power_of_all_packages_without_their_parts(tmp_path: Path) -> None:
    seconds = iter([0.0, 2.0, 4.0])
    power = PackagePower(tmp_path, lambda: next(seconds))
    for name, kind, start in (
        ("intel-rapl:0", "package-0", 990_000_000),
        ("intel-rapl:0:0", "core", 5),
        ("intel-rapl:1", "package-1", 0),
        ("intel-rapl:2", "psys", 0),
    ):
        zone(tmp_path, name, kind, start)
    assert power.read() is None, "nothing to compare with"
    zone(tmp_path, "intel-rapl:0", "package-0", 50_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 20_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 900_000_000)
    assert power.read() == 40.0, "60 J over the counter's end, and 20 J, in 2 s"
    (second / "energy_uj").write_text("")
    assert power.read() is None


# ------------------------------------------------------------------------------------------------------------------------
# Energy.


def test_energy_is_power_by_time_and_rests_count_nothing(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path)
    assert meter.joules is None and meter.all_joules is None
    meter.count(None, 0.0, True)
    assert meter.joules is None, "nothing tells its power"
    for at, watts, works in ((2.0, 100.0, True), (4.0, 150.0, True), (6.0, 150.0, False), (8.0, None, True)):
        meter.count(watts, at, works)
    assert meter.joules == 100.0 * 2.0 + 150.0 * 2.0
    meter.count(100.0, 8.0 + 3600.0, True)
    assert meter.joules == 500.0 + 100.0 * MOST_GAP_S, "a driver that hung for an hour told nothing of it"


@pytest.mark.parametrize("text", ["", "[", "{}", '{"joules": "x"}', '{"joules": -1}', '{"joules": NaN}', "[1]", "9" * 5000])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert EnergyMeter(tmp_path).all_joules is None


KILLED = """
import sys
from pathlib import Path
from peer.resources.hardware import EnergyMeter
meter = EnergyMeter(Path(sys.argv[1]))
for second in range(1 << 30):
    meter.count(1.0, float(second), True)
    meter.keep()
    print(meter.joules, flush=True)
"""


@pytest.mark.slow
def test_energy_survives_a_kill_in_the_middle_of_its_writes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = [float(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGKILL)
        told += [float(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    kept = EnergyMeter(tmp_path).all_joules
    assert kept is not None and told[-1] <= kept <= told[-1] + 1.0


def test_the_hardware_is_read_calmly_and_its_energy_kept_and_a_hung_driver_stops_nothing(tmp_path: Path) -> None:
    readings: list[float] = []
    told = ComputerStatus(processor="x", watts=50.0, gpus=[GpuStatus(watts=150.0), GpuStatus()])

    async def main() -> None:
        async def ask() -> ComputerStatus | None:
            readings.append(trio.current_time())
            return told if len(readings) != 3 else None

        monitor = HardwareMonitor(EnergyMeter(tmp_path), ask, lambda: True)
        assert monitor.status is None
        with trio.move_on_after(KEEP_S + LOOK_S / 2):
            await monitor.run()
        status = monitor.status
        assert status is not None and status == replace(told, joules=status.joules, all_joules=status.joules)
        assert status.joules == 200.0 * KEEP_S
        assert json.loads((tmp_path / FILE).read_text()) == {"joules": status.joules}

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert readings == [LOOK_S * each for each in range(int(KEEP_S / LOOK_S) + 1)]
