"""The chunked loss of preferences is the plain formula, gradients included; rows of a pair are chosen, then rejected."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.losses import (
    PreferenceTerms,
    PreferenceTokens,
    preference_loss,
    row_log_probabilities,
    token_log_probabilities,
)

VOCAB, DIM, SHAPE = 23, 8, (6, 7)
F64 = torch.float64
TERMS = [PreferenceTerms(), PreferenceTerms(0.5), PreferenceTerms(0.3, 0.1), PreferenceTerms(5.0, 0.4)]


class Case:
    """Hidden states, weights and tokens of three pairs, with margins on both sides of 0."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = F64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(*SHAPE, DIM, generator=generator, dtype=dtype).requires_grad_()
        self.weight = torch.randn(VOCAB, DIM, generator=generator, dtype=dtype).requires_grad_()
        targets = torch.randint(VOCAB, SHAPE, generator=generator)
        mask = torch.rand(SHAPE, generator=generator) < 0.6
        logp = self.plain_logp(targets, mask).detach()
        self.tokens = PreferenceTokens(targets, mask, logp + 2 * torch.randn(SHAPE[0], generator=generator, dtype=dtype))

    def plain_logp(self, targets: Tensor, mask: Tensor) -> Tensor:
        log_p = torch.log_softmax(self.hidden @ self.weight.T, dim=-1).gather(-1, targets[..., None]).squeeze(-1)
        return (log_p * mask).sum(dim=1)

    def plain(self, terms: PreferenceTerms) -> tuple[Tensor, Tensor]:
        """The formula as it is written, with all logits in memory and torch's gradients; and the margins."""
        ratio = self.plain_logp(self.tokens.targets, self.tokens.mask) - self.tokens.reference_logp
        margin = terms.beta * (ratio[[0, 2, 4]] - ratio[[1, 3, 5]])
        rate = terms.label_smoothing
        return (-(1 - rate) * margin.sigmoid().log() - rate * (-margin).sigmoid().log()).mean(), margin.detach()


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 4096])
def test_loss_margins_and_gradients_are_those_of_the_plain_formula(terms: PreferenceTerms, chunk_tokens: int) -> None:
    for seed in range(5):
        case = Case(seed)
        wanted, margins = case.plain(terms)
        wanted_gradients = torch.autograd.grad(wanted * 3, [case.hidden, case.weight])
        loss, statistics = preference_loss(case.hidden, case.weight, case.tokens, terms, chunk_tokens)
        gradients = torch.autograd.grad(loss * 3, [case.hidden, case.weight])
        torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(statistics.margins, margins, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(statistics.losses.mean(), wanted.detach(), rtol=1e-12, atol=1e-12)
        for got, expected in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_gradients_are_finite_differences_of_the_loss() -> None:
    case, terms = Case(3), PreferenceTerms(0.7, 0.1)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return preference_loss(hidden, weight, case.tokens, terms, 4)[0]

    assert torch.autograd.gradcheck(loss, (case.hidden, case.weight), eps=1e-6, atol=1e-6)


def test_a_model_that_is_the_reference_has_no_margin_and_the_loss_of_a_coin() -> None:
    case = Case()
    same = case.tokens._replace(reference_logp=case.plain_logp(case.tokens.targets, case.tokens.mask).detach())
    for terms in TERMS:
        loss, statistics = preference_loss(case.hidden, case.weight, same, terms)
        assert float(loss.detach()) == pytest.approx(math.log(2)) and statistics.margins.abs().max() < 1e-12


def test_a_huge_margin_gives_a_finite_loss_and_gradient() -> None:
    case = Case()
    for sign in (-1, 1):
        far = case.tokens._replace(reference_logp=sign * torch.tensor([1e4, -1e4] * 3, dtype=F64))
        loss, _ = preference_loss(case.hidden, case.weight, far, PreferenceTerms(0.5, 0.1))
        [gradient] = torch.autograd.grad(loss, [case.hidden])
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()


def test_row_sums_are_those_of_the_tokens_and_rows_without_counted_tokens_have_none() -> None:
    case = Case()
    mask = case.tokens.mask.clone()
    mask[2] = False
    sums = row_log_probabilities(case.hidden, case.weight, case.tokens.targets, mask, 3)
    each = token_log_probabilities(case.hidden, case.weight, case.tokens.targets)
    torch.testing.assert_close(sums, (each * mask).sum(dim=1))
    assert sums[2] == 0
    [gradient] = torch.autograd.grad(sums.sum(), [case.hidden])
    assert not gradient[~mask].any()
    none = row_log_probabilities(case.hidden, case.weight, case.tokens.targets, torch.zeros_like(mask))
    assert none.tolist() == [0.0] * 6
