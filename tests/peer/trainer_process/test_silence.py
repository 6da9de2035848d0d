"""A trainer that says nothing: ended if it hangs, and left alone while it computes on a busy computer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from peer.trainer_process import process as trainer_process
from peer.trainer_process.channel import TrainerChannel
from peer.trainer_process.process import START_DEADLINE_S, TrainerProcess, TrainerSettings
from protocol.chain.outer_state import SharedRegion
from tests.trainer import small

BUSY = "this computer is too busy (load 50 on 2 cores)"


class SilentChannel:
    """A trainer that has work and says nothing."""

    pid, busy = 17, True

    def __init__(self) -> None:
        self.process, self.heard_at = self, trio.current_time()
        self.killed: list[tuple[float, str]] = []

    def kill(self, fault: str) -> None:
        self.killed.append((trio.current_time(), fault))


def watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, used_s: Callable[[float], float], load: float, until_s: float
) -> tuple[list[tuple[float, str]], list[str]]:
    """When and why a silent trainer is killed that starts and has used so much processor time, and what its user is told."""
    told: list[str] = []
    monkeypatch.setattr(trainer_process, "processor_time", lambda pid: used_s(trio.current_time()))
    monkeypatch.setattr(trainer_process, "load_average", lambda: load)
    monkeypatch.setattr(trainer_process, "usable_cores", lambda: 2)

    async def main() -> list[tuple[float, str]]:
        theta = SharedRegion(4 * small.PARAMETERS)
        settings = TrainerSettings(small.SECTIONS, small.LAYOUT.payload_bytes, folder / "trainer.log")
        trainer, channel = TrainerProcess(settings, theta), SilentChannel()
        trainer.report_load(told.append)
        begun = trio.current_time()
        with trio.move_on_after(until_s):
            await cast(Any, trainer)._watch(cast(TrainerChannel, channel))
        theta.close()
        return [(at - begun, fault) for at, fault in channel.killed]

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)), told


def test_a_start_that_computes_beside_fifty_processes_is_left_alone_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, told = watched(tmp_path, monkeypatch, lambda now: now / 25, 50.0, 5 * START_DEADLINE_S)
    assert not killed and told == [BUSY]


@pytest.mark.parametrize(("used", "load"), [(0.0, 50.0), (0.0, 0.5), (1.0, 0.5)], ids=["hangs, busy", "hangs", "spins"])
def test_a_start_that_hangs_or_spins_is_ended_at_the_deadline(
    used: float, load: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, told = watched(tmp_path, monkeypatch, lambda now: used * now, load, START_DEADLINE_S + 20)
    at, fault = killed[0]
    assert START_DEADLINE_S < at <= START_DEADLINE_S + 10 and not told
    assert fault == f"the trainer said nothing for {at:.0f} s, in which it computed for {used * (at - 5):.0f} s"
