"""Formats of a frozen matrix of weights, as numbers; `kernels.quantizer` makes and reads the bytes.

    bf16   the published values, rounded to bf16
    int8   a code from -127 to 127 for each value, and a scale for each block of 64
    int4   a code of 4 bits, which selects one of 16 levels, and a scale for each block of 64

A block is 64 consecutive values of a row; the last block of a row may be shorter. A scale is a bf16 number. A value is the
product of its level and its block's scale, rounded once to bf16; the level of an int8 code is the code itself. All levels
have at most 8 significant bits, so these products are exact in fp32, and no order of operations, fused or not, can change
their bits.

This module imports only the standard library, so that processes without torch can estimate memory.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise

BLOCK = 64
"""Number of values with one scale."""
STEPS = 256
"""Denominator of the levels of int4."""
LEVELS = (-219, -171, -134, -103, -75, -49, -24, 0, 23, 46, 70, 96, 125, 158, 199, 256)
"""Levels of int4, ascending, as multiples of 1 / `STEPS`.

They minimise the squared error of normal values in blocks of 64 that are divided by their value of largest magnitude, sign
included, so that this value becomes 1 and the other end needs no level (BOF4-S, Blumenberg et al. 2025, arXiv 2505.06653).
Computed by Lloyd's algorithm, with 0 and 1 fixed, and rounded: `python -m benchmarks.quantizer --levels`.
"""
LIMITS = tuple(low + high for low, high in pairwise(LEVELS))
"""Limits halfway between neighbouring levels of int4, as multiples of 1 / (2 * `STEPS`)."""
LARGEST_CODE = 127
"""Largest code of int8; -127 is the smallest."""
TINY = 2.0**-100
"""Smallest magnitude for which a block has a scale; a block of smaller values has scale 0, and all its values are 0. So
neither quotients nor products are denormal, which some devices flush to zero."""
LARGEST = 255 * 2.0**120
"""Largest bf16 number (3.39e38), and largest magnitude of a scale of int4."""
LARGEST_STEP = 2.0**121
"""Largest scale of int8 (2.66e36): the largest bf16 number whose product with 127 rounds to a finite bf16 number."""


class WeightFormat(StrEnum):
    """Format in which a run's frozen weights are held; one for the run, because proofs depend on their bits."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bytes_per_value(self) -> float:
        """Return bytes of a value with its share of a scale: 2, 1.03125 or 0.53125 (a little more with short blocks)."""
        if self is WeightFormat.BF16:
            return 2.0
        return (1.0 if self is WeightFormat.INT8 else 0.5) + 2 / BLOCK
