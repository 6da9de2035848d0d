"""Trainers of several ranks for tests: this process is rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.chain.outer_state import SharedRegion
from trainer.config import TrainingConfig
from trainer.rank_work import layouts_of
from trainer.ranks import LeadingRank, RankOrder
from trainer.worker import Done, Task, Worker

CPU = torch.device("cpu")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False},
    "qwen2": {"tied": True, "qkv_bias": True},
    "qwen3": {"tied": False, "qk_norm": True, "head_dim": 6},
}


@dataclass(frozen=True)
class Team:
    """A worker, and the memory that its ranks share.  store: path of the file in which they found each other."""

    worker: Worker
    theta: np.ndarray
    out: memoryview
    store: str = ""

    def compute(self, task: Task, theta: np.ndarray) -> tuple[Done, bytes, list[float]]:
        """What a round's work gives, its contribution, and the mean loss after each step."""
        self.theta[:] = theta
        losses: list[float] = []

        def after_step(steps: int, loss: float, tokens: int, rate: float) -> bool:
            losses.append(loss)
            return False

        done = self.worker.compute(task, self.theta, self.out, after_step)
        return done, bytes(self.out), losses


def unexpected(sentence: str, status: int) -> None:
    raise AssertionError(sentence)


@contextmanager
def team(
    config: TrainingConfig, ranks: int, folder: Path | None = None, dtype: torch.dtype = torch.float32
) -> Iterator[Team]:
    """A trainer of some ranks; one rank is an ordinary process, without offload.  folder: of the moments."""
    regions = (
        SharedRegion(4 * config.parameters),
        SharedRegion(layouts_of(config).contribution.payload_bytes),
    )
    theta = np.frombuffer(regions[0].view, np.float32)
    leader = None
    try:
        if ranks > 1 or config.is_sharded_alone:
            order = RankOrder(0, config, ("cpu",) * ranks, dtype, folder)
            leader = LeadingRank(order, (regions[0].fd, regions[1].fd), unexpected)
        yield Team(Worker(config, CPU, folder, dtype, leader), theta, regions[1].view, leader.store if leader else "")
    finally:
        if leader is not None:
            leader.close()
        for region in regions:
            with suppress(BufferError):
                region.close()
