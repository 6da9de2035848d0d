"""Reference weights, and the log-probabilities of preferences under them, which are computed once and kept in a file.

A run with a KL term, or with preferences, compares its model with weights of the past.  The peer keeps them as a file of
bf16 values.  They are needed only before the first step of some work, in one pass without gradients, and take no memory
while the trainer learns.  For preferences even the pass is needed only once for each pair.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

F32 = npt.NDArray[np.float32]

BLOCK = 1 << 20
MOST_KEPT = 1 << 26
"""Number of pairs up to which log-probabilities are kept, 512 MiB; those of later pairs are computed again."""
MOST_FRESH = 1 << 20
"""Number of pairs that are kept in memory where there is no file."""
PAIR_BYTES = 8
LOG_NAME = "reference"
INITIAL = "initial.bf16"
"""Name of the file in which a trainer keeps the weights that a run of preferences began with."""


class ReferenceWeights:
    """Parameters in a file of bf16 values, which are read where they are asked for.  shape: (n,)."""

    def __init__(self, path: Path, count: int) -> None:
        """Open a file.  count: number of parameters of the model.

        Raises ValueError if the file has another size, and OSError if it cannot be read.
        """
        self._values = np.memmap(path, dtype=np.dtype("<i2"), mode="r")
        self.shape = self._values.shape
        if self.shape != (count,):
            raise ValueError(f"the reference weights have {self._values.size} parameters, and the model has {count}")

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._values)

    def __getitem__(self, span: slice) -> F32:
        """Return some of the parameters in fp32."""
        values: F32 = torch.from_numpy(self._values[span].astype(np.int16)).view(torch.bfloat16).float().numpy()
        return values


def write_reference(path: Path, theta: F32) -> None:
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
    """Log-probabilities of pairs under the reference weights: for each pair, of its chosen and its rejected text.

    The file has two fp32 values for each pair, by the pair's number.  A log-probability is never above 0, so a set sign bit
    marks a known value, -0.0 included, and the holes of a sparse file are unknown pairs.  A lost file is computed again.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or make the file.  path: None to keep the values in memory only."""
        self._fresh: dict[int, tuple[float, float]] = {}
        """Values that are not in a file."""
        self._file: int | None = None
        self._is_full = False
        if path is not None:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._warn(error)

    @classmethod
    def beside(cls, folder: Path | None, digest: str) -> Self:
        """Return the log of a reading with this digest, in a folder of the trainer; remove the logs of other readings."""
        if folder is None:
            return cls(None)
        path = folder / f"{LOG_NAME}-{digest}.f32"
        for other in folder.glob(f"{LOG_NAME}-*.f32"):
            if other != path:
                with suppress(OSError):
                    other.unlink()
        return cls(path)

    def missing(self, pairs: Iterable[int]) -> list[int]:
        """Return the pairs, each once and in order, whose values are not known."""
        return [pair for pair in sorted(set(pairs)) if self._stored(pair) is None]

    def put(self, pairs: Sequence[int], values: F32) -> None:
        """Keep the values (P, 2) of some pairs.  A disk that fails is named in the log, and the work goes on."""
        known = np.minimum(values, np.float32(0.0))
        known = np.copysign(known, np.float32(-1.0)).astype("<f4")
        for pair, both in zip(pairs, known, strict=True):
            if not self._write(pair, both.tobytes()):
                self._fresh[pair] = float(both[0]), float(both[1])

    def get(self, pairs: Sequence[int]) -> F32:
        """Return the values (P, 2) of known pairs."""
        found = [self._stored(pair) for pair in pairs]
        assert None not in found, "asked for after `missing` and `put`"
        return np.array(found, np.float32)

    def trim(self) -> None:
        """Forget values that are not in a file, if they are many, because other work begins."""
        if len(self._fresh) > MOST_FRESH:
            self._fresh.clear()

    def _write(self, pair: int, data: bytes) -> bool:
        """Write a pair's values; return True if they are in the file."""
        if self._file is None or self._is_full or pair >= MOST_KEPT:
            return False
        try:
            return os.pwrite(self._file, data, pair * PAIR_BYTES) == PAIR_BYTES
        except OSError as error:
            self._warn(error)
            self._is_full = True  # what it has can still be read
            return False

    def _stored(self, pair: int) -> tuple[float, float] | None:
        if (fresh := self._fresh.get(pair)) is not None or self._file is None or pair >= MOST_KEPT:
            return fresh
        try:
            data = os.pread(self._file, PAIR_BYTES, pair * PAIR_BYTES)
        except OSError:
            return None
        both = np.frombuffer(data, "<f4")
        if len(both) != 2 or not (np.signbit(both).all() and np.isfinite(both).all()):
            return None
        return float(both[0]), float(both[1])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _warn(self, error: OSError) -> None:
        print(f"log-probabilities under the reference weights are not kept: {error.strerror}", file=sys.stderr)
