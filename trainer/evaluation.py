"""The held-out loss of the swarm's parameters, measured a few windows at a time.

Decides which windows are read, and where the parameters lie meanwhile.  They are read where the peer shares them; a device
with memory of its own gets them into the room of the gradients, which hold nothing between two training steps.  So an
evaluation costs no memory beside the activations of a few windows, and leaves the local parameters alone.  When a few
more windows are due, and what interrupts that, is `trainer.service`'s business.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from trainer.config import TrainingConfig
from trainer.data.rows import Reading
from trainer.models.llama.model import Decoder
from trainer.models.loss import loss_of

F32 = npt.NDArray[np.float32]

SHARE_OF_A_ROUND = 8
"""One held-out token for so many that a member trains on in a round: 4 % of its time, as a training step computes three
times what a forward pass does."""
LEAST_TOKENS = 1 << 11
"""Also where rounds are tiny: fewer tokens tell nothing."""
MOST_TOKENS = 1 << 15
"""Also where rounds are huge: enough that a change of 1 % shows."""
BATCH_TOKENS = 1 << 10
"""Read at once.  Between two batches an evaluation can be interrupted."""
MOST_LOADS = 4
"""How often an evaluation may bring the parameters to a device with memory of its own."""
LOAD_BLOCK = 1 << 20


def evaluation_tokens(config: TrainingConfig) -> int:
    """Held-out tokens of an evaluation: the same in every round and at every member, so that its losses compare."""
    return min(MOST_TOKENS, max(LEAST_TOKENS, config.inner_steps * config.tokens_per_step // SHARE_OF_A_ROUND))


def load(theta: F32, into: torch.Tensor) -> None:
    """Copy the parameters to `into`, on any device, block after block."""
    assert theta.shape == into.shape
    for start in range(0, len(theta), LOAD_BLOCK):
        into[start : start + LOAD_BLOCK] = torch.from_numpy(theta[start : start + LOAD_BLOCK].copy())


def reads_where_it_lies(device: torch.device) -> bool:
    """Whether this device works on the memory that peer and trainer share."""
    return device.type == "cpu"


class Evaluation:
    """The mean loss of `theta` (fp32, unchanged until the end) over windows spread over the held-out split.

    done, total: windows.
    """

    def __init__(self, model: Decoder, reading: Reading, length: int, tokens: int, theta: F32) -> None:
        available = reading.held_out_windows
        self.total = min(available, max(1, tokens // length))
        self.done = 0
        self._losses = 0.0
        self._counted = 0
        self._windows = [index * available // self.total for index in range(self.total)]
        self._reading = reading
        self._model, self._theta = model, theta
        self._batch = max(1, BATCH_TOKENS // length)
        self._in_place = reads_where_it_lies(model.flat.device)
        self._view = model.over(_as_tensor(theta) if self._in_place else model.gradient)

    @property
    def loss(self) -> float:
        """Nats a counted token, without the z-loss; once all windows are done."""
        assert self.done == self.total
        return self._losses / self._counted

    def share(self, opportunities: int) -> int:
        """Windows to do now, when there will be so many opportunities, this one included, until all should be done."""
        left = self.total - self.done
        least = self._batch if self._in_place else -(-self.total // MOST_LOADS)
        return min(left, max(least, -(-left // opportunities)))

    @torch.no_grad()
    def advance(self, windows: int, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Do so many more windows, or fewer when `interrupted`, which is asked after each batch.  Not during a step."""
        stop = min(self.total, self.done + windows)
        if not self._in_place:
            load(self._theta, self._model.gradient)
        try:
            while self.done < stop:
                batch = self._windows[self.done : min(stop, self.done + self._batch)]
                rows = self._reading.rows(batch, held_out=True)
                self._losses += float(loss_of(self._view, rows, 0.0)) * rows.counted
                self._counted += rows.counted
                self.done += len(batch)
                if interrupted():
                    return
        finally:
            if not self._in_place:
                self._model.gradient.zero_()


def _as_tensor(theta: F32) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # theta is mapped for reading only; nobody writes to the tensor
        return torch.from_numpy(theta)
