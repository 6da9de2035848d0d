"""The chunked policy loss is the plain formula, gradients included, token by token and term by term."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.losses import (
    CHUNK_TOKENS,
    LARGEST_LOG_RATIO,
    PolicyStatistics,
    PolicyTerms,
    PolicyTokens,
    policy_loss,
    token_log_probabilities,
)

VOCAB, DIM, SHAPE = 23, 8, (3, 7)
F64 = torch.float64


class Case:
    """Hidden states, weights and tokens in fp64; ratios from far below 1 - eps to far above delta."""

    def __init__(self, seed: int = 0, temperature: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(*SHAPE, DIM, generator=generator, dtype=F64).requires_grad_()
        self.weight = torch.randn(VOCAB, DIM, generator=generator, dtype=F64).requires_grad_()
        self.targets = torch.randint(VOCAB, SHAPE, generator=generator)
        self.mask = torch.rand(SHAPE, generator=generator) < 0.8
        self.advantages = torch.randn(SHAPE, generator=generator, dtype=F64)
        logp = plain_logp(self.hidden, self.weight, self.targets, temperature).detach()
        self.old_logp = logp - torch.randn(SHAPE, generator=generator, dtype=F64)
        self.reference_logp = logp + 0.7 * torch.randn(SHAPE, generator=generator, dtype=F64)

    def given(self) -> tuple[Tensor, ...]:
        """Inputs of `loss_and_statistics` but the reference."""
        return self.hidden, self.weight, self.targets, self.old_logp, self.advantages, self.mask


def loss_and_statistics(
    hidden: Tensor,
    weight: Tensor,
    *tokens: Tensor,
    reference_logp: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    **terms: float,
) -> tuple[Tensor, PolicyStatistics]:
    return policy_loss(hidden, weight, PolicyTokens._make([*tokens, reference_logp]), PolicyTerms(**terms), chunk_tokens)


def plain_logp(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return log_p.gather(-1, targets[..., None]).squeeze(-1)


def plain(case: Case, terms: dict[str, Any]) -> Tensor:
    """The formula as it is written, with all logits in memory and torch's gradients."""
    eps, delta, temperature = terms.get("eps", 0.2), terms.get("delta", 4.0), terms.get("temperature", 1.0)
    distribution = torch.distributions.Categorical(logits=case.hidden @ case.weight.T / temperature)
    logp = distribution.log_prob(case.targets)
    ratio = (logp - case.old_logp).exp()
    free, held = ratio.clamp(max=delta) * case.advantages, ratio.clamp(1 - eps, 1 + eps) * case.advantages
    each = -torch.minimum(free, held) - terms["entropy_weight"] * distribution.entropy()
    if terms.get("kl_weight"):
        beyond = case.reference_logp - logp
        each = each + terms["kl_weight"] * (beyond.exp() - beyond - 1)
    mean: Tensor = each[case.mask].sum() / case.mask.sum()
    return mean


ALONE: dict[str, dict[str, Any]] = {
    "clipping": {"entropy_weight": 0.0},
    "one-sided clipping": {"entropy_weight": 0.0, "delta": math.inf},
    "narrow clipping": {"entropy_weight": 0.0, "eps": 0.05, "delta": 1.05},
    "entropy": {"entropy_weight": 0.3},
    "kl": {"entropy_weight": 0.0, "kl_weight": 0.4},
    "temperature": {"entropy_weight": 0.0, "temperature": 0.7},
    "all": {"entropy_weight": 0.3, "kl_weight": 0.4, "temperature": 1.7, "eps": 0.1, "delta": 3.0},
}


@pytest.mark.parametrize("terms", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 21, 4096])
def test_loss_and_gradients_are_those_of_the_plain_formula(terms: dict[str, Any], chunk_tokens: int) -> None:
    for seed in range(5):
        case = Case(seed, terms.get("temperature", 1.0))
        if terms == ALONE["entropy"]:
            case.advantages.zero_()
        wanted = plain(case, terms)
        wanted_gradients = torch.autograd.grad(wanted * 3, [case.hidden, case.weight])
        reference = case.reference_logp if terms.get("kl_weight") else None
        loss, _ = loss_and_statistics(*case.given(), **terms, reference_logp=reference, chunk_tokens=chunk_tokens)
        gradients = torch.autograd.grad(loss * 3, [case.hidden, case.weight])
        torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
        for got, expected in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (0.5, 1.0, 0.5, 0.5),
        (1.1, 1.0, 1.1, 1.1),
        (1.5, 1.0, 1.2, 0.0),
        (9.0, 1.0, 1.2, 0.0),
        (0.5, -1.0, -0.8, 0.0),
        (0.9, -1.0, -0.9, -0.9),
        (1.5, -1.0, -1.5, -1.5),
        (3.9, -2.0, -7.8, -7.8),
        (4.1, -2.0, -8.0, 0.0),
        (1e30, -2.0, -8.0, 0.0),
        (1e30, 1.0, 1.2, 0.0),
        (2.0, 0.0, 0.0, 0.0),
    ],
)
def test_each_side_of_the_clipping(ratio: float, advantage: float, objective: float, slope: float) -> None:
    """One token among two equal ones: the objective, and its derivative by the token's log-probability."""
    hidden = torch.tensor([[1.0]], dtype=F64)
    weight = torch.zeros(2, 1, dtype=F64, requires_grad=True)
    old_logp = torch.tensor([math.log(0.5) - math.log(ratio)], dtype=F64)
    loss, statistics = loss_and_statistics(
        hidden, weight, torch.tensor([0]), old_logp, torch.tensor([advantage]), torch.tensor([True]), entropy_weight=0.0
    )
    loss.backward()
    assert weight.grad is not None
    assert float(loss.detach()) == pytest.approx(-objective)
    assert weight.grad[:, 0].tolist() == pytest.approx([-0.5 * slope, 0.5 * slope])
    assert float(statistics.clipped) == float(slope == 0.0 and advantage != 0.0)
    assert float(statistics.ratio) == pytest.approx(min(ratio, math.exp(LARGEST_LOG_RATIO)))


def test_statistics_are_means_over_the_counted_tokens() -> None:
    case = Case(1, 0.9)
    _, statistics = loss_and_statistics(*case.given(), temperature=0.9, reference_logp=case.reference_logp, chunk_tokens=4)
    distribution = torch.distributions.Categorical(logits=case.hidden @ case.weight.T / 0.9)
    logp = distribution.log_prob(case.targets)
    ratio, beyond = (logp - case.old_logp).exp(), case.reference_logp - logp
    up = case.advantages > 0
    clipped = up & (ratio > 1.2) | ~up & ((ratio < 0.8) | (ratio > 4.0))
    each = [clipped.to(F64), ratio, distribution.entropy(), beyond.exp() - beyond - 1]
    assert 0 < float(statistics.clipped) < 1
    for got, values in zip(statistics, each, strict=True):
        assert not got.requires_grad
        torch.testing.assert_close(got, values[case.mask].mean())


def test_tokens_that_do_not_count_need_no_numbers() -> None:
    case = Case(2)
    terms: dict[str, Any] = {"entropy_weight": 0.3, "kl_weight": 0.4}
    wanted = plain(case, terms)
    for known in (case.old_logp, case.advantages, case.reference_logp):
        known[~case.mask] = math.nan
    loss, statistics = loss_and_statistics(*case.given(), **terms, reference_logp=case.reference_logp)
    gradients = torch.autograd.grad(loss, [case.hidden, case.weight])
    torch.testing.assert_close(loss, wanted)
    assert all(bool(values.isfinite().all()) for values in (*gradients, *statistics))
    assert not gradients[0][~case.mask].any()


def test_no_counted_token_is_no_loss() -> None:
    case = Case()
    case.mask.zero_()
    loss, statistics = loss_and_statistics(*case.given())
    loss.backward()
    assert float(loss.detach()) == 0 and statistics == PolicyStatistics(*torch.zeros(4, dtype=F64))
    assert case.hidden.grad is not None and not case.hidden.grad.any()
    assert case.weight.grad is not None and not case.weight.grad.any()


def test_bf16_hidden_states_give_an_fp32_loss_and_an_fp32_gradient_of_fp32_weights() -> None:
    case = Case()
    hidden = case.hidden.detach().bfloat16().requires_grad_()
    weight = case.weight.detach().float().requires_grad_()
    old_logp = token_log_probabilities(hidden, weight, case.targets)
    loss, statistics = loss_and_statistics(
        hidden, weight, case.targets, old_logp, case.advantages.float(), case.mask, entropy_weight=0.0, chunk_tokens=5
    )
    loss.backward()
    assert loss.dtype == torch.float32 and hidden.grad is not None and hidden.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert float(statistics.ratio) == 1.0
    torch.testing.assert_close(loss, -case.advantages.float()[case.mask].mean())


@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_log_probabilities_are_those_of_the_softmax(chunk_tokens: int, temperature: float) -> None:
    case = Case()
    got = token_log_probabilities(case.hidden, case.weight, case.targets, temperature, chunk_tokens)
    assert not got.requires_grad
    torch.testing.assert_close(got, plain_logp(case.hidden, case.weight, case.targets, temperature).detach())
