"""Aggregation rules, which compute one result from the contributions to a chunk, bit for bit the same on every computer.

    mean           weighted by tokens; one hostile member can move it any distance
    clip           mean of contributions whose norm is at most `CLIP` times the median norm, with limited values
    trimmed        coordinate by coordinate, the mean without the smallest and the largest quarter of the values
    centered_clip  mean of differences from a robust centre, each at most as long as the median one, with limited values

Every rule sees only one chunk: any peer that holds the contributions to a chunk can compute its result and check another
peer's result. A rule uses one number that a member claims about itself, its tokens. Except in `mean`, a member weighs at
most `WEIGHT_CAP` times the median of the members' tokens. Each median counts members, whatever tokens they claim. Fewer than
three contributions have no majority: `trimmed` and `centered_clip` then compute the mean with the capped weights. A single
contribution keeps its values under every rule.

A bound on a chunk's norm alone would let a member spend all of it on one parameter, and move that one hundreds of times as
far as honest members do. So `clip` and `centered_clip` also limit each value, to `CLIP` times the median of the members'
largest values.

The rules see decoded values, so they work with any formats of contributions and results. A result is a pure function of its
contributions and their members' tokens.

The bytes are the same everywhere because the rules use only these operations: elementwise IEEE operations in the order of
the members; selection by minimum and maximum, which does not round; formats' sums of squares; and other sums by halving,
elementwise, or by `math.fsum`, which is exact.

The header of a chunk's result tells how much the members agree: it has the sum of squares of the decoded result, and the
weighted mean of the members' sums of squares. If all members send the same, both are equal; the less the members agree, the
smaller is the first. The median over the values counts (`agreement_of`).

Memory besides the arguments: some MiB of scratch, and 4 bytes per value for `centered_clip`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from kernels.codecs.format import (
    ONE,
    PIECE,
    Doubles,
    Floats,
    Format,
    Squares,
    squares_in,
    sum_by_halving,
    total_of,
    write_squares,
)
from kernels.codecs.ladder import Codec
from kernels.layout import Layout

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

Piece = tuple[int, Floats]
"""Values of a result and their start in the chunk; their array is used again for the next piece."""


def aggregate(rule: Rule, codec: Codec, contributions: Sequence[Any], tokens: Sequence[int], count: int, out: Any) -> None:
    """Aggregate encoded `contributions` of `count` values each, in canonical order, into the encoded result `out`.

    The caller must drop contributions that are not sane.  tokens: token counts of the members, positive.  `out` must not
    overlap any contribution.
    """
    assert len(contributions) == len(tokens) > 0 and all(each > 0 for each in tokens)
    weights = weights_of(rule, tokens)
    parts = ChunkContributions(codec, contributions, count, limits_values=rule in ("clip", "centered_clip"))
    result = _encode(_RULES[rule](parts, weights), codec.result, out, count)
    squares = parts.sums_of_squares()
    factors = [1.0] * len(weights) if rule == "mean" else clip_factors(squares)
    if rule == "clip":
        limits = parts.value_limits(factors)
        # Contributions seldom exceed the limits, so a second mean costs less than a pass for all norms before the first.
        if min(factors) < 1 or any(limit is not None for limit in limits):
            result = _encode(clipped_mean(parts, weights, factors, limits), codec.result, out, count)
    clipped = (weight * square * factor * factor for weight, square, factor in zip(weights, squares, factors, strict=True))
    write_squares(out, Squares(result, math.fsum(clipped) / sum(weights)))


def _encode(pieces: Iterator[Piece], format: Format, out: Any, count: int) -> float:
    """Encode the pieces of a result into `out`; return the result's sum of squares."""
    format.write_header(out)
    return total_of([format.encode_and_square(values, out, count, start) for start, values in pieces])


def agreement_of(result: Any, layout: Layout) -> Fraction:
    """Return how much the members of a result agree, from 0 (not at all) to 1: the median over its values' chunks.

    So owners of fewer than half of the values cannot move it outside the range of the other chunks, whatever they write into
    the headers of theirs.
    """
    return weighted_median((squares_in(result[span.encoded]).agreement, span.count) for span in layout)


def weighted_median(each: Iterable[tuple[Fraction, int]]) -> Fraction:
    """Return the median of values with these counts; of two middle values, the larger."""
    ordered = sorted(each)
    half, passed = sum(count for _, count in ordered) / 2, 0
    for value, count in ordered:
        passed += count
        if passed > half:
            return value
    raise AssertionError("a value that counts")


def weights_of(rule: Rule, tokens: Sequence[int]) -> list[int]:
    """Return the members' weights under `rule`: their tokens, except in `mean` limited to `WEIGHT_CAP` times the median.

    For an even number of members the median is the smaller middle value, so that half of the members cannot raise it.
    """
    if rule == "mean":
        return list(tokens)
    limit = WEIGHT_CAP.numerator * sorted(tokens)[(len(tokens) - 1) // 2] // WEIGHT_CAP.denominator
    return [min(each, limit) for each in tokens]


def shares_of(weights: Sequence[int]) -> list[np.float32]:
    """Return each weight over the sum of weights, divided in fp64 and rounded to fp32; the result is the same everywhere."""
    total = sum(weights)
    return [np.float32(weight / total) for weight in weights]


def clip_factors(squares: Sequence[float]) -> list[float]:
    """Return the factors that scale contributions with these sums of squares down to at most `CLIP` times the median norm.

    A minority of the members cannot move the median norm outside the range of the other members' norms.
    """
    norms = [math.sqrt(square) for square in squares]
    limit = CLIP * median(norms)
    return [1.0 if norm <= limit else limit / norm for norm in norms]


class ChunkContributions:
    """Contributions to one chunk of `count` values, encoded."""

    def __init__(self, codec: Codec, contributions: Sequence[Any], count: int, *, limits_values: bool = False) -> None:
        self.codec, self.contributions, self.count = codec, contributions, count
        self._squares: list[list[Doubles]] = [[] for _ in contributions]
        self._largest = [0.0] * len(contributions) if limits_values else []

    def __len__(self) -> int:
        return len(self.contributions)

    def decode(
        self, member: int, start: int, out: Floats, factor: np.float32 = ONE, limit: np.float32 | None = None
    ) -> None:
        """Decode a member's values from `start` on, a multiple of the block, multiplied by `factor`.

        limit: largest magnitude of these products, to which larger ones are reduced; None for no limit.
        """
        self.codec.contribution.decode(self.contributions[member], self.count, out, start, factor)
        if limit is not None:
            np.clip(out, -limit, limit, out=out)

    def decode_first(self, member: int, start: int, out: Floats, factor: np.float32 = ONE) -> None:
        """Decode as `decode` does, the pieces of a member in turn, and square them for `sums_of_squares`."""
        part = self.contributions[member]
        self._squares[member].append(self.codec.contribution.decode_and_square(part, self.count, out, start, factor))
        if self._largest and factor:
            magnitude = float(max(out.max(), -out.min())) / float(factor)
            self._largest[member] = max(self._largest[member], magnitude)

    def value_limits(self, factors: Sequence[float]) -> list[np.float32 | None]:
        """Return the limit on each member's values, multiplied by its factor; None if they are within it.

        The limit is `CLIP` times the median of the members' largest magnitudes, which are known once all values were
        decoded. There is none if the rule limits no values.
        """
        if not self._largest:
            return [None] * len(self)
        limit = CLIP * median(self._largest)
        reaches = [largest * factor for largest, factor in zip(self._largest, factors, strict=True)]
        return [np.float32(limit) if reach > limit else None for reach in reaches]

    def sums_of_squares(self) -> list[float]:
        """Return each member's sum of squares, as `Format.sum_of_squares` does, after all pieces were decoded."""
        return [total_of(squares) for squares in self._squares]

    def pieces(self) -> Iterator[tuple[int, list[Floats], Floats]]:
        """Decode and square all values; yield each piece: its start, the members' values, and a spare row.

        The caller may overwrite the rows.
        """
        block = self.codec.block
        longest = min(self.count, max(block, WORKING // len(self) // block * block))
        room = np.empty((len(self) + 1, longest), np.float32)
        for start in range(0, self.count, longest):
            rows = [row[: min(longest, self.count - start)] for row in room]
            for member in range(len(self)):
                self.decode_first(member, start, rows[member])
            yield start, rows[:-1], rows[-1]


# ------------------------------------------------------------------------------------------------------------------------
# The rules: from the contributions and the weights to the pieces of the result.


def weighted_mean(parts: ChunkContributions, weights: Sequence[int]) -> Iterator[Piece]:
    """Average the contributions: the sum over members, in order, of the decoded values times share, in fp32."""
    shares = shares_of(weights)
    yield from _sum(parts, lambda member, start, out: parts.decode_first(member, start, out, shares[member]))


def clipped_mean(
    parts: ChunkContributions, weights: Sequence[int], factors: Sequence[float], limits: Sequence[np.float32 | None]
) -> Iterator[Piece]:
    """Average the contributions, each scaled by its factor and then with its values within its limit."""
    shares = shares_of(weights)
    scales = [share if factor == 1 else share * np.float32(factor) for share, factor in zip(shares, factors, strict=True)]
    bounds = [None if limit is None else share * limit for share, limit in zip(shares, limits, strict=True)]
    yield from _sum(parts, lambda member, start, out: parts.decode(member, start, out, scales[member], bounds[member]))


def _sum(parts: ChunkContributions, decode: Callable[[int, int, Floats], None]) -> Iterator[Piece]:
    """Add what `decode` writes for each member, in order; its arguments are the member, the start and the output."""
    longest = min(PIECE, parts.count)
    mean, term = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for start in range(0, parts.count, PIECE):
        total, value = (array[: min(PIECE, parts.count - start)] for array in (mean, term))
        decode(0, start, total)
        for member in range(1, len(parts)):
            decode(member, start, value)
            np.add(total, value, out=total)
        yield start, total


def trimmed_mean(parts: ChunkContributions, weights: Sequence[int]) -> Iterator[Piece]:
    """Aggregate by a weighted coordinate-wise trimmed mean (Yin et al. 2018, "Byzantine-robust distributed learning").

    Of the n values of a parameter, drop the values below rank k and above rank n - 1 - k, where k = `trim`(n). Ranks count
    from 0.
    """
    k = trim(len(parts))
    if k == 0:
        yield from weighted_mean(parts, weights)
        return
    shares, ranks = shares_of(weights), (k, len(parts) - 1 - k)
    for start, rows, spare in parts.pieces():
        low, high = _select(rows, spare, ranks)
        yield start, _mean_between(low, high, parts, shares, start)


def _mean_between(low: Floats, high: Floats, parts: ChunkContributions, shares: Sequence[np.float32], start: int) -> Floats:
    """Average the values from `low` to `high` in each coordinate, weighted by `shares`."""
    total, divisor = np.zeros_like(low), np.zeros_like(low)
    value, weight = np.empty_like(low), np.empty_like(low)
    kept, below = np.empty(low.size, np.bool_), np.empty(low.size, np.bool_)
    for member, share in enumerate(shares):
        parts.decode(member, start, value)
        np.greater_equal(value, low, out=kept)
        np.less_equal(value, high, out=below)
        np.logical_and(kept, below, out=kept)
        np.multiply(kept, share, out=weight)
        np.add(divisor, weight, out=divisor)
        np.multiply(value, weight, out=value)
        np.add(total, value, out=total)
    np.divide(total, divisor, out=total)
    return total


def centered_clip(parts: ChunkContributions, weights: Sequence[int]) -> Iterator[Piece]:
    """Aggregate by centered clipping (Karimireddy et al. 2021, "Learning from history for Byzantine robust optimization").

    The rule repeats `centre += sum of share * (value - centre) * min(1, radius / distance)` `ITERATIONS` times. The paper
    starts from the last round's result, with the radius as a parameter. This function starts from the coordinate-wise median
    and uses the median distance as the radius, so a chunk's result depends only on its contributions. Values beyond the
    members' limit (`ChunkContributions.value_limits`) count as the limit.
    """
    members = len(parts)
    if members < 3:
        yield from weighted_mean(parts, weights)
        return
    shares = shares_of(weights)
    centre = np.empty(parts.count, np.float32)
    middle = ((members - 1) // 2, members // 2)
    half = np.float32(0.5)
    for start, rows, spare in parts.pieces():
        low, high = _select(rows, spare, middle)
        np.add(low * half, high * half, out=centre[start : start + low.size])
    limits = parts.value_limits([1.0] * members)
    for _ in range(ITERATIONS):
        distances = [math.sqrt(_squared_distance(parts, member, centre, limits[member])) for member in range(members)]
        radius = median(distances)
        _move(
            centre,
            parts,
            [
                share * np.float32(1.0 if distance <= radius else radius / distance)
                for share, distance in zip(shares, distances, strict=True)
            ],
            limits,
        )
    yield 0, centre


_RULES: dict[Rule, Callable[[ChunkContributions, Sequence[int]], Iterator[Piece]]] = {
    "mean": weighted_mean,
    "clip": weighted_mean,
    "trimmed": trimmed_mean,
    "centered_clip": centered_clip,
}


def trim(members: int) -> int:
    """Return the number of values that a trimmed mean drops at each end: 1 of 3, 2 of 7 or 8, about a quarter of many."""
    return (members + 1) // 4


def median(values: Sequence[float]) -> float:
    """Return the median of the values; for an even number, the larger middle value, so neither of two members is clipped."""
    return sorted(values)[len(values) // 2]


# -- selection ---------------------------------------------------------------------------------------------------------


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


def _squared_distance(parts: ChunkContributions, member: int, centre: Floats, limit: np.float32 | None) -> float:
    longest = min(PIECE, centre.size)
    value, wide = np.empty(longest, np.float32), np.empty(longest, np.float64)
    totals = []
    for start in range(0, centre.size, PIECE):
        size = min(PIECE, centre.size - start)
        parts.decode(member, start, value[:size], limit=limit)
        np.subtract(value[:size], centre[start : start + size], out=value[:size])
        np.copyto(wide[:size], value[:size])
        np.multiply(wide[:size], wide[:size], out=wide[:size])
        totals.append(float(sum_by_halving(wide[:size])))
    return math.fsum(totals)


def _move(
    centre: Floats, parts: ChunkContributions, factors: Sequence[np.float32], limits: Sequence[np.float32 | None]
) -> None:
    longest = min(PIECE, centre.size)
    value, total = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for start in range(0, centre.size, PIECE):
        here = centre[start : start + PIECE]
        difference, step = value[: here.size], total[: here.size]
        step[:] = 0
        for member, (factor, limit) in enumerate(zip(factors, limits, strict=True)):
            parts.decode(member, start, difference, limit=limit)
            np.subtract(difference, here, out=difference)
            np.multiply(difference, factor, out=difference)
            np.add(step, difference, out=step)
        np.add(here, step, out=here)
