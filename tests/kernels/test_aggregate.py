"""Every rule is its definition, bit for bit the same everywhere, and bounded in what a minority can do to it."""

from __future__ import annotations

import hashlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import aggregate as rules
from kernels.aggregate import Rule, aggregate, agreement_of, weights_of
from kernels.codecs.format import LARGEST, PIECE, Squares, norm, squares_in, write_squares
from kernels.codecs.ladder import LADDER, Codec
from kernels.layout import chunk_layouts
from tests.kernels import test_codecs, test_reduce
from tests.kernels.test_codecs import awkward
from tests.kernels.vectors import Floats, normal, vectors

RULES: tuple[Rule, ...] = get_args(Rule)
ROBUST = tuple(rule for rule in RULES if rule != "mean")


INT8 = LADDER["int8"]


def encoded(values: Floats) -> bytes:
    return test_codecs.encoded(INT8.contribution, values)


def decoded(data: bytes, count: int) -> Floats:
    return test_codecs.decoded(INT8.result, data, count)


def mean_of(parts: list[bytes], weights: list[int], count: int) -> bytes:
    return test_reduce.mean_of(INT8, parts, weights, count)


def of(rule: Rule, parts: list[bytes], count: int, weights: list[int] | None = None, codec: Codec = INT8) -> bytes:
    out = bytearray(codec.result.encoded_bytes(count))
    given = [memoryview(part) for part in parts]
    aggregate(rule, codec, given, weights or [100] * len(parts), count, memoryview(out))
    return bytes(out)


def values(rule: Rule, parts: list[bytes], count: int, weights: list[int] | None = None) -> Floats:
    return decoded(of(rule, parts, count, weights), count)


def around(centre: Floats, members: int, spread: float = 0.3) -> list[bytes]:
    """What honest members send: a common direction and noise of their own."""
    return [encoded(centre + np.float32(spread) * normal(centre.size, 1000 + seed)) for seed in range(members)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 255, 257, PIECE + 300])
def test_one_alone_is_what_it_is_under_every_rule(rule: Rule, count: int) -> None:
    part = encoded(normal(count))
    assert of(rule, [part], count) == mean_of([part], [100], count)


@pytest.mark.parametrize("rule", ROBUST)
def test_two_honest_members_give_their_mean(rule: Rule) -> None:
    parts = [encoded(normal(600, seed)) for seed in range(2)]
    assert of(rule, parts, 600, [4, 5]) == mean_of(parts, [4, 5], 600)
    assert of(rule, parts, 600, [4, 2**53]) == mean_of(parts, [4, 6], 600), "neither weighs more than the other and a half"


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("members", [3, 8])
@pytest.mark.parametrize("size", [1, 1000])
def test_values_beyond_the_parameters_gain_their_sender_nothing(rule: Rule, members: int, size: int) -> None:
    """A chunk at the end of the last fragment has such values; they count in norms, and are not applied."""
    count, beyond = 512, 1024
    centre = np.append(normal(count), np.zeros(beyond, np.float32))
    honest = [centre.copy() for _ in range(members - 1)]
    for seed, each in enumerate(honest):
        each[:count] += np.float32(0.3) * normal(count, 1000 + seed)
    wanted, distances = np.mean(honest, axis=0)[:count], []
    for fill in (0, size):
        liar = -centre
        liar[count:] = np.float32(fill) * normal(beyond, 9)
        parts = [encoded(each) for each in [*honest, liar]]
        result = of(rule, parts, count + beyond)
        distances.append(norm(decoded(result, count + beyond)[:count] - wanted))
        norms = sorted(norm(decoded(part, count + beyond)) for part in parts)
        assert squares_in(result).members <= (rules.CLIP * norms[members // 2]) ** 2, "the outer step follows from it"
    assert distances[1] <= distances[0]


def test_clip_scales_what_is_too_long_and_only_that() -> None:
    centre = normal(3000)
    honest, long = around(centre, 7), encoded(-1000 * centre)
    norms = [norm(decoded(part, 3000)) for part in [*honest, long]]
    factor = rules.CLIP * sorted(norms)[4] / norms[-1]
    expected = (sum(decoded(part, 3000) for part in honest) + np.float32(factor) * decoded(long, 3000)) / 8
    np.testing.assert_allclose(values("clip", [*honest, long], 3000), expected, atol=0.02)


@pytest.mark.parametrize("members", [3, 8, 13])
def test_trimmed_leaves_out_the_smallest_and_the_largest_of_each_coordinate(members: int) -> None:
    parts = [encoded(normal(1500, seed)) for seed in range(members)]
    k = rules.trim(members)
    inner = np.sort(np.stack([decoded(part, 1500) for part in parts]), axis=0)[k : members - k]
    expected = encoded(inner.mean(axis=0, dtype=np.float64).astype(np.float32))
    np.testing.assert_allclose(values("trimmed", parts, 1500), decoded(expected, 1500), atol=0.04)
    assert k >= 1


def test_trimmed_weighs_by_tokens_what_it_keeps() -> None:
    parts = [encoded(np.full(10, value, np.float32)) for value in (-9.0, 1.0, 2.0, 9.0)]
    np.testing.assert_allclose(values("trimmed", parts, 10, [30, 30, 10, 20]), 1.25, rtol=1e-5)


def test_centered_clip_is_its_formula() -> None:
    parts = [*around(normal(900), 6), encoded(50 * normal(900, 5)), encoded(-1000 * normal(900))]
    rows = np.stack([decoded(part, 900) for part in parts]).astype(np.float64)
    centre = np.median(rows, axis=0)
    limit = rules.CLIP * np.sort(np.abs(rows).max(axis=1))[4]
    rows = rows.clip(-limit, limit)
    for _ in range(rules.ITERATIONS):
        distances = np.linalg.norm(rows - centre, axis=1)
        radius = np.sort(distances)[4]
        centre = centre + np.mean((rows - centre) * np.minimum(1, radius / distances)[:, None], axis=0)
    np.testing.assert_allclose(values("centered_clip", parts, 900), centre, atol=0.02)


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("values_each", [1, 768], ids=["one parameter", "a row"])
@pytest.mark.parametrize("size", [3.0, 1e30])
def test_a_minority_moves_no_parameter_much_further_than_the_others_move_theirs(
    rule: Rule, name: str, values_each: int, size: float
) -> None:
    """It spends the whole norm that it may have on a few values, and claims as many tokens as count."""
    count, codec, hostile = 1 << 15, LADDER[name], 2
    honest = [normal(count, 50 + seed) for seed in range(8 - hostile)]
    attack = np.zeros(count, np.float32)
    attack[:values_each] = size
    parts = [test_codecs.encoded(codec.contribution, each) for each in [attack] * hostile + honest]
    given = [test_codecs.decoded(codec.contribution, part, count) for part in parts]
    result = of(rule, parts, count, [150] * hostile + [100] * len(honest), codec)
    moved = np.abs(test_codecs.decoded(codec.result, result, count)[:values_each])
    largest = np.sort([np.abs(each).max() for each in given])[4]
    own = 1.5 * hostile / (8 + hostile / 2)
    assert moved.max() <= 1.1 * (own * rules.CLIP + (1 - own)) * largest


@pytest.mark.parametrize("rule", ["clip", "centered_clip"])
def test_values_are_limited_by_the_median_of_the_largest_ones(rule: Rule) -> None:
    """Honest members of like shape lose nothing: neither by their norms nor by a value of a quarter more."""
    count = 4096
    parts = [encoded(np.where(np.arange(count) == member, np.float32(5), normal(count, member))) for member in range(7)]
    assert of("clip", parts, count) == mean_of(parts, [100] * 7, count)
    spiked = normal(count, 7)
    spiked[9] = 40
    expected = spiked.copy()
    expected[9] = rules.CLIP * 5
    np.testing.assert_allclose(
        values(rule, [*parts, encoded(spiked)], count)[9], values("mean", [*parts, encoded(expected)], count)[9], atol=0.15
    )


@pytest.mark.parametrize("rule", ROBUST)
def test_a_chunk_that_most_members_left_alone_stays_as_it_is(rule: Rule) -> None:
    parts = [encoded(np.zeros(600, np.float32)) for _ in range(5)] + [encoded(normal(600, seed)) for seed in range(2)]
    assert not values(rule, parts, 600).any()


@pytest.mark.parametrize(
    ("tokens", "weights"),
    [
        ([7], [7]),
        ([1000, 1], [1, 1]),
        ([1000, 2**53], [1000, 1500]),
        ([1000, 1000, 2**53], [1000, 1000, 1500]),
        ([1000, 1000, 4000, 4000], [1000, 1000, 1500, 1500]),
        ([1, 1, 1, 1000, 1000, 1000, 1000, 1000], [1, 1, 1, 1000, 1000, 1000, 1000, 1000]),
        ([1000] * 4 + [2**40] * 4, [1000] * 4 + [1500] * 4),
        ([250, 250, 500, 500, 500, 1000, 1000, 1000], [250, 250, 500, 500, 500, 750, 750, 750]),
        ([2**53 - 1, 2**53 - 1, 2**53], [2**53 - 1, 2**53 - 1, 2**53]),
    ],
)
def test_a_member_weighs_at_most_one_and_a_half_times_the_median_member(tokens: list[int], weights: list[int]) -> None:
    assert all(weights_of(rule, tokens) == weights for rule in ROBUST)
    assert weights_of("mean", tokens) == tokens


@given(st.lists(st.integers(1, 2**40), min_size=3, max_size=64), st.data())
def test_a_minority_cannot_claim_a_weight_for_itself_or_take_it_from_others(honest: list[int], data: st.DataObject) -> None:
    """The limit that fewer than half bring about lies between tokens of honest members, whatever they claim."""
    claims = data.draw(st.lists(st.sampled_from([1, 2, 2**20, 2**40, 2**53]), max_size=len(honest) - 1))
    weights = weights_of("clip", [*claims, *honest])
    limit = max(weights)
    assert limit <= 3 * max(honest) // 2
    assert all(
        weight >= min(each, 3 * min(honest) // 2) for weight, each in zip(weights[len(claims) :], honest, strict=True)
    )
    assert sum(weights_of("clip", [*claims, *[1000] * len(honest)])[: len(claims)]) <= 1500 * len(claims)


def test_the_median_counts_members() -> None:
    assert rules.median([5.0, 1.0, 3.0]) == 3.0
    assert rules.median([5.0, 1.0]) == 5.0, "of two the longer: neither clips the other"
    assert rules.median([1e30, 1e30, 1.0, 2.0, 1.5]) == 2.0
    assert rules.median([0.0, 0.0, 0.0, 1.0, 1.1, 1.2, 1.3, 1.4]) == 1.1, "three of eight that sent nothing"


@pytest.mark.slow
@settings(deadline=None)
@given(
    vectors(),
    st.lists(st.integers(1, 2**40), min_size=1, max_size=9),
    st.sampled_from(RULES),
    st.sampled_from([*LADDER.values()]),
)
def test_sane_contributions_give_a_sane_result(given: Floats, weights: list[int], rule: Rule, codec: Codec) -> None:
    """Never a number that is not finite, whatever finite numbers went in; and twice the same bytes."""
    parts = [test_codecs.encoded(codec.contribution, np.roll(given, place)) for place in range(len(weights))]
    result = of(rule, parts, given.size, weights, codec)
    assert codec.result.is_sane(result, given.size, is_result=True)
    assert of(rule, parts, given.size, weights, codec) == result


@pytest.mark.parametrize("codec", LADDER.values(), ids=LADDER)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("members", [3, 8, 64])
def test_the_largest_and_smallest_contributions_do_not_overflow(rule: Rule, members: int, codec: Codec) -> None:
    each = [test_codecs.encoded(codec.contribution, np.full(600, value, np.float32)) for value in (LARGEST, -LARGEST, 2e-30)]
    tokens = [(1, 2**40, 7)[place % 3] for place in range(members)]
    result = of(rule, [each[place % 3] for place in range(members)], 600, tokens, codec)
    assert codec.result.is_sane(result, 600, is_result=True)


@pytest.mark.parametrize("rule", ROBUST)
def test_a_minority_cannot_claim_that_the_members_do_not_agree(rule: Rule) -> None:
    honest = around(normal(3000), 7)
    most = max(INT8.contribution.sum_of_squares(part, 3000) for part in honest)
    assert squares_in(of(rule, [*honest, encoded(1e6 * normal(3000))], 3000)).members < 1.2 * most


def test_members_agree_as_far_as_in_the_median_chunk_of_a_result() -> None:
    layout = chunk_layouts(INT8, 2500, 1024).result
    values, result = normal(2500), bytearray(layout.payload_bytes)
    for span in layout:
        result[span.encoded] = of("clip", [encoded(values[span.values])] * 2, span.count)
    assert agreement_of(result, layout) == pytest.approx(1, rel=1e-3)
    for squares in (Squares(0, 0), Squares(1, 1e38), Squares(1e38, 1), Squares(1e-38, 1e38)):
        write_squares(memoryview(result)[layout[0].encoded], squares)
        assert agreement_of(result, layout) == pytest.approx(1, rel=1e-3), "one owner of three moves nothing"
    for span, squares in zip(layout, (Squares(1, 4), Squares(3, 4), Squares(1, 2)), strict=True):
        write_squares(memoryview(result)[span.encoded], squares)
    assert agreement_of(result, layout) == 0.5
    whole_and_rest = chunk_layouts(INT8, 1030, 1024).result
    result = bytearray(whole_and_rest.payload_bytes)
    for span, squares in zip(whole_and_rest, (Squares(1, 4), Squares(1, 1)), strict=True):
        write_squares(memoryview(result)[span.encoded], squares)
    assert agreement_of(result, whole_and_rest) == 0.25, "six values in a chunk of their own count as six"


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 64), st.data())
def test_the_selection_network_puts_the_wanted_ranks_in_place(count: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, (count - 1) // 2))
    row = data.draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    ranks = (rank, count - 1 - rank)
    found = list(row)
    for low, high, least, greatest in rules.selection_network(count, ranks):
        one, other = found[low], found[high]
        found[low] = min(one, other) if least else 99
        found[high] = max(one, other) if greatest else 99
    assert [found[place] for place in ranks] == [sorted(row)[place] for place in ranks]


@pytest.mark.parametrize("codec", LADDER)
@pytest.mark.parametrize("rule", RULES)
def test_golden_bytes(rule: Rule, codec: str) -> None:
    """The same on every computer and in every version: peers that differ here cannot train together."""
    count, step = 2 * PIECE + 300, LADDER[codec]
    values = awkward(count)
    scales = [(1.0, 40.0, 0.125)[member % 3] for member in range(9)]
    parts = [
        test_codecs.encoded(step.contribution, np.roll(values, 977 * member) * np.float32(scale))
        for member, scale in enumerate(scales)
    ]
    weights = [1000, 900, 1000, 20, 1000, 1000, 8000, 1, 1000]
    result = of(rule, parts, count, weights, step)
    assert hashlib.blake2b(result, digest_size=8).hexdigest() == GOLDEN[codec][RULES.index(rule)]


GOLDEN: dict[str, list[str]] = {
    "int8": ["6edddceabe5cd5ad", "fe3f029a601c2d26", "34ae9e608636f796", "47380cb7cd903882"],
    "int4": ["ccb46e97ddd5d822", "ea2ddee9801d116f", "dcf78cef80a02632", "924a57dfc872c60b"],
    "int2": ["73a7aee3202574fc", "f9b8606aa7d07d8f", "fd0fc11303415349", "e14c6d0c32846d61"],
    "top64": ["4479ea43e2e3fd59", "553ace2ed5268b02", "dd5dfc699a0bc8f4", "d2419de6c338140a"],
    "bf16": ["cd9d548b4f25e2de", "055dc15c1f08debf", "c23374d8e74c4e49", "d341c88ea35a97fa"],
}
"""For each codec, of the results by each rule in turn."""
