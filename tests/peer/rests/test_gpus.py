"""What NVML tells, with cards that are lost, or tell nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass

from peer.rests.sensors import Gpus, is_trainer

OURS = 7


@dataclass
class Process:
    """In either of NVML's lists."""

    pid: int
    smUtil: int = 0
    timeStamp: int = 0


class NotFound(Exception): ...


class Driver:
    """Four cards: one is lost, one tells nothing, on the last two something runs."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError_NotFound = NotFound

    def __init__(self, computing: list[int], *samples: list[Process] | None) -> None:
        self.computing, self.samples, self.asked = computing, list(samples), list[int]()

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 0:
            raise RuntimeError("GPU is lost")
        return index

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        if handle == 1:
            raise RuntimeError("not supported")
        return 40 + handle

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Process]:
        return [Process(pid) for pid in self.computing] if handle == 3 else [Process(99)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Process]:
        assert handle == 3, "on the others we do not compute"
        self.asked.append(since)
        told = self.samples.pop(0)
        if told is None:
            raise NotFound
        return told


def gpus(driver: Driver) -> Gpus:
    return Gpus(driver, lambda pid: pid == OURS)


def test_a_card_that_is_lost_does_not_hide_the_others() -> None:
    assert gpus(Driver([])).hottest() == 43.0


def test_what_others_use_of_the_card_on_which_we_compute() -> None:
    driver = Driver([OURS, 99], [Process(OURS, 90, 5), Process(99, 30, 5), Process(98, 20, 6)], None, [])
    asked = gpus(driver)
    assert [asked.used_by_others() for _ in range(3)] == [50.0, 0.0, 0.0]
    assert driver.asked == [0, 6, 6], "each sample counts once"


def test_where_we_are_not_seen_nobody_can_tell() -> None:
    assert gpus(Driver([99])).used_by_others() is None, "in a container processes have other numbers"
    assert gpus(Driver([OURS])).used_by_others() is None, "no counter: the fourth card raises"


def test_a_trainer_is_told_by_its_command_line() -> None:
    assert not is_trainer(os.getpid()) and not is_trainer(1 << 30)
