"""Aggregation rules, which compute one result from the contributions to a chunk, bit for bit the same on every computer.

    mean           weighted by tokens; one hostile member can move it any distance
    clip           mean of contributions whose norm is at most `CLIP` times the median norm
    trimmed        coordinate by coordinate, the mean without the smallest and the largest quarter of the values
    centered_clip  mean of differences from a robust centre, each at most as long as the median difference

Every rule sees only one chunk: any peer that holds the contributions to a chunk can compute its result and check another
peer's result. A rule uses one number that a member claims about itself, its tokens. Except in `mean`, a member weighs at
most `WEIGHT_CAP` times the median of the members' tokens. Each median counts members, whatever tokens they claim. Fewer than
three contributions have no majority: `trimmed` and `centered_clip` then compute the mean with the capped weights. Every rule
returns a single contribution unchanged.

The bytes are the same everywhere because the rules use only these operations: elementwise IEEE operations in the order of
the members; selection by minimum and maximum, which does not round; sums of squares of codes, which are whole numbers below
2^24 and so exact in any order; and other sums by halving, elementwise, or by `math.fsum`, which is exact.

Memory besides the arguments: some MiB of scratch; 4 bytes per value for `trimmed` and `centered_clip`; for `clip`, a copy of
each contribution that the rule scales down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.codec import BLOCK, PIECE, blocks_of, encode, encode_piece, is_sane, parts

# ------------------------------------------------------------------------------------------------------------------------
# Token-weighted mean of encoded contributions, encoded again.
#
# Each value is the sum over members, in the given order, of code * (scale * w), where w = tokens / all tokens, all in fp32.
# The sum is then quantised once. The order is the canonical order of members, so every peer that averages gets the same
# bytes.


def weighted_mean(contributions: Sequence[Any], weights: Sequence[int], count: int, out: Any) -> None:
    """Average `contributions` (codec bytes of `count` values each) with positive integer `weights` into `out`.

    The caller must drop contributions that are not sane (asserted here). `out` must not overlap any contribution.
    """
    assert len(contributions) == len(weights) > 0 and all(weight > 0 for weight in weights)
    assert all(is_sane(contribution, count) for contribution in contributions)
    shares = shares_of(weights)
    members = [parts(contribution, count) for contribution in contributions]
    out_scales, out_codes = parts(out, count)
    longest = min(PIECE, count)
    mean, term = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for start in range(0, count, PIECE):
        size = min(PIECE, count - start)
        first, rows = start // BLOCK, blocks_of(size)
        for index, (scales, codes) in enumerate(members):
            target = mean if index == 0 else term
            _scaled(codes[start : start + size], scales[first : first + rows] * shares[index], target[:size])
            if index:
                np.add(mean[:size], term[:size], out=mean[:size])
        encode_piece(mean[:size], term, out_scales[first : first + rows], out_codes[start : start + size])


def shares_of(weights: Sequence[int]) -> list[np.float32]:
    """Return each weight over the sum of weights, divided in fp64 and rounded to fp32; the result is the same everywhere."""
    total = sum(weights)
    return [np.float32(weight / total) for weight in weights]


def _scaled(codes: Any, scales: Any, out: Any) -> None:
    whole = codes.size - codes.size % BLOCK
    np.multiply(codes[:whole].reshape(-1, BLOCK), scales[: whole // BLOCK, None], out=out[:whole].reshape(-1, BLOCK))
    if whole < codes.size:
        np.multiply(codes[whole:], scales[-1], out=out[whole:])


# ------------------------------------------------------------------------------------------------------------------------


Rule = Literal["mean", "clip", "trimmed", "centered_clip"]

CLIP = 1.25
"""Largest norm of a contribution's chunk, as a multiple of the median norm. Honest chunks seldom exceed this limit. A lower
limit would gain little: with one attacker that flips the sign, `python -m benchmarks.byzantine` gives +1.4, +1.6 and +1.8 %
at limits of 1, 1.25 and 1.5."""
WEIGHT_CAP = Fraction(3, 2)
"""Largest weight of a member, as a multiple of the members' median. If f of eight members are hostile and the honest members
have equal weights, the hostile ones have at most 1.5 f / (8 + f / 2) of the weight; one hostile member has 3/17 (`python -m
benchmarks.byzantine --claims 1,2,4`)."""
ITERATIONS = 3
"""Steps of `centered_clip` from the coordinate-wise median; further steps change the result little."""
WORKING = 1 << 19
"""Number of values, of all members together, that are sorted at a time: 2 MiB of fp32."""

Floats = npt.NDArray[np.float32]
View = tuple[Floats, npt.NDArray[np.int8]]
"""Scales and codes of a contribution."""


def aggregate(rule: Rule, contributions: Sequence[Any], tokens: Sequence[int], count: int, out: Any) -> None:
    """Aggregate `contributions` (sane codec bytes of `count` values each, in canonical order) into codec bytes `out`.

    tokens: token counts of the members, positive.  `out` must not overlap any contribution.
    """
    _RULES[rule](contributions, weights_of(rule, tokens), count, out)


def weights_of(rule: Rule, tokens: Sequence[int]) -> list[int]:
    """Return the members' weights under `rule`: their tokens, except in `mean` limited to `WEIGHT_CAP` times the median.

    For an even number of members the median is the smaller middle value, so that half of the members cannot raise it.
    """
    if rule == "mean":
        return list(tokens)
    limit = WEIGHT_CAP.numerator * sorted(tokens)[(len(tokens) - 1) // 2] // WEIGHT_CAP.denominator
    return [min(each, limit) for each in tokens]


def clipped_mean(contributions: Sequence[Any], weights: Sequence[int], count: int, out: Any) -> None:
    """Average the contributions, each scaled down to at most `CLIP` times their median norm.

    A minority of the members cannot move the median norm outside the range of the other members' norms.
    """
    norms = [math.sqrt(sum_of_squares(contribution, count)) for contribution in contributions]
    limit = CLIP * median(norms)
    clipped = [
        contribution if norm <= limit else _scaled_down(contribution, count, limit / norm)
        for contribution, norm in zip(contributions, norms, strict=True)
    ]
    weighted_mean(clipped, weights, count, out)


def trimmed_mean(contributions: Sequence[Any], weights: Sequence[int], count: int, out: Any) -> None:
    """Aggregate by a weighted coordinate-wise trimmed mean (Yin et al. 2018, "Byzantine-robust distributed learning").

    Of the n values of a parameter, drop the values below rank k and above rank n - 1 - k, where k = `trim`(n). Ranks count
    from 0.
    """
    members = len(contributions)
    k = trim(members)
    if k == 0:
        return weighted_mean(contributions, weights, count, out)
    shares, ranks = shares_of(weights), (k, members - 1 - k)
    views = [parts(contribution, count) for contribution in contributions]
    result = np.empty(count, np.float32)
    for start, rows, spare in _pieces(views, count):
        low, high = _select(rows, spare, ranks)
        _mean_between(low, high, views, shares, start, result[start : start + low.size])
    encode(result, out)


def _mean_between(
    low: Floats, high: Floats, views: Sequence[View], shares: Sequence[np.float32], start: int, out: Floats
) -> None:
    """Average the values from `low` to `high` in each coordinate, weighted by `shares`."""
    total, divisor = np.zeros_like(low), np.zeros_like(low)
    value, weight = np.empty_like(low), np.empty_like(low)
    kept, below = np.empty(low.size, np.bool_), np.empty(low.size, np.bool_)
    for view, share in zip(views, shares, strict=True):
        _decode(view, start, value)
        np.greater_equal(value, low, out=kept)
        np.less_equal(value, high, out=below)
        np.logical_and(kept, below, out=kept)
        np.multiply(kept, share, out=weight)
        np.add(divisor, weight, out=divisor)
        np.multiply(value, weight, out=value)
        np.add(total, value, out=total)
    np.divide(total, divisor, out=out)


def centered_clip(contributions: Sequence[Any], weights: Sequence[int], count: int, out: Any) -> None:
    """Aggregate by centered clipping (Karimireddy et al. 2021, "Learning from history for Byzantine robust optimization").

    The rule repeats `centre += sum of share * (value - centre) * min(1, radius / distance)` `ITERATIONS` times. The paper
    starts from the last round's result, with the radius as a parameter. This function starts from the coordinate-wise median
    and uses the median distance as the radius, so a chunk's result depends only on its contributions.
    """
    members = len(contributions)
    if members < 3:
        return weighted_mean(contributions, weights, count, out)
    shares = shares_of(weights)
    views = [parts(contribution, count) for contribution in contributions]
    centre = np.empty(count, np.float32)
    middle = ((members - 1) // 2, members // 2)
    half = np.float32(0.5)
    for start, rows, spare in _pieces(views, count):
        low, high = _select(rows, spare, middle)
        np.add(low * half, high * half, out=centre[start : start + low.size])
    for _ in range(ITERATIONS):
        distances = [math.sqrt(_squared_distance(view, centre)) for view in views]
        radius = median(distances)
        factors = [
            share * np.float32(1.0 if distance <= radius else radius / distance)
            for share, distance in zip(shares, distances, strict=True)
        ]
        _move(centre, views, factors)
    encode(centre, out)


_RULES: dict[Rule, Callable[[Sequence[Any], Sequence[int], int, Any], None]] = {
    "mean": weighted_mean,
    "clip": clipped_mean,
    "trimmed": trimmed_mean,
    "centered_clip": centered_clip,
}


def trim(members: int) -> int:
    """Return the number of values that a trimmed mean drops at each end: 1 of 3, 2 of 7 or 8, about a quarter of many."""
    return (members + 1) // 4


def median(values: Sequence[float]) -> float:
    """Return the median of the values; for an even number, the larger middle value, so neither of two members is clipped."""
    return sorted(values)[len(values) // 2]


def sum_of_squares(contribution: Any, count: int) -> float:
    """Return the sum of squares of code x scale.

    In a block it is exact but for rounding to fp64; blocks are summed by halving.
    """
    scales, codes = parts(contribution, count)
    squares = np.empty(blocks_of(count), np.float32)
    scratch = np.empty(BLOCK * blocks_of(min(PIECE, count)), np.float32)
    for start in range(0, count, PIECE):
        size, first = min(PIECE, count - start), start // BLOCK
        rows = blocks_of(size)
        scratch[:size] = codes[start : start + size]
        scratch[size : rows * BLOCK] = 0
        grid = scratch[: rows * BLOCK].reshape(rows, BLOCK)
        np.einsum("ij,ij->i", grid, grid, out=squares[first : first + rows])
    wide = scales.astype(np.float64)
    return _sum_by_halving(wide * wide * squares)


def _scaled_down(contribution: Any, count: int, factor: float) -> bytearray:
    copy = bytearray(contribution)
    scales, _ = parts(copy, count)
    np.multiply(scales, np.float32(factor), out=scales)
    return copy


# -- pieces of all members ---------------------------------------------------------------------------------------------


def _pieces(views: Sequence[View], count: int) -> Iterator[tuple[int, list[Floats], Floats]]:
    """Yield each piece: its start, the members' values in it, and a spare row.  The caller may overwrite the rows."""
    longest = min(count, max(BLOCK, WORKING // len(views) // BLOCK * BLOCK))
    room = np.empty((len(views) + 1, longest), np.float32)
    for start in range(0, count, longest):
        size = min(longest, count - start)
        rows = [row[:size] for row in room]
        for view, row in zip(views, rows, strict=False):
            _decode(view, start, row)
        yield start, rows[:-1], rows[-1]


def _decode(view: View, start: int, out: Floats) -> None:
    """Fill `out` with decoded values from `start` on; `start` is a multiple of the block."""
    scales, codes = view
    whole, first = out.size // BLOCK, start // BLOCK
    middle, stop = start + whole * BLOCK, start + out.size
    np.multiply(
        codes[start:middle].reshape(whole, BLOCK),
        scales[first : first + whole, None],
        out=out[: whole * BLOCK].reshape(whole, BLOCK),
    )
    if middle < stop:
        np.multiply(codes[middle:stop], scales[first + whole], out=out[whole * BLOCK :])


def _select(rows: list[Floats], spare: Floats, ranks: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return two coordinate-wise order statistics as views of `rows` and `spare`, whose other contents are overwritten."""
    rows = list(rows)
    for low, high, least, greatest in selection_network(len(rows), ranks):
        one, other = rows[low], rows[high]
        if least:
            np.minimum(one, other, out=spare)
        if greatest:
            np.maximum(one, other, out=other)
        if least:
            rows[low], spare = spare, one
    return rows[ranks[0]], rows[ranks[1]]


@lru_cache(maxsize=256)
def selection_network(count: int, ranks: tuple[int, ...]) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return comparators (low, high, minimum wanted, maximum wanted) that put the rows `ranks` into their places.

    Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M), without comparators on which no wanted rank depends.
    """
    network, top = [], 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            network += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    wanted, chosen = set(ranks), []
    for low, high in reversed(network):
        if low in wanted or high in wanted:
            chosen.append((low, high, low in wanted, high in wanted))
            wanted |= {low, high}
    return tuple(reversed(chosen))


# -- distances ---------------------------------------------------------------------------------------------------------


def _squared_distance(view: View, centre: Floats) -> float:
    longest = min(PIECE, centre.size)
    value, wide = np.empty(longest, np.float32), np.empty(longest, np.float64)
    totals = []
    for start in range(0, centre.size, PIECE):
        size = min(PIECE, centre.size - start)
        _decode(view, start, value[:size])
        np.subtract(value[:size], centre[start : start + size], out=value[:size])
        np.copyto(wide[:size], value[:size])
        np.multiply(wide[:size], wide[:size], out=wide[:size])
        totals.append(_sum_by_halving(wide[:size]))
    return math.fsum(totals)


def _sum_by_halving(values: npt.NDArray[np.float64]) -> float:
    """Sum `values`, overwriting them: add the second half to the first, elementwise, until at most `BLOCK` are left."""
    while (size := values.size) > BLOCK:
        half = (size + 1) // 2
        np.add(values[: size - half], values[half:], out=values[: size - half])
        values = values[:half]
    return math.fsum(values.tolist())


def _move(centre: Floats, views: Sequence[View], factors: Sequence[np.float32]) -> None:
    longest = min(PIECE, centre.size)
    value, total = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for start in range(0, centre.size, PIECE):
        here = centre[start : start + PIECE]
        difference, step = value[: here.size], total[: here.size]
        step[:] = 0
        for view, factor in zip(views, factors, strict=True):
            _decode(view, start, difference)
            np.subtract(difference, here, out=difference)
            np.multiply(difference, factor, out=difference)
            np.add(step, difference, out=step)
        np.add(here, step, out=here)
