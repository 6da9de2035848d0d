"""How fast one core encodes and decodes contributions.  Blocking."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kernels import codec
from peer.bench.figures import CodecSpeed

VALUES = 1 << 22
SECONDS = 0.5
"""For each of both."""


def measure_codec(values: int = VALUES, seconds: float = SECONDS) -> CodecSpeed:
    """Values that are distributed as differences of parameters are: normally."""
    numbers = np.random.default_rng(1).standard_normal(values, np.float32)
    encoded, decoded = np.empty(codec.encoded_bytes(values), np.uint8), np.empty(values, np.float32)
    encode_s = best_s(lambda: codec.encode(numbers, encoded), seconds)
    decode_s = best_s(lambda: codec.decode(encoded, values, decoded), seconds)
    return CodecSpeed(values / encode_s, values / decode_s, 4e-6 * values / encode_s, 4e-6 * values / decode_s)


def best_s(work: Callable[[], object], seconds: float) -> float:
    """The shortest of the times that it takes, repeated for about `seconds` and three times at least, the first not counted:
    what else runs on the computer makes it longer."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)
