"""Result of a round's work, on text or on rollouts: the encoded difference, or an error if it is worthless."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels import codec
from kernels.layout import Layout, payload_bytes

F32 = npt.NDArray[np.float32]


class NotFinite(Exception):
    """Error for a loss that is not finite: the parameters of this round are worthless."""


def encode_difference(theta: F32, parameters: Tensor, layout: Layout, out: memoryview) -> float:
    """Encode theta minus the local `parameters` into `out`, chunk after chunk; return the norm of the difference."""
    assert len(out) == payload_bytes(layout)
    squares = 0.0
    for span in layout:
        difference = theta[span.values] - parameters[span.values].cpu().numpy()
        squares += float(np.sum(np.square(difference, dtype=np.float64)))
        codec.encode(difference, out[span.encoded])
    return math.sqrt(squares)
