"""The noise is a fixed function of key, position and token; the choice follows the softmax, and its shortfall is 0."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.generate.sampling import choose, noise_bits, probability, shortfall, stream_key, uniform

MASK = 2**64 - 1
RUN = bytes(range(32))
GOLDEN_KEYS = [-4247584851049897712, -8381455231396802616]
GOLDEN_BITS = [
    "0c51523d30c41df8", "3434ae72b472e33b", "26be793e7885dc6b", "d98b74879308ba60", "e44c4e74bacf1ec3", "3be826ab1e7f0d45",
]  # fmt: skip


def mixed(value: int) -> int:
    """SplitMix64's finalizer in Python's integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def bits_by_hand(key: int, position: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    return mixed(mixed(key + (position + 1) * golden & MASK) + (token + 1) * golden & MASK)


def unsigned(values: Tensor) -> list[int]:
    return [value & MASK for value in values.flatten().tolist()]


def test_integers_are_golden() -> None:
    assert [mixed(0x9E3779B97F4A7C15 * n & MASK) for n in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4], "SplitMix64"
    keys = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), stream_key(RUN, 3, "peer", 0, 5, 7)])
    positions = torch.tensor([0, 1, 2, 3, 2**31, 1000])
    bits = noise_bits(keys, positions, 40)
    assert unsigned(bits) == [
        bits_by_hand(key & MASK, position, token)
        for key, position in zip(keys.tolist(), positions.tolist(), strict=True)
        for token in range(40)
    ]
    assert [f"{value:016x}" for value in unsigned(bits[:, 39])] == GOLDEN_BITS


def test_stream_keys_are_golden_and_every_part_counts() -> None:
    keys = [
        stream_key(RUN, 0, "a", 0, 0, 0),
        stream_key(RUN, 1, "a", 0, 0, 0),
        stream_key(RUN, 0, "b", 0, 0, 0),
        stream_key(RUN, 0, "a", 1, 0, 0),
        stream_key(RUN, 0, "a", 0, 1, 0),
        stream_key(RUN, 0, "a", 0, 0, 1),
        stream_key(RUN[1:], 0, "a", 0, 0, 0),
        stream_key(RUN, 11, "a", 1, 1, 1),
        stream_key(RUN, 1, "1a", 1, 1, 1),
    ]
    assert keys[:2] == GOLDEN_KEYS
    assert len(set(keys)) == len(keys)
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_uniform_numbers_are_inside_the_open_interval_and_noise_is_finite() -> None:
    extremes = torch.tensor([0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63)])
    values = uniform(extremes)
    assert values.min() > 0.0 and values.max() < 1.0
    noise = -torch.log(-torch.log1p(-values))
    assert noise.isfinite().all() and noise.max() > 40


@pytest.mark.parametrize("along", ["keys", "positions"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_tokens_follow_the_softmax(along: str, temperature: float) -> None:
    draws = 60_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 1.5, 0.25])
    count = torch.arange(draws)
    keys, positions = (count, torch.full_like(count, 17)) if along == "keys" else (torch.full_like(count, 12345), count)
    tokens = choose(logits.expand(draws, -1), keys, positions, temperature)
    expected = torch.softmax(logits / temperature, 0)
    assert chi_square(torch.bincount(tokens, minlength=8), expected) < limit(7)
    pairs = tokens[:-1] * 8 + tokens[1:]  # one draw says nothing about the next
    assert chi_square(torch.bincount(pairs, minlength=64), torch.outer(expected, expected).flatten()) < limit(63)


def chi_square(counts: Tensor, expected: Tensor) -> float:
    wanted = expected.double() * counts.sum()
    return float(((counts - wanted).square() / wanted).sum())


def limit(freedom: int) -> float:
    """What chi-square exceeds once in 1000 cases (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


def test_choice_depends_on_its_own_row_alone() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    keys, positions = torch.arange(6) * 977, torch.arange(6) + 40
    together = choose(logits, keys, positions, 0.8)
    apart = [int(choose(logits[n : n + 1], keys[n : n + 1], positions[n : n + 1], 0.8)) for n in range(6)]
    assert together.tolist() == apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shortfall_is_zero_for_the_chosen_tokens_and_above_for_all_others(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(40, 64, generator=torch.Generator().manual_seed(2))).to(dtype)
    positions, keys = torch.arange(40) + 9, torch.full((40,), stream_key(RUN, 1, "peer", 0, 2, 3))
    tokens = choose(logits, keys, positions, 0.7)
    assert shortfall(logits, tokens, keys, positions, 0.7).abs().max() == 0
    for other in range(1, 64):
        assert shortfall(logits, (tokens + other) % 64, keys, positions, 0.7).min() > 0
    assert shortfall(logits, tokens, keys + 1, positions, 0.7).max() > 1


def test_shortfall_names_tokens_outside_the_vocabulary_and_is_infinite_where_the_logits_are_not_numbers() -> None:
    logits, ones, keys = torch.tensor([[math.nan, 1.0], [1.0, 2.0]]), torch.tensor([1, 1]), torch.tensor([0, 0])
    assert shortfall(logits, ones, keys, torch.tensor([0, 1]), 0.0).tolist() == [math.inf, 0.0]
    for token in (-1, 3):
        with pytest.raises(ValueError, match="outside the vocabulary of 3"):
            shortfall(torch.zeros(1, 3), torch.tensor([token]), torch.tensor([0]), torch.tensor([0]), 1.0)
        with pytest.raises(ValueError, match="outside the vocabulary of 3"):
            probability(torch.zeros(1, 3), torch.tensor([token]), 1.0)
