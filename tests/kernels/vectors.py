"""Values that codecs stumble over, for hypothesis and by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

Floats = npt.NDArray[np.float32]

SIZES = st.one_of(st.integers(1, 5), st.sampled_from([255, 256, 257, 511, 512, 513, 16 * 256, 16 * 256 + 1]))
EDGES = [0.0, -0.0, 1e-45, -1e-40, 2.0**-100, 2.0**-101, 1.0, 0.5, 1.5, -126.5, 127.0, 3.4028235e38, -3.4028235e38]
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from(EDGES)


def vectors(values: st.SearchStrategy[float] = FINITE) -> st.SearchStrategy[Floats]:
    """fp32 vectors of awkward sizes, mostly one value with some others strewn in."""
    return hnp.arrays(np.float32, SIZES, elements=values, fill=values)


def normal(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(count, np.float32)
