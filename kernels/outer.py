"""The outer step: Nesterov SGD on the averaged pseudo-gradient (DiLoCo, Douillard et al. 2023).

    m = mu * m + g;   theta = theta - lr * (g + mu * m)

Elementwise fp32 in this order, each operation rounded once, so that every peer gets the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.codec import PIECE, decode, is_sane

Floats = npt.NDArray[np.float32]


def nesterov_update(theta: Floats, momentum: Floats, gradient: Floats, lr: float, mu: float) -> None:
    """Update `theta` and `momentum` (fp32, same size) in place; `gradient` stays unchanged."""
    assert theta.size == momentum.size == gradient.size
    rate, decay = np.float32(lr), np.float32(mu)
    scratch = np.empty(min(PIECE, theta.size), np.float32)
    for start in range(0, theta.size, PIECE):
        t, m, g = (array[start : start + PIECE] for array in (theta, momentum, gradient))
        s = scratch[: t.size]
        np.multiply(m, decay, out=m)
        np.add(m, g, out=m)
        np.multiply(m, decay, out=s)
        np.add(g, s, out=s)
        np.multiply(s, rate, out=s)
        np.subtract(t, s, out=t)


def apply_result(theta: Floats, momentum: Floats, data: Any, lr: float, mu: float) -> None:
    """Decode one chunk of a result (the codec bytes of `theta.size` values) and update its slice of the outer state.

    The caller has checked that the bytes are those of a certified result; bytes that are not sane are a bug.
    """
    assert is_sane(data, theta.size)
    gradient = np.empty(theta.size, np.float32)
    decode(data, theta.size, gradient)
    nesterov_update(theta, momentum, gradient, lr, mu)
