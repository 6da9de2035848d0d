"""A trainer process whose memory is not enough starts again with less."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from peer.trainer_process.process import MAX_FAILURES, TrainerProcess, TrainerRanks, TrainerSettings
from protocol.chain.outer_state import SharedRegion
from protocol.events.events import Event, Notice
from protocol.trainer_link import TrainerDied
from tests.peer.trainer_process.test_process import SHORT, Bench, nothing, nothing_heard, with_trainer

PLANTED = """
import sys
import torch
from trainer.rank_work import RankWork

def planted(method, rank):
    work = getattr(RankWork, method)

    def runs_out(self, *arguments):
        if not self._spares_memory and self._ranks.number == rank:
            raise torch.OutOfMemoryError("planted by a test")
        return work(self, *arguments)

    setattr(RankWork, method, runs_out)

if "trainer" in sys.orig_argv:
    planted({method!r}, {rank})
"""
"""A module that every Python process imports at its start."""


class Ending(TrainerProcess):
    """Lacks memory in each life."""

    lives = 0

    async def _one_life(self) -> str:
        self.lives += 1
        self._lacked_memory = True
        await trio.lowlevel.checkpoint()
        return "it ended"


def test_only_the_first_lack_of_memory_counts_for_nothing(tmp_path: Path) -> None:
    told: list[Event] = []
    theta = SharedRegion(4096)
    process = Ending(TrainerSettings({}, 4096, tmp_path / "log"), theta, told.append)
    trio.run(process.run, clock=trio.testing.MockClock(autojump_threshold=0))
    theta.close()
    assert process.lives == MAX_FAILURES + 1
    assert [event.text for event in told if isinstance(event, Notice)] == [
        "the trainer ran out of memory, and starts again with less: it ended"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rank", "ranks"), [("measure", 0, 1), ("step", 1, 2)])
def test_a_trainer_starts_again_with_less_and_trains(
    method: str, rank: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PLANTED.format(method=method, rank=rank))
    path = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view

        async def work() -> Any:
            if method == "measure":
                return await trainer.evaluate(theta, nothing)
            return await trainer.compute(SHORT, theta, nothing_heard)

        await trainer.initialise(theta)
        with pytest.raises(TrainerDied):
            await work()
        await trainer.until_ready()
        await work()
        assert (await trainer.compute(SHORT, theta, nothing_heard)).steps == SHORT.steps
        assert len(bench.started) == 2 and trainer._failures == 0

    with_trainer(tmp_path, scenario, ranks=TrainerRanks(processes=ranks))
