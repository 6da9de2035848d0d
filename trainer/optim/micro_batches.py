"""How many rows are computed at once: as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class MicroBatches:
    """Remembers the largest micro-batch that fits this device."""

    def __init__(self) -> None:
        self._most = 1 << 30

    def run(self, rows: int, compute: Callable[[int], Result]) -> Result:
        """`compute` with `rows` at once, or with the most that fit: halves them when memory runs out, and remembers.

        `compute` is called again from the beginning then.  Raises OutOfMemoryError when one row does not fit.
        """
        while True:
            part = min(rows, self._most)
            try:
                return compute(part)
            except torch.OutOfMemoryError:
                if part == 1:
                    raise
                self._most = part // 2
                torch.cuda.empty_cache()
