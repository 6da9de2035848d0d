"""The work of one round: from the swarm's parameters to an encoded difference.

A function with memory only of Adam's moments, which survive a restart in a file: `compute` reads theta, trains, and leaves
codec bytes of theta minus the local parameters.  Who calls it, and what a command may interrupt, is `trainer.service`'s
business.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.layout import chunk_layout
from trainer.config import TrainingConfig
from trainer.contribution import NotFinite, encode_difference
from trainer.data import corpus as corpora
from trainer.data.rows import Reading, Rows
from trainer.data.schedule import Schedule
from trainer.evaluation import Evaluation, evaluation_tokens, load
from trainer.models.llama.model import Decoder
from trainer.optim.inner import InnerLoop, Place
from trainer.optim.moments import MomentsFile
from trainer.reading import reading_of, tokenizer_of

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """One round's work, as `protocol.trainer_link.ComputeTask` has it.

    rollouts: names of the files of batches, all in the folder `rollouts_in`, which is said once: a frame is no load.
    reference: path of the weights that the KL term compares with; empty for none.
    """

    round: int
    lane: int
    steps: int
    first_step: int
    rollouts: Sequence[str] = ()
    rollouts_in: str = ""
    reference: str = ""
    shares: Sequence[float] = (0.0, 0.0)


@dataclass(frozen=True)
class Done:
    """What a compute left in the contribution region.

    tokens: that counted.  loss: mean over the steps; norm: of the difference.

    reward: mean of the rollouts that were learned from, 0 to 1; None where text was read.  kl: how far the policy was from
    the reference weights, nats a token; None in a run without a KL term.
    """

    tokens: int
    steps: int
    loss: float
    norm: float
    reward: float | None = None
    kl: float | None = None


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


class Worker:
    """Model, data and optimiser of one run on one device.  layout: the chunks of a contribution, each encoded on its own."""

    def __init__(
        self,
        config: TrainingConfig,
        device: torch.device,
        corpus: corpora.Corpus | None = None,
        moments: MomentsFile | None = None,
    ) -> None:
        """corpus: a text in place of what the run reads.  moments: where the optimiser's moments are kept; None for nowhere.

        Raises ValueError for what cannot be read here.
        """
        self.config, self._moments = config, moments
        self.model = Decoder(config.model, device)
        self._inner: InnerLoop | None = None
        self.layout = chunk_layout(self.parameters, config.chunk_parameters)
        self.tokenizer = tokenizer_of(config)
        self.reading: Reading = (
            reading_of(config, self.tokenizer)
            if corpus is None
            else corpora.TextReading(corpus, config.data.sequence_length)
        )
        self.schedule = Schedule(config.seed, self.reading.windows, config.lanes, config.windows_per_round)

    @property
    def inner(self) -> InnerLoop:
        """The optimiser of what is read, from the first step on."""
        if self._inner is None:
            self._inner = InnerLoop(self.model, self.config.inner)
            if self._moments is not None:
                self._moments.restore(self._inner.optimiser)
        return self._inner

    def store_moments(self) -> None:
        """Keep the moments for a process to come."""
        if self._moments is not None and self._inner is not None:
            self._moments.store(self._inner.optimiser)

    def end_reading(self) -> None:
        """Nothing more is read: another optimiser needs the memory."""
        self._inner = None

    @property
    def parameters(self) -> int:
        """How many there are in the flat vector."""
        return len(self.model.flat)

    def compute(
        self,
        task: Task,
        theta: F32,
        out: memoryview,
        after_step: Callable[[int, float, int, float], bool],
    ) -> Done:
        """Train from `theta` and encode the difference into `out`.

        after_step(steps, mean loss, tokens, tokens a second) is called after every step; True ends the round there.
        Raises NotFinite, and whatever `after_step` raises.
        """
        if not 1 <= task.steps <= self.config.inner_steps:
            raise ValueError(f"a round has 1 to {self.config.inner_steps} steps, not {task.steps}")
        if not 0 <= task.lane < self.config.lanes:
            raise ValueError(f"a round has {self.config.lanes} lanes; there is no lane {task.lane}")
        self.load(theta)
        losses, tokens, began = 0.0, 0, time.monotonic()
        for step in range(task.steps):
            rows = self.batch(task.round, task.lane, step)
            losses += self.inner.step(rows, self._place(task, step))
            steps, mean = step + 1, losses / (step + 1)
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {steps} of round {task.round}")
            tokens += rows.counted
            if after_step(steps, mean, tokens, tokens / max(1e-9, time.monotonic() - began)):
                break
        norm = encode_difference(theta, self.model.flat, self.layout, out)
        return Done(tokens, steps, mean, norm)

    def _place(self, task: Task, step: int) -> Place:
        begin, end = task.shares
        return Place(task.first_step + step, begin + (end - begin) * step / self.config.inner_steps)

    def evaluation(self, theta: F32, tokens: int | None = None) -> Evaluation:
        """The held-out loss of `theta`, yet to be measured; on `tokens` tokens, or as many as the run's members read."""
        tokens = tokens or evaluation_tokens(self.config)
        return Evaluation(self.model, self.reading, self.config.data.sequence_length, tokens, theta)

    def evaluate(self, theta: F32, tokens: int | None = None) -> float:
        """The held-out loss of `theta`, nats a token."""
        evaluation = self.evaluation(theta, tokens)
        evaluation.advance(evaluation.total)
        return evaluation.loss

    def batch(self, round_number: int, lane: int, step: int) -> Rows:
        """What a lane reads in a step of a round."""
        count = self.config.data.sequences_per_step
        return self.reading.rows([self.schedule.window(round_number, lane, step * count + row) for row in range(count)])

    def load(self, theta: F32) -> None:
        """Set the local parameters to `theta`."""
        load(theta, self.model.flat)
