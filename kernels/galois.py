"""Polynomials over the integers mod 65497: interpolation through many sets of points at once, and evaluation.

Interpolation takes Newton's divided differences, then changes to powers of x: k^2 multiplications for k points.  All sets
go through each step together.  Numbers are integers held in fp64: products stay below 2^53, so every step is exact.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

PRIME = 65497
"""The prime from which TOPLOC's moduli go down; coefficients are smaller."""
BATCH = 128
"""Sets worked on at a time, so that they stay in the second-level cache."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def interpolate(x_ck: Ints, y_ck: Ints) -> Ints:
    """Return the coefficients (C, k), ascending, of the polynomials through k points each.

    x, y: (C, k), from 0 up to PRIME.  The x of a set are distinct mod PRIME.
    """
    out = np.empty_like(y_ck)
    for start in range(0, len(x_ck), BATCH):
        span = slice(start, start + BATCH)
        x_kc, y_kc = (np.ascontiguousarray(each[span].T, dtype=np.float64) for each in (x_ck, y_ck))
        out[span] = _to_powers(x_kc, _divided_differences(x_kc, y_kc)).T
    return out


def evaluate(coefficients_ck: Ints, x_cj: Ints) -> Ints:
    """Return the values (C, J) of the polynomials at J points each, by Horner's rule."""
    out = np.empty_like(x_cj)
    for start in range(0, len(x_cj), BATCH):
        x, coefficients = x_cj[start : start + BATCH].astype(np.float64), coefficients_ck[start : start + BATCH]
        value, quotient = np.zeros_like(x), np.empty_like(x)
        for power in range(coefficients.shape[1] - 1, -1, -1):
            value *= x
            value += coefficients[:, power, None]
            _reduce(value, quotient)
        out[start : start + BATCH] = value
    return out


def _divided_differences(x_kc: Floats, y_kc: Floats) -> Floats:
    """Return Newton's coefficients (k, C)."""
    count = len(x_kc)
    difference, inverses = y_kc % PRIME, _inverses()
    quotient, apart = np.empty_like(difference), np.empty(difference.shape, dtype=np.int32)
    for order in range(1, count):
        rest = difference[order:]
        np.subtract(x_kc[order:], x_kc[:-order], out=apart[order:], casting="unsafe")
        np.subtract(rest, difference[order - 1 : -1].copy(), out=rest)
        rest *= inverses[apart[order:]]  # a negative distance counts from the end of the table, as it does mod PRIME
        _reduce(rest, quotient[order:])
    return difference


def _to_powers(x_kc: Floats, newton_kc: Floats) -> Floats:
    """Turn Newton's coefficients into those of ascending powers of x (k, C), by Horner's rule on polynomials."""
    count = len(x_kc)
    power, quotient, before = np.zeros_like(newton_kc), np.empty_like(newton_kc), np.empty_like(newton_kc)
    power[0] = newton_kc[-1]
    for degree, index in enumerate(range(count - 2, -1, -1), start=1):
        part = power[: degree + 1]
        np.multiply(part, x_kc[index], out=before[: degree + 1])
        part[1:] = part[:-1].copy()
        part[0] = newton_kc[index]
        part -= before[: degree + 1]
        _reduce(part, quotient[: degree + 1])
    return power


def _reduce(values: Floats, scratch: Floats) -> None:
    """Bring whole numbers of less than 2^52 in magnitude into [0, PRIME), in place."""
    np.multiply(values, 1.0 / PRIME, out=scratch)
    np.floor(scratch, out=scratch)
    scratch *= PRIME
    values -= scratch
    # The quotient may be off by one where the number is next to a multiple of PRIME.
    values += (values < 0) * float(PRIME)
    values -= (values >= PRIME) * float(PRIME)


@functools.cache
def _inverses() -> Floats:
    """Return the inverse of every number mod PRIME; the entry for 0 is never used.

    inverse(i) = -(PRIME // i) inverse(PRIME mod i), since PRIME = (PRIME // i) i + PRIME mod i.
    """
    table = [0, 1]
    for number in range(2, PRIME):
        table.append(-(PRIME // number) * table[PRIME % number] % PRIME)
    return np.array(table, dtype=np.float64)
