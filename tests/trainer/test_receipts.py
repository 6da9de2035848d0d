"""Receipts of rows: equal for equal weights whatever else is computed beside them, and unlike for other rows or weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig
from tests.trainer import small
from tests.trainer.test_adapters import base_of, random_factors
from tests.trainer.weights.models import random_parameters
from trainer.data.rows import Rows
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, PreferenceObjective
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.receipts import (
    PARTS,
    WIDTH,
    GradientProjection,
    Receipts,
    cosines,
    receipts_at,
)

SEED, Z_LOSS, LENGTH = 3, 2e-4, 16
OBJECTIVE = LanguageModelObjective()


def rows(count: int = 6, seed: int = 0) -> Rows:
    return Rows(np.random.default_rng(seed).integers(0, 256, (count, LENGTH + 1)).astype(np.uint8))


def masked(count: int = 6) -> Rows:
    """Rows of three documents each, the first of which does not count in every second row."""
    made, documents_bt = rows(count), np.zeros((count, LENGTH), np.int32)
    documents_bt[:, 5:] = 1
    documents_bt[:, 11:] = 2
    counts_bt = np.ones((count, LENGTH), np.bool_)
    counts_bt[::2, :5] = False
    return replace(made, documents_bt=documents_bt, counts_bt=counts_bt)


def audited(some: Rows, most: int = 8, theta: np.ndarray | None = None, dtype: torch.dtype = torch.float32) -> Receipts:
    model = small.model().over(torch.from_numpy(small.theta() if theta is None else theta))
    model.compute_dtype = dtype
    return receipts_at(model, OBJECTIVE, some, Z_LOSS, SEED, most)


def trained(some: Rows, part: int = 8, recomputed: int = 0) -> tuple[Receipts, Decoder]:
    """Receipts of a step with micro-batches of `part` rows, and the model after the step."""
    loop = InnerLoop(WholeParameters(small.model()), small.config().inner)
    keeper = loop.keep_receipts(SEED)
    loop.model.recomputed = recomputed
    loop._accumulate(some, part)
    return keeper.take()[1], loop.model


def assert_alike(one: Receipts, other: Receipts) -> None:
    """Equal up to one unit of rounding."""
    assert len(one) == len(other)
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=2e-3)
    assert np.abs(one["projections"].astype(int) - other["projections"].astype(int)).max() <= 1


@pytest.mark.parametrize("make", [rows, masked])
def test_receipts_of_equal_weights_are_alike_whatever_the_micro_batch(make: Any) -> None:
    whole, _ = trained(make())
    for other in (trained(make(), 1)[0], trained(make(), 4)[0], trained(make(), 8, 2)[0], audited(make(), 2)):
        assert_alike(whole, other)
        np.testing.assert_allclose(cosines(whole, other), 1, atol=2e-4)


@pytest.mark.parametrize("make", [rows, masked])
def test_a_receipt_does_not_depend_on_the_other_rows_of_the_step(make: Any) -> None:
    whole = audited(make())
    for row in range(6):
        assert_alike(whole[row : row + 1], audited(make()[row : row + 1]))
    joined = Rows.joined([make(), replace(make()[:1], tokens_bt=rows(1, 9).tokens_bt)])
    assert_alike(whole, audited(joined)[:6])


def test_keeping_receipts_changes_no_gradient() -> None:
    loop = InnerLoop(WholeParameters(small.model()), small.config().inner)
    loop._accumulate(rows(), 4)
    _, model = trained(rows(), 4)
    assert torch.equal(loop.model.gradient, model.gradient)


def test_receipts_are_unlike_those_of_other_rows_and_little_unlike_at_near_weights() -> None:
    some, theta = rows(32), small.theta()
    near = theta + np.float32(0.02 * theta.std()) * np.random.default_rng(1).standard_normal(len(theta)).astype(np.float32)
    assert cosines(audited(some), audited(some, theta=near)).min() > 0.9
    assert abs(cosines(audited(some), audited(rows(32, 1))).mean()) < 0.3


def test_bf16_is_audited_in_fp32() -> None:
    some = rows(16)
    assert cosines(audited(some, dtype=torch.bfloat16), audited(some)).min() > 0.98


def test_projections_keep_cosines_and_depend_on_the_seed_alone() -> None:
    random = torch.Generator().manual_seed(0)
    gradient = torch.randn(64, 12, 16, generator=random)
    other = 0.8 * gradient + 0.6 * torch.randn(64, 12, 16, generator=random)
    project, again = GradientProjection(SEED, 16), GradientProjection(SEED, 16)
    again(torch.zeros(1, 5, 16))  # a shorter row before
    assert torch.equal(project(gradient), again(gradient))
    assert not torch.equal(project(gradient), GradientProjection(SEED + 1, 16)(gradient))
    assert project(gradient).shape == (64, PARTS, WIDTH)
    mean = torch.cosine_similarity(project(gradient), project(other), dim=-1).mean()
    assert abs(float(mean) - 0.8) < 0.03
    lower = gradient.clone()
    lower[:, 3:] = 0
    assert torch.equal(project(lower)[:, 0], project(gradient)[:, 0]) and not project(lower)[:, 1:].any()


def test_signs_are_the_same_on_all_computers() -> None:
    project = GradientProjection(SEED, 2)
    ones = project(torch.ones(1, 4, 2))
    assert ones[0, 0, :8].tolist() == [2.0, 0.0, 2.0, -2.0, -2.0, 0.0, -2.0, -2.0]


def test_rows_that_count_no_token_say_nothing() -> None:
    some = replace(rows(4), counts_bt=np.zeros((4, LENGTH), np.bool_))
    receipts = audited(some)
    assert not receipts["projections"].any() and not receipts["loss"].any()
    assert np.isnan(cosines(receipts, receipts)).all()
    assert (cosines(receipts, audited(rows(4))) == 0).all(), "a claim of no gradient is not like a gradient"


def test_both_rows_of_a_pair_have_receipts() -> None:
    from kernels.losses import PreferenceTerms

    objective = PreferenceObjective(PreferenceTerms(0.1, 0.0))
    pairs = replace(rows(4), counts_bt=np.ones((4, LENGTH), np.bool_), reference_b=np.full(4, -80, np.float32))
    model = small.model().over(torch.from_numpy(small.theta()))
    receipts = receipts_at(model, objective, pairs, 0.0, SEED, 8)
    assert len(receipts) == 4 and receipts["loss"][0] == receipts["loss"][1] != receipts["loss"][2]
    assert_alike(receipts, receipts_at(model, objective, pairs, 0.0, SEED, 1))


def test_factors_beside_a_frozen_embedding_have_receipts() -> None:
    config, adapter = ModelConfig.from_mapping(small.MODEL), AdapterConfig(rank=3, alpha=5.0)
    base, factors = base_of(config, adapter, random_parameters(config)), random_factors(config, adapter)
    model = Decoder(config, small.CPU, base=base)
    model.flat.copy_(factors)
    loop = InnerLoop(WholeParameters(model), small.config().inner)
    keeper = loop.keep_receipts(SEED)
    loop._accumulate(rows(), 4)
    receipts = keeper.take()[1]
    assert receipts["projections"].any()
    assert_alike(receipts, receipts_at(model.over(factors), OBJECTIVE, rows(), Z_LOSS, SEED, 8))
