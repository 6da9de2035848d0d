"""No tolerance of a rollout's tokens grows with the number of tokens about which the model is certain."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kernels.toploc import Mismatch
from protocol.formats.rl import RlConfig
from trainer.generate.sampling import choose, near_ties, shortfall
from trainer.rl.verification import (
    DEVICES_APART,
    MOST_BEYOND,
    RATE_FACTOR,
    SLACK,
    BatchBounds,
    Choices,
    RejectionReason,
    Tolerances,
)

USUAL = Tolerances.of(RlConfig())
END = 0


def choices(shortfalls: Sequence[float], densities: Sequence[float] | float = 0.0) -> Choices:
    count = len(shortfalls)
    dense = torch.full((count,), densities) if isinstance(densities, float) else torch.tensor(densities)
    return Choices(torch.ones(count, dtype=torch.int64), torch.tensor(shortfalls), torch.ones(count), dense)


def bounds(tolerances: Tolerances = USUAL) -> BatchBounds:
    return BatchBounds(tolerances, [END], 128)


def is_refused(within: BatchBounds, chosen: Choices) -> bool:
    flaw = within.flaw(within.measured([], chosen), chosen, [], "")
    assert flaw is None or flaw[0] is RejectionReason.BAD_SAMPLING
    return flaw is not None


def most_written(length: int, each: float) -> int:
    """Tokens with this shortfall that pass in an output of `length` tokens, among tokens of which the model is certain."""
    for count in range(length):
        places = set(random.Random(length).sample(range(length), count + 1))
        if is_refused(bounds(), choices([each if at in places else 0.0 for at in range(length)])):
            return count
    return length


@pytest.mark.parametrize("each", [0.02, 0.1, 0.26, 0.49, 0.51, 0.9, 1.1, 3.0, 8.0, math.inf])
def test_tokens_that_pass_do_not_grow_with_tokens_of_which_the_model_is_certain(each: float) -> None:
    passing = {length: most_written(length, each) for length in (48, 480, 4800)}
    assert len(set(passing.values())) == 1, passing
    assert passing[48] * each <= SLACK or passing[48] == 0


def test_a_token_beyond_the_ceiling_is_refused_however_wide_the_sum() -> None:
    wide = replace(USUAL, shortfall=1.0, slack=100.0)
    assert not is_refused(bounds(wide), choices([0.0] * 500 + [0.99], 1.0))
    assert is_refused(bounds(wide), choices([0.0] * 500 + [1.01], 1.0))


def test_two_tokens_beyond_and_no_third_in_outputs_of_any_length() -> None:
    tight = Tolerances(USUAL.proofs, 0.05, 0.4, 1e-3, 0.1)
    for length in (10, 1000, 30_000):
        some = [0.0] * length
        for count, place in enumerate((0, length // 2, length - 1), start=1):
            some[place] = 0.06
            assert is_refused(bounds(tight), choices(some)) is (count > MOST_BEYOND), (length, count)


def test_the_sum_follows_the_density_of_near_ties() -> None:
    allowed = RATE_FACTOR * USUAL.rate
    for length in (100, 10_000):
        assert not is_refused(bounds(), choices([0.99 * allowed] * length, 1.0))
        assert not is_refused(bounds(), choices([0.99 * allowed / 2] * length, 0.5))
    assert is_refused(bounds(), choices([2 * allowed] * 10_000, 1.0))
    assert is_refused(bounds(), choices([0.99 * allowed] * 10_000, 0.5))


def test_allowance_that_honest_tokens_leave_is_not_saved_up_for_the_answer() -> None:
    for length in (0, 100, 30_000):
        assert is_refused(bounds(), choices([0.0] * length + [0.3, 0.3], 0.9))
        assert is_refused(bounds(), choices([0.3, 0.3] + [0.0] * length, 0.9))


def test_a_batch_has_the_slack_once() -> None:
    within = bounds()
    each = choices([0.0] * 20 + [0.2])
    assert [is_refused(within, each) for _ in range(6)] == [False, False, True, True, True, True]
    assert is_refused(within := bounds(), choices([0.3, 0.3]))
    assert not is_refused(within, choices([0.4])), "a rejected rollout is not held against those after it"
    within = bounds()
    for _ in range(1000):  # what near-ties explain is no cheat, in as many rollouts as there may be
        assert not is_refused(within, choices([0.0] * 20 + [0.02], 0.9))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_figures_that_are_not_numbers_are_refused_for_all_devices(bad: float, place: int) -> None:
    some, dense = [0.0] * 100, [0.5] * 100
    some[place] = bad
    for factor in (1 - DEVICES_APART, 1.0, 1 + DEVICES_APART):
        assert is_refused(bounds(USUAL.times(factor)), choices(some, 0.5))
    dense[place] = bad
    if math.isnan(bad):
        assert is_refused(bounds(), choices([0.0] * 100, dense))


def test_a_short_chunk_may_have_as_few_other_exponents_as_its_values_are_fewer() -> None:
    within = bounds()
    for values, most in ((128, 38), (64, 19), (16, 5), (2, 1)):
        for count in (most, most + 1):
            measured = within.measured([Mismatch(count, 0.0, 0.0)], choices([0.0]))
            flaw = within.flaw(measured, choices([0.0]), [values], "")
            assert (flaw is not None) is (count > most), values


def test_the_mean_shortfall_of_noisy_logits_is_their_variance_times_the_density() -> None:
    """For a normal error of variance v in the difference of two logits it is v / 4 times 1 - sum p^2."""
    torch.manual_seed(6)
    row, count, error = torch.randn(30), 60_000, 0.1
    keys, positions = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    logits = row.expand(count, 30)
    chosen = choose(logits + error * torch.randn(count, 30), keys, positions, 1.0)
    mean = float(shortfall(logits, chosen, keys, positions, 1.0).mean())
    assert mean == pytest.approx(2 * error**2 / 4 * float(near_ties(row[None], 1.0)[0]), rel=0.15)
