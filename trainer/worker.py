"""The work of one round: from the swarm's parameters to an encoded difference.

A function with memory only of Adam's moments: `compute` reads theta, trains, and leaves codec bytes of theta minus the
local parameters.  Who calls it, and what a command may interrupt, is `trainer.service`'s business.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from kernels.layout import chunk_layout
from trainer.config import TrainingConfig
from trainer.contribution import NotFinite, encode_difference
from trainer.data import corpus as corpora
from trainer.data.schedule import Schedule
from trainer.environments import examples
from trainer.environments.registry import open_named
from trainer.evaluation import Evaluation, evaluation_tokens, load
from trainer.models.llama.model import Decoder
from trainer.optim.inner import InnerLoop
from trainer.optim.rate import warmed

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """One round's work, as `protocol.trainer_link.ComputeTask` has it.

    rollouts: names of the files of batches, all in the folder `rollouts_in`, which is said once: a frame is no load.
    """

    round: int
    lane: int
    steps: int
    first_step: int
    warmup_steps: int
    rollouts: Sequence[str] = ()
    rollouts_in: str = ""


@dataclass(frozen=True)
class Done:
    """What a compute left in the contribution region.  loss: mean over the steps; norm: of the difference.

    reward: mean of the rollouts that were learned from, 0 to 1; None where text was read.
    """

    tokens: int
    steps: int
    loss: float
    norm: float
    reward: float | None = None


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def corpus_of(config: TrainingConfig) -> corpora.Corpus:
    """The text that a run reads; raises ValueError when this installation cannot provide it."""
    if config.data.corpus == "examples":
        environment = open_named(config.environment, Path(config.tasks))
        return examples.corpus_of(environment, config.data.held_out_percent)
    return corpora.load(config.data.corpus, config.data.held_out_percent)


class Worker:
    """Model, data and optimiser of one run on one device.  layout: the chunks of a contribution, each encoded on its own."""

    def __init__(self, config: TrainingConfig, device: torch.device, corpus: corpora.Corpus | None = None) -> None:
        self.config = config
        self.model = Decoder(config.model, device)
        self.inner = InnerLoop(self.model, config.inner)
        self.layout = chunk_layout(self.parameters, config.chunk_parameters)
        self.corpus = corpus or corpus_of(config)
        length = config.data.sequence_length
        windows = corpora.window_count(self.corpus.train, length)
        if not windows or not corpora.window_count(self.corpus.held_out, length):
            raise ValueError(f"the corpus is shorter than one window of {length} tokens")
        self.schedule = Schedule(config.seed, windows, config.lanes, config.windows_per_round)

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
        losses, began = 0.0, time.monotonic()
        for step in range(task.steps):
            rows = self.batch(task.round, task.lane, step)
            losses += self.inner.step(rows, task.first_step + step, warmed(step, task.warmup_steps))
            steps, mean = step + 1, losses / (step + 1)
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {steps} of round {task.round}")
            tokens = steps * self.config.tokens_per_step
            if after_step(steps, mean, tokens, tokens / max(1e-9, time.monotonic() - began)):
                break
        norm = encode_difference(theta, self.model.flat, self.layout, out)
        return Done(tokens, steps, mean, norm)

    def evaluation(self, theta: F32, tokens: int | None = None) -> Evaluation:
        """The held-out loss of `theta`, yet to be measured; on `tokens` tokens, or as many as the run's members read."""
        tokens = tokens or evaluation_tokens(self.config)
        return Evaluation(self.model, self.corpus.held_out, self.config.data.sequence_length, tokens, theta)

    def evaluate(self, theta: F32, tokens: int | None = None) -> float:
        """The held-out loss of `theta`, nats a token."""
        evaluation = self.evaluation(theta, tokens)
        evaluation.advance(evaluation.total)
        return evaluation.loss

    def batch(self, round_number: int, lane: int, step: int) -> np.ndarray:
        """(sequences_per_step, sequence_length + 1) bytes."""
        data = self.config.data
        first = step * data.sequences_per_step
        picks = [self.schedule.window(round_number, lane, first + row) for row in range(data.sequences_per_step)]
        return np.stack([corpora.window(self.corpus.train, pick, data.sequence_length) for pick in picks])

    def load(self, theta: F32) -> None:
        """Set the local parameters to `theta`."""
        load(theta, self.model.flat)
