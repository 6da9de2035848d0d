"""Proofs of hidden states: the bytes of toploc 0.1.6, what verification says, and what nobody could have proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import toploc
from kernels.toploc import (
    PRIME,
    MalformedProof,
    Mismatch,
    Thresholds,
    check_form,
    compare,
    compare_all,
    evaluate,
    interpolate,
    prove,
    prove_all,
)

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "toploc.json").read_text())
"""Made with toploc 0.1.6.  exact: whether the largest values are without equals, so that the bytes are determined."""


def as_hidden(bits: np.ndarray, tokens: int, dim: int) -> Tensor:
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).view(tokens, dim)


def golden_bits(case: dict[str, Any]) -> np.ndarray:
    """Zeros, and 160 values of magnitudes that differ, spread over the chunk; every third is negative."""
    bits = np.zeros(case["n"] * case["h"], np.uint16)
    for number in range(160):
        bits[(number * 8191 + 5) % len(bits)] = (0x3F80 + number) | (0x8000 if number % 3 == 0 else 0)
    return bits


def states(tokens: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, dim, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['n']}x{case['h']} k={case['k']}")
def test_proofs_are_the_bytes_of_the_original(case: dict[str, Any]) -> None:
    hidden = as_hidden(golden_bits(case), case["n"], case["h"])
    proofs = prove(hidden, case["k"], case["B"])
    assert len(proofs) == len(case["proofs"])
    for proof, golden, exact in zip(proofs, case["proofs"], case["exact"], strict=True):
        assert (proof.hex() == golden) or not exact


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['n']}x{case['h']} k={case['k']}")
def test_comparison_says_what_the_original_says(case: dict[str, Any]) -> None:
    bits = golden_bits(case)
    bits[(bits != 0) & (bits & 0x7F <= 124)] += 3
    hidden = as_hidden(bits, case["n"], case["h"])
    found = compare(hidden, [bytes.fromhex(proof) for proof in case["proofs"]], case["k"], case["B"])
    for mismatch, (exponents, mean, median), exact in zip(found, case["verify_plus3"], case["exact"], strict=True):
        assert mismatch == Mismatch(exponents, mean, median) or not exact
        assert Thresholds().accept(mismatch)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_polynomials_go_through_their_points(points: int, sets: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.stack([rng.choice(PRIME, points, replace=False) for _ in range(sets)])
    y = rng.integers(0, PRIME, x.shape)
    coefficients = interpolate(x, y)
    assert coefficients.min() >= 0 and coefficients.max() < PRIME
    assert (evaluate(coefficients, x) == y).all()
    x0, powers = int(x[0, 0]), [int(each) for each in coefficients[0]]
    assert sum(each * pow(x0, power, PRIME) for power, each in enumerate(powers)) % PRIME == y[0, 0]


def test_own_proofs_match_and_a_batch_gives_what_each_gives() -> None:
    sequences = [states(tokens, 128, tokens) for tokens in (1, 32, 33, 100, 64)]
    together = prove_all(sequences)
    assert together == [prove(each) for each in sequences]
    assert [len(proof) for proof in together[2]] == [258, 258]
    for mismatches in compare_all(sequences, together):
        assert all(mismatch == Mismatch(0, 0.0, 0.0) for mismatch in mismatches)
    assert compare_all(sequences, together)[3] == compare(sequences[3], together[3])


def test_no_tokens_need_no_proof() -> None:
    assert prove(states(0, 128)) == [] == compare(states(0, 128), [])


def test_the_sign_is_not_compared_and_other_states_are_far_off() -> None:
    hidden = states(64, 128)
    proofs = prove(hidden)
    assert compare(-hidden, proofs) == [Mismatch(0, 0.0, 0.0)] * 2
    assert not any(Thresholds().accept(each) for each in compare(states(64, 128, seed=1), proofs))


def test_where_no_exponent_agrees_mean_and_median_say_so() -> None:
    hidden = torch.full((1, 4), 2.0).bfloat16()
    (mismatch,) = compare(hidden * 4, prove(hidden))
    assert mismatch == Mismatch(4, toploc.NOTHING_AGREES, toploc.NOTHING_AGREES)
    assert not Thresholds().accept(mismatch)


def test_states_that_are_not_numbers_are_proved_and_compared_without_an_error() -> None:
    hidden = states(32, 128)
    hidden[3, 5], hidden[4, 6] = float("nan"), float("inf")
    assert compare(hidden, prove(hidden)) == [Mismatch(0, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda proofs: proofs[:-1], "1 proofs for 2 chunks"),
        (lambda proofs: [proofs[0], b""], "proof 1 has 0 bytes"),
        (lambda proofs: [proofs[0] + b"\0\0", proofs[1]], "proof 0 has 260 bytes"),
        (lambda proofs: [b"\0\0" + proofs[0][2:], proofs[1]], "modulus 0"),
        (lambda proofs: [b"\0\x7f" + proofs[0][2:], proofs[1]], "modulus 127"),
        (lambda proofs: [b"\xff\xda" + proofs[0][2:], proofs[1]], "modulus 65498"),
        (lambda proofs: [proofs[0][:-2] + b"\xff\xd9", proofs[1]], "coefficient out of range"),
    ],
)
def test_what_nobody_can_have_proved_is_malformed(spoil: Any, why: str) -> None:
    hidden = states(40, 128)
    with pytest.raises(MalformedProof, match=why):
        compare(hidden, spoil(prove(hidden)))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(0, 70))
def test_any_bytes_are_malformed_or_a_mismatch(proofs: list[bytes], tokens: int) -> None:
    hidden = states(tokens, 128)
    try:
        check_form(proofs, tokens, 128)
    except MalformedProof:
        return
    assert len(compare(hidden, proofs)) == len(proofs)
