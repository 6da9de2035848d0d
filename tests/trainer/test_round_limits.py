"""No honest training exceeds the limits by the last rounds, and a trainer with absurd moments does.

A real model learns real texts through all that changes the size of a round: warm-up, cooldown, the return to the peak
learning rate, fresh moments, other data, and rounds of other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.formats.model import ModelConfig
from protocol.node.round_limits import LOOKED_BACK, RoundLimits, limits_from
from tests.protocol.peers import ANN
from tests.trainer import small
from tests.trainer.data.corpora import Shape, Stream, write_corpus
from trainer.models.llama.initial import initial_parameters
from trainer.optim import TEXT, AdamW
from trainer.parameters import NotFinite
from trainer.worker import Task, Worker

ROOT = Path(__file__).parent.parent.parent
MODEL = small.MODEL | {"dim": 64, "layers": 2, "ffn": 160}
STEPS, ROUNDS = 8, 96
"""Inner steps of a round, and rounds of a stage: 16 of warm-up, and 48 of cooldown."""
UNLIMITED = RoundLimits()


@dataclass
class Figures:
    """What a round was, and its shares of the limits."""

    round: int
    loss: float
    norm: float
    of_loss: float = 0.0
    of_norm: float = 0.0


def stream(paths: list[Path], size: int) -> tuple[Stream, Stream]:
    tokens = np.frombuffer(b"\0".join(path.read_bytes() for path in paths)[: size + 4000], np.uint8).astype(np.int64)
    return Stream(tokens[:size]), Stream(tokens[size:])


class Training:
    """A run of one peer, as its trainer sees it."""

    def __init__(self, folder: Path) -> None:
        prose = sorted((ROOT / "docs").rglob("*.md"))
        code = sorted((ROOT / "protocol").rglob("*.py"))
        corpus = write_corpus(folder / "corpus", Shape(), {"prose": stream(prose, 60_000), "code": stream(code, 60_000)})
        self.sections = small.SECTIONS | {
            "model": MODEL,
            "inner": small.SECTIONS["inner"] | {"lr": 3e-3, "warmup_steps": 16 * STEPS, "cooldown": 0.5},
        }
        self.corpus, self.moments = corpus, folder / "moments"
        self.moments.mkdir()
        self.theta = np.empty(ModelConfig.from_mapping(MODEL).parameters, np.float32)
        initial_parameters(ModelConfig.from_mapping(MODEL), 7, self.theta)
        self.records: list[Any] = []
        self.worker = self.started("prose")

    def started(self, source: str) -> Worker:
        data = small.data_sections(self.corpus, {source: 1}, sequence_length=64, sequences_per_step=4)
        return Worker(small.config(**self.sections | data), small.CPU, self.moments)

    def limits(self, steps: int) -> RoundLimits:
        inner, model = SimpleNamespace(lr=self.sections["inner"]["lr"]), SimpleNamespace(vocab=MODEL["vocab"])
        manifest: Any = SimpleNamespace(inner=inner, model=model, rl=None, parameters=len(self.theta))
        return limits_from(manifest, self.records[-LOOKED_BACK:], ANN.peer_id, steps)

    def train(self, number: int, stage: int, steps: int = STEPS, limits: RoundLimits = UNLIMITED) -> Figures:
        """Train one round of a stage of ROUNDS rounds, and take the result over."""
        first, shares = stage * STEPS, (stage / ROUNDS, (stage + 1) / ROUNDS)
        rows = [[number * 4 * STEPS, (number + 1) * 4 * STEPS]]
        task = Task(number, rows, steps, first, shares=shares, most_loss=limits.loss, most_norm=limits.norm)
        out = memoryview(bytearray(self.worker.layout.payload_bytes))
        done = self.worker.compute(task, self.theta, out, lambda *_: False)
        task.check(done.loss, done.norm)
        limits = self.limits(steps)
        self.theta -= np.float32(0.7) * (self.theta - self.worker.model.flat.numpy())
        entry = SimpleNamespace(peer=ANN.peer_id, steps=steps, loss=done.loss, norm=done.norm)
        self.records.append(SimpleNamespace(members=[entry]))
        return Figures(number, done.loss, done.norm, done.loss / limits.loss, done.norm / limits.norm)


def honest(training: Training) -> Iterator[tuple[str, Figures]]:
    number = 0
    for stage in range(ROUNDS):
        yield "the first stage", training.train(number, stage)
        number += 1
    training.worker.work.store_moments()
    for stage in range(20, 30):
        yield "back at the peak rate", training.train(number, stage)
        number += 1
    training.worker = training.started("prose")
    for stage in range(30, 34):
        yield "moments of 10 rounds before", training.train(number, stage)
        number += 1
    (training.moments / TEXT).unlink()
    training.worker = training.started("prose")
    for stage in range(34, 40):
        yield "fresh moments", training.train(number, stage)
        number += 1
    training.worker.work.store_moments()
    training.worker = training.started("code")
    for stage in range(40, 46):
        yield "other data", training.train(number, stage)
        number += 1
    for stage in range(46, 46 + LOOKED_BACK):
        yield "rounds of one step", training.train(number, stage, 1)
        number += 1
    for stage in range(64, 68):
        yield "whole rounds again", training.train(number, stage)
        number += 1


@pytest.mark.slow
def test_no_honest_round_comes_near_the_limits_and_absurd_moments_exceed_them(tmp_path: Path) -> None:
    training = Training(tmp_path)
    nearest: dict[str, tuple[float, float]] = {}
    for what, figures in honest(training):
        loss, norm = nearest.get(what, (0.0, 0.0))
        nearest[what] = max(loss, figures.of_loss), max(norm, figures.of_norm)
    for what, (of_loss, of_norm) in nearest.items():
        print(f"{what}: {100 * of_loss:.0f} % of the limit on the loss, {100 * of_norm:.1f} % of that on the norm")
    assert max(loss for loss, _ in nearest.values()) < 0.6 and max(norm for _, norm in nearest.values()) < 0.4
    optimiser = training.worker.inner.optimiser
    assert isinstance(optimiser, AdamW)
    optimiser.mean[5] = 1e6
    with pytest.raises(NotFinite, match="is not contributed, because its (loss|norm) of"):
        training.train(999, 40, limits=training.limits(STEPS))
