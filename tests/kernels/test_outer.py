"""The outer step is the published formula, each operation rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.codecs.format import PIECE
from kernels.codecs.ladder import INT4
from kernels.outer_step import OuterStep, apply_result, nesterov_update
from tests.kernels.test_codecs import changed, decoded, encoded
from tests.kernels.vectors import normal


@pytest.mark.parametrize("count", [1, PIECE, PIECE + 7])
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_update_is_the_formula_bit_for_bit(count: int, mu: float) -> None:
    theta, momentum, gradient = normal(count, 1), normal(count, 2), normal(count, 3)
    lr, decay = np.float32(0.7), np.float32(mu)
    wanted_momentum = momentum * decay + gradient
    wanted_theta = theta - (gradient + wanted_momentum * decay) * lr
    kept = gradient.copy()
    nesterov_update(theta, momentum, gradient, 0.7, mu)
    assert theta.tobytes() == wanted_theta.tobytes() and momentum.tobytes() == wanted_momentum.tobytes()
    assert gradient.tobytes() == kept.tobytes()


def test_applying_chunks_one_by_one_is_applying_the_whole() -> None:
    count, chunk = 3000, 1024
    theta, momentum, gradient = normal(count, 1), normal(count, 2), normal(count, 3)
    data = encoded(INT4, gradient)
    whole_theta, whole_momentum = theta.copy(), momentum.copy()
    nesterov_update(whole_theta, whole_momentum, decoded(INT4, data, count), 0.7, 0.9)
    for start in range(0, count, chunk):
        span = slice(start, start + chunk)
        apply_result(theta[span], momentum[span], encoded(INT4, gradient[span]), INT4, len(theta[span]), OuterStep(0.7, 0.9))
    assert theta.tobytes() == whole_theta.tobytes() and momentum.tobytes() == whole_momentum.tobytes()


def test_bytes_that_are_not_sane_change_nothing() -> None:
    theta, momentum = normal(300, 1), normal(300, 2)
    before = theta.tobytes() + momentum.tobytes()
    bad = changed(encoded(INT4, normal(300)), 16, b"\x80\x7f")
    with pytest.raises(AssertionError):
        apply_result(theta, momentum, bad, INT4, theta.size, OuterStep(0.7, 0.9))
    assert theta.tobytes() + momentum.tobytes() == before
