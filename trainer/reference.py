"""Weights that a trainer shows in place of its own, and log-probabilities under reference weights.

A run with a KL term, or with preferences, compares its model with earlier weights.  The peer keeps them as a file of
bf16 values.  They are needed only before the first step of some work, in one pass without gradients, and take no memory
while the trainer learns.  Audits use weights on the way to a round's result (`PublicWeights`),
and losses on stale rollouts the weights that made them (`HeldWeights`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.layout import Layout
from kernels.outer_step import OuterStep

F32 = npt.NDArray[np.float32]

BLOCK = 1 << 20
MOST_KNOWN = 1 << 18
"""Number of pairs whose log-probabilities are kept, about 60 MB; with more pairs, all are computed again when needed."""
INITIAL = "initial.bf16"
"""Name of the file in which a trainer keeps the weights that a run of preferences began with."""


class ReferenceWeights:
    """Parameters in a file of bf16 values, which are read only where they are needed.  shape: (n,)."""

    def __init__(self, path: Path, count: int) -> None:
        """Open a file.  count: number of parameters of the model.

        Raises ValueError if the file has another size, and OSError if it cannot be read.
        """
        self._values = np.memmap(path, dtype=np.dtype("<i2"), mode="r")
        self.shape = self._values.shape
        if self.shape != (count,):
            raise ValueError(f"the reference weights have {self._values.size} parameters, but the model has {count}")

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._values)

    def __getitem__(self, span: slice) -> F32:
        """Return some of the parameters in fp32."""
        values: F32 = torch.from_numpy(self._values[span].astype(np.int16)).view(torch.bfloat16).float().numpy()
        return values


class ZeroFactors:
    """Factors that are 0, with which a model is its frozen base.  shape: (n,)."""

    def __init__(self, count: int) -> None:
        self.shape = (count,)

    def __len__(self) -> int:
        """Return the number of values."""
        return self.shape[0]

    def __getitem__(self, span: slice) -> F32:
        """Return some of the values in fp32."""
        return np.zeros(len(range(*span.indices(len(self)))), np.float32)


class HeldWeights:
    """Weights of a version that a trainer holds.  values: (n,), bf16, on any device.  shape: (n,)."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.shape = values, (len(values),)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return self.shape[0]

    def __getitem__(self, span: slice) -> F32:
        """Return some of the parameters in fp32."""
        values: F32 = self.values[span].float().cpu().numpy()
        return values


class PublicWeights:
    """Weights that every peer can compute: those on the way from the start of the last round to its mean result g.

    They are theta(start) - share * g.  The state after the outer step has theta = theta(start) - rate * (g + mu * m) and the
    new momentum m, so they are theta + (rate - share) * g + rate * mu * m.  shape: (n,).
    """

    def __init__(self, state: F32, result: memoryview, layout: Layout, step: OuterStep, share: float) -> None:
        """Make the weights at a share of the way, from 0 to about 1.

        state: theta and momentum after the round, (2 n,).  result: the round's result, in `layout`.  step: its outer step.
        """
        count = len(state) // 2
        self.shape = (count,)
        self._theta, self._momentum = state[:count], state[count:]
        self._result, self._layout, self._step, self._share = result, layout, step, share
        self._decoded: tuple[int, F32] | None = None
        """Number of the last decoded chunk, and its values."""

    def __len__(self) -> int:
        """Return the number of parameters."""
        return self.shape[0]

    def __getitem__(self, span: slice) -> F32:
        """Return some of the parameters in fp32."""
        start, stop, _ = span.indices(len(self))
        found = np.empty(stop - start, np.float32)
        size = self._layout[0].count
        for number in range(start // size, -(-stop // size)):
            first, last = max(start, number * size), min(stop, (number + 1) * size)
            found[first - start : last - start] = self._chunk(number)[first - number * size : last - number * size]
        step, within = self._step, slice(start, stop)
        found *= np.float32(step.rate - self._share)
        found += self._theta[within]
        if step.momentum:
            found += np.float32(step.rate * step.momentum) * self._momentum[within]
        return found

    def _chunk(self, number: int) -> F32:
        if self._decoded is None or self._decoded[0] != number:
            span, values = self._layout[number], np.empty(self._layout[number].count, np.float32)
            self._layout.format.decode(self._result[span.encoded], span.count, values)
            self._decoded = number, values
        return self._decoded[1]


Reference = ReferenceWeights | ZeroFactors | HeldWeights | PublicWeights
"""Weights that a model can show in place of its own."""


def write_reference(path: Path, theta: F32 | HeldWeights) -> None:
    """Write parameters as reference weights, atomically.  Raises OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        with unfinished.open("wb") as file:
            for start in range(0, len(theta), BLOCK):
                block = torch.from_numpy(theta[start : start + BLOCK].copy()).bfloat16()
                file.write(block.view(torch.int16).numpy().astype("<i2").tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


class ReferenceLog:
    """Log-probabilities of pairs under the reference weights: two for each pair, for the chosen and the rejected text.

    The log is in memory, because a member seldom reads a pair again: each epoch leases its rows anew.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, float]] = {}

    def missing(self, pairs: Iterable[int]) -> list[int]:
        """Return the pairs whose values are not known, each once and in order."""
        return [pair for pair in sorted(set(pairs)) if pair not in self._known]

    def put(self, pairs: Sequence[int], values: F32) -> None:
        """Keep the values (P, 2) of some pairs."""
        self._known |= {
            pair: (float(chosen), float(rejected)) for pair, (chosen, rejected) in zip(pairs, values, strict=True)
        }

    def get(self, pairs: Sequence[int]) -> F32:
        """Return the values (P, 2) of known pairs."""
        return np.array([self._known[pair] for pair in pairs], np.float32)

    def trim(self) -> None:
        """Forget all values, if they are many, because other work begins."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
