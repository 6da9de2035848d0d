"""Adam's moments in a file beside the state, so that a restarted trainer continues with them.

The file is in the safetensors format: `mean` and `square` (n, fp32) and `steps` (fp32, exact up to 2^24 updates).  It is
written after a round's work, while the trainer waits for the others.  It stays on this computer and is never sent.
Moments that are some rounds old are used unchanged: AdamW forgets them within about 1 / (1 - beta2) steps.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.models.llama.config import ParameterPlace
from trainer.optim.adamw import AdamW
from trainer.weights.numbers import F32, ExportFormat, FolderError, written
from trainer.weights.safetensors_file import header_of, tensors_in

TEXT, ROLLOUTS = "moments.safetensors", "moments-rollouts.safetensors"
"""Names of the files of the optimiser for text and of the optimiser for rollouts."""
SHARE = 0.02
"""Largest share of the time spent on writing: a file that takes long to write is written after fewer rounds."""
BLOCK = 1 << 20
"""Numbers copied from the device at a time."""


class MomentsFile:
    """File of one optimiser's moments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._due_at = 0.0
        self._stored: int | None = None
        """Number of updates behind the moments in the file, if known."""

    def restore(self, optimiser: AdamW) -> bool:
        """Load the moments from the file; return True if the optimiser continues with them.

        A damaged or unsuitable file is left alone and named in the log: moments are never worth a failure.
        """
        if not self.path.exists():
            return False
        try:
            self._read(optimiser)
        except (FolderError, OSError, ValueError) as error:
            optimiser.forget()
            print(f"the moments of an earlier start are not used: {error}", file=sys.stderr)
            return False
        self._stored = optimiser.steps
        return True

    def store(self, optimiser: AdamW) -> None:
        """Write the moments, whole or not at all; do nothing while writing has lately taken more than its share of the time.

        A full disk is named in the log: the trainer goes on, and a restart then costs a warm-up.
        """
        begun = time.monotonic()
        if optimiser.steps in (0, self._stored) or begun < self._due_at:
            return
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header_of(_places(len(optimiser.mean)), ExportFormat.FP32))
                for block in _blocks(optimiser):
                    file.write(written(block, ExportFormat.FP32))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._stored = optimiser.steps
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            print(f"the optimiser's moments were not written to {self.path}: {error.strerror}", file=sys.stderr)
        ended = time.monotonic()
        self._due_at = ended + (ended - begun) / SHARE

    def _read(self, optimiser: AdamW) -> None:
        stored = tensors_in(self.path)
        for place in _places(len(optimiser.mean)):
            if place.name not in stored or stored[place.name].shape != place.shape:
                raise ValueError(f"{self.path} is of another model")
        with torch.no_grad():
            for name, vector in (("mean", optimiser.mean), ("square", optimiser.square)):
                at = 0
                for block in stored[name].values():
                    if not np.isfinite(block).all() or (name == "square" and block.min(initial=0.0) < 0):
                        raise ValueError(f"{self.path} is damaged")
                    vector[at : at + len(block)] = torch.from_numpy(block)
                    at += len(block)
        [steps] = np.concatenate(list(stored["steps"].values())).tolist()
        if not (math.isfinite(steps) and steps >= 1):
            raise ValueError(f"{self.path} is damaged")
        optimiser.resume(int(steps))


def _places(parameters: int) -> list[ParameterPlace]:
    """Return the tensors of a file, one after the other."""
    return [
        ParameterPlace("mean", (parameters,), 0),
        ParameterPlace("square", (parameters,), parameters),
        ParameterPlace("steps", (1,), 2 * parameters),
    ]


def _blocks(optimiser: AdamW) -> Iterator[F32]:
    """Yield the numbers of a file in order, a block at a time, on the host."""
    for vector in (optimiser.mean, optimiser.square, torch.tensor([float(optimiser.steps)])):
        yield from (_on_host(vector[at : at + BLOCK]) for at in range(0, len(vector), BLOCK))


def _on_host(values: Tensor) -> F32:
    block: F32 = values.detach().cpu().numpy()
    return block
