"""TOPLOC: short proofs that a model computed these hidden states (Ong et al. 2025, arXiv 2501.16007).

A proof covers a chunk of tokens and has the same bytes as in toploc 0.1.6. It holds the chunk's `top_k` values of largest
magnitude as a polynomial through the points (position mod m, bits of the bf16 value) over the integers mod 65497, where m is
the largest modulus that keeps the positions distinct. The proof is m, followed by the coefficients in ascending order, each
as 16 bits, big-endian: 258 bytes for 128 values.

The verifier computes the states again, takes the positions of its own largest values, and compares its bits with the
polynomial's. Another device's rounding changes mantissas slightly; another model or prompt changes everything. The sign is
not compared. `Thresholds` decides which difference is too large.

This module differs from toploc in two ways. A chunk with fewer than `top_k` values uses all its values, and its proof is
shorter. Bytes that no prover can have made (a wrong length, a modulus or coefficient out of range) raise `MalformedProof`
and are not compared.

Positions are found on the states' device; only `top_k` values of a chunk leave a GPU.  All chunks are interpolated at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# ------------------------------------------------------------------------------------------------------------------------
# Polynomials over the integers mod 65497: interpolation through many sets of points at once, and evaluation.
#
# Interpolation computes Newton's divided differences, then converts to powers of x: k^2 multiplications for k points. All
# sets go through each step together. Numbers are integers held in fp64. Products stay below 2^53, so every step is exact.


PRIME = 65497
"""Prime modulus of the coefficients, and the first modulus of positions that TOPLOC tries; it tries smaller ones next."""
BATCH = 128
"""Number of sets processed at a time, so that they stay in the second-level cache."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def interpolate(x_ck: Ints, y_ck: Ints) -> Ints:
    """Return the coefficients (C, k), ascending, of the polynomials through k points each.

    x, y: (C, k), integers from 0 to PRIME - 1. The x of a set are distinct mod PRIME.
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
        rest *= inverses[apart[order:]]  # a negative index counts from the end of the table, which is right mod PRIME
        _reduce(rest, quotient[order:])
    return difference


def _to_powers(x_kc: Floats, newton_kc: Floats) -> Floats:
    """Turn Newton's coefficients into the coefficients (k, C) of ascending powers of x, by Horner's rule on polynomials."""
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
    """Reduce whole numbers of magnitude below 2^52 into [0, PRIME), in place."""
    np.multiply(values, 1.0 / PRIME, out=scratch)
    np.floor(scratch, out=scratch)
    scratch *= PRIME
    values -= scratch
    # The quotient may be off by one if the number is next to a multiple of PRIME.
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


# ------------------------------------------------------------------------------------------------------------------------


TOP_K = 128
CHUNK_TOKENS = 32
NOTHING_AGREES = 2.0**64
"""Value of the mean and the median if no exponent agrees."""
_WITHOUT_SIGN = 0x7FFF
_EXPONENT = 0x7F80
_MANTISSA = 0x7F
_OUTSIDE = -1
"""Magnitude of the padding in a shorter chunk; it is below the magnitude of any value."""
_LONGEST_STRIPE = 64
"""Maximum number of values in a stripe; the largest value of each stripe gives a lower bound on a chunk's largest values
(`_largest_of`)."""


class MalformedProof(ValueError):
    """Error for bytes that no computation could have made as proofs of these states; the text gives the reason."""


@dataclass(frozen=True)
class Mismatch:
    """Distance of a chunk's states from its proof.

    exponent_mismatches: number of values with different exponents. mantissa_mean, mantissa_median: mean and upper median of
    the differences between the 7-bit mantissas of all other values.
    """

    exponent_mismatches: int
    mantissa_mean: float
    mantissa_median: float


@dataclass(frozen=True)
class Thresholds:
    """Largest differences that another device may cause in an honest proof; the defaults are the values of INTELLECT-2."""

    exponent_mismatches: int = 38
    mantissa_mean: float = 10.0
    mantissa_median: float = 8.0

    def accept(self, mismatch: Mismatch) -> bool:
        """Return True if a chunk's states are close enough to the proven states."""
        return (
            mismatch.exponent_mismatches <= self.exponent_mismatches
            and mismatch.mantissa_mean <= self.mantissa_mean
            and mismatch.mantissa_median <= self.mantissa_median
        )


def proof_sizes(tokens: int, dim: int, top_k: int = TOP_K, chunk_tokens: int = CHUNK_TOKENS) -> list[int]:
    """Return the size in bytes of each proof of `tokens` hidden states of `dim` values."""
    rows = [min(chunk_tokens, tokens - start) for start in range(0, tokens, chunk_tokens)]
    return [2 + 2 * min(top_k, count * dim) for count in rows]


def prove(hidden_nh: Tensor, top_k: int = TOP_K, chunk_tokens: int = CHUNK_TOKENS) -> list[bytes]:
    """Return a proof for each chunk of hidden states (n, h), bf16, on any device; the last chunk may be short."""
    return prove_all([hidden_nh], top_k, chunk_tokens)[0]


def prove_all(sequences: Sequence[Tensor], top_k: int = TOP_K, chunk_tokens: int = CHUNK_TOKENS) -> list[list[bytes]]:
    """Return the proofs of several sequences of hidden states (n, h), bf16, in one batch."""
    proofs: list[list[bytes]] = [[] for _ in sequences]
    for owners, positions_ck, bits_ck in _top_values(sequences, top_k, chunk_tokens):
        moduli_c = _moduli(positions_ck)
        coefficients_ck = interpolate(positions_ck % moduli_c[:, None], bits_ck % PRIME)
        words = np.concatenate([moduli_c[:, None], coefficients_ck], axis=1).astype(">u2")
        for owner, row in zip(owners, words, strict=True):
            proofs[owner].append(row.tobytes())
    return proofs


def compare(
    hidden_nh: Tensor, proofs: Sequence[bytes], top_k: int = TOP_K, chunk_tokens: int = CHUNK_TOKENS
) -> list[Mismatch]:
    """Compare hidden states (n, h), bf16, with their proofs, chunk by chunk.  Raises `MalformedProof`."""
    return compare_all([hidden_nh], [proofs], top_k, chunk_tokens)[0]


def compare_all(
    sequences: Sequence[Tensor],
    proofs: Sequence[Sequence[bytes]],
    top_k: int = TOP_K,
    chunk_tokens: int = CHUNK_TOKENS,
) -> list[list[Mismatch]]:
    """Compare several sequences with their proofs in one batch.  Raises `MalformedProof`."""
    for hidden_nh, own in zip(sequences, proofs, strict=True):
        tokens, dim = hidden_nh.shape
        check_form(own, tokens, dim, top_k, chunk_tokens)
    found: list[list[Mismatch]] = [[] for _ in sequences]
    for owners, positions_ck, bits_ck in _top_values(sequences, top_k, chunk_tokens):
        raw = [proofs[owner][index] for owner, index in _numbered(owners, found)]
        words = np.frombuffer(b"".join(raw), dtype=">u2").astype(np.int64).reshape(len(owners), -1)
        proven_ck = evaluate(words[:, 1:], positions_ck % words[:, :1])
        for owner, mismatch in zip(owners, _mismatches(proven_ck, bits_ck), strict=True):
            found[owner].append(mismatch)
    return found


def check_form(proofs: Sequence[bytes], tokens: int, dim: int, top_k: int = TOP_K, chunk_tokens: int = CHUNK_TOKENS) -> None:
    """Raise `MalformedProof` unless these could be the proofs of `tokens` hidden states of `dim` values."""
    sizes = proof_sizes(tokens, dim, top_k, chunk_tokens)
    if len(proofs) != len(sizes):
        raise MalformedProof(f"{len(proofs)} proofs for {len(sizes)} chunks of tokens")
    for number, (proof, size) in enumerate(zip(proofs, sizes, strict=True)):
        if len(proof) != size:
            raise MalformedProof(f"proof {number} has {len(proof)} bytes instead of {size}")
        words = np.frombuffer(proof, dtype=">u2")
        if not len(words) - 1 <= int(words[0]) <= PRIME:
            raise MalformedProof(f"proof {number} has the modulus {int(words[0])}")
        if int(words[1:].max()) >= PRIME:
            raise MalformedProof(f"proof {number} has a coefficient out of range")


def _numbered(owners: Sequence[int], found: list[list[Mismatch]]) -> list[tuple[int, int]]:
    """Return each owner with its chunk's number, counted on from the owner's chunks already in `found`."""
    seen = {owner: len(found[owner]) for owner in owners}
    numbered = []
    for owner in owners:
        numbered.append((owner, seen[owner]))
        seen[owner] += 1
    return numbered


def _mismatches(proven_ck: Ints, own_ck: Ints) -> list[Mismatch]:
    same_ck = ((proven_ck ^ own_ck) & _EXPONENT) == 0
    count_c = same_ck.sum(axis=1)
    apart_ck = np.abs((proven_ck & _MANTISSA) - (own_ck & _MANTISSA))
    total_c = (apart_ck * same_ck).sum(axis=1)
    ordered_ck = np.sort(np.where(same_ck, apart_ck, _MANTISSA + 1), axis=1)
    found = []
    for count, total, ordered in zip(count_c.tolist(), total_c.tolist(), ordered_ck, strict=True):
        mean, median = (total / count, float(ordered[count // 2])) if count else (NOTHING_AGREES, NOTHING_AGREES)
        found.append(Mismatch(own_ck.shape[1] - count, mean, median))
    return found


def _top_values(
    sequences: Sequence[Tensor], top_k: int, chunk_tokens: int
) -> list[tuple[list[int], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return groups of chunks: their owners, and the positions and the 16 bits (C, k) of their largest values.

    Chunks are grouped by the number k of values that a chunk proves: `top_k`, or fewer in short chunks.
    """
    assert all(hidden.dtype == torch.bfloat16 and hidden.dim() == 2 for hidden in sequences)
    groups: dict[int, tuple[list[int], list[Tensor]]] = {}
    for owner, hidden_nh in enumerate(sequences):
        for chunk in torch.split(hidden_nh, chunk_tokens):
            if len(chunk):
                owners, chunks = groups.setdefault(min(top_k, chunk.numel()), ([], []))
                owners.append(owner)
                chunks.append(chunk.reshape(-1))
    return [(owners, *_largest(chunks, k)) for k, (owners, chunks) in groups.items()]


def _largest(chunks: Sequence[Tensor], k: int) -> tuple[Ints, Ints]:
    """Return positions and bits (C, k) of the largest values by magnitude; the chunks may differ in length."""
    if chunks[0].device.type == "cpu":
        found = [_largest_of(chunk.contiguous().view(torch.int16).numpy(), k) for chunk in chunks]
        positions_ck, bits_ck = (np.stack(each) for each in zip(*found, strict=True))
    else:
        bits_cn = chunks[0].new_zeros((len(chunks), max(len(chunk) for chunk in chunks)), dtype=torch.int16)
        magnitude_cn = torch.full_like(bits_cn, _OUTSIDE)
        for row, chunk in enumerate(chunks):
            bits_cn[row, : len(chunk)] = chunk.contiguous().view(torch.int16)
            magnitude_cn[row, : len(chunk)] = bits_cn[row, : len(chunk)] & _WITHOUT_SIGN
        on_device = magnitude_cn.topk(k, dim=1, sorted=False).indices
        positions_ck, bits_ck = on_device.cpu().numpy(), bits_cn.gather(1, on_device).cpu().numpy()
    return positions_ck, bits_ck.astype(np.int64) & 0xFFFF


def _largest_of(bits_n: npt.NDArray[np.int16], k: int) -> tuple[Ints, npt.NDArray[np.int16]]:
    """Return positions and bits of the largest values of one chunk on the CPU; among equal values the first ones are taken.

    The k-th largest of the maxima of disjoint stripes is at most the k-th largest value, so only a few values have to be
    sorted.
    """
    magnitude_n = bits_n & np.int16(_WITHOUT_SIGN)
    stripe = max(1, min(_LONGEST_STRIPE, len(bits_n) // (4 * k)))
    width = len(bits_n) // stripe
    maxima = magnitude_n[: width * stripe].reshape(stripe, width).max(axis=0)
    bound = np.partition(maxima, width - k)[width - k]
    above = np.flatnonzero(magnitude_n >= bound)
    positions = above[np.argsort(-magnitude_n[above].astype(np.int32), kind="stable")[:k]]
    return positions, bits_n[positions]


def _moduli(positions_ck: Ints) -> Ints:
    """Return, for each chunk, the largest modulus that keeps its positions distinct. Raises ValueError if there is none."""
    moduli_c = np.full(len(positions_ck), PRIME, dtype=np.int64)
    open_c = np.arange(len(positions_ck))
    for modulus in range(PRIME, positions_ck.shape[1] - 1, -1):
        rest = np.sort(positions_ck[open_c] % modulus, axis=1)
        open_c = open_c[(rest[:, 1:] == rest[:, :-1]).any(axis=1)]
        if not len(open_c):
            return moduli_c
        moduli_c[open_c] = modulus - 1
    raise ValueError("no modulus keeps the positions of a chunk's largest values apart")
