"""Losses that hold the logits of a few tokens at a time have the value and gradients of their plain formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.losses import (
    CHUNK_TOKENS,
    LARGEST_LOG_RATIO,
    PolicyLoss,
    PolicyStatistics,
    PolicyTerms,
    PolicyTokens,
    PreferenceTerms,
    PreferenceTokens,
    language_model_loss,
    language_model_losses,
    policy_loss,
    preference_loss,
    row_log_probabilities,
    token_log_probabilities,
)

# -- of a language model --------------------------------------------------------------------------------------------------

VOCAB, DIM, SHAPE = 23, 8, (3, 7)
SEQUENCE = 8
"""Tokens of a sequence, in reading order; the last one has five."""
F64 = torch.float64


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(3, 7, DIM, generator=generator).requires_grad_()
    weight = torch.randn(VOCAB, DIM, generator=generator).requires_grad_()
    targets = torch.randint(VOCAB, (3, 7), generator=generator)
    return hidden, weight, targets, torch.rand(3, 7, generator=generator) < 0.6


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, z_loss: float, mask: Tensor | None) -> Tensor:
    logits = (hidden @ weight.T).float()
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    each = each + z_loss * logits.flatten(0, 1).amax(1) ** 2
    return each.mean() if mask is None else each[mask.flatten()].mean()


@pytest.mark.parametrize("z_loss", [0.0, 2e-4, 0.1])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 5, 21, 4096])
def test_the_language_model_loss_and_its_gradients_are_those_of_the_plain_formula(
    z_loss: float, masked: bool, chunk_tokens: int
) -> None:
    hidden, weight, targets, mask = inputs()
    wanted = plain(hidden, weight, targets, z_loss, mask if masked else None)
    wanted_gradients = torch.autograd.grad(wanted * 3, [hidden, weight])
    loss = language_model_loss(hidden, weight, targets, z_loss, mask if masked else None, chunk_tokens)
    gradients = torch.autograd.grad(loss * 3, [hidden, weight])
    torch.testing.assert_close(loss, wanted)
    for got, expected in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 4096])
def test_the_nats_of_each_token_are_without_the_z_loss_and_0_where_none_counts(chunk_tokens: int) -> None:
    hidden, weight, targets, mask = inputs()
    wanted = torch.nn.functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="none")
    for counts in (None, mask):
        loss, nats = language_model_losses(hidden, weight, targets, 0.1, counts, chunk_tokens)
        expected = wanted.view(3, 7) if counts is None else wanted.view(3, 7) * counts
        torch.testing.assert_close(nats, expected.detach())
        assert not nats.requires_grad and loss.requires_grad
        assert float(loss.detach()) > float(nats.sum() / (21 if counts is None else int(mask.sum())))


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    hidden, weight, targets, _ = inputs()
    language_model_loss(hidden.detach(), weight, targets, 2e-4).backward()
    assert hidden.grad is None and weight.grad is not None
    with torch.no_grad():
        assert not language_model_loss(hidden, weight, targets).requires_grad


def test_no_counted_token_is_no_loss() -> None:
    hidden, weight, targets, mask = inputs()
    loss = language_model_loss(hidden, weight, targets, 2e-4, torch.zeros_like(mask))
    loss.backward()
    assert float(loss.detach()) == 0 and hidden.grad is not None and not hidden.grad.any()


def test_bf16_hidden_states_give_an_fp32_loss_and_an_fp32_gradient_of_fp32_weights() -> None:
    hidden, weight, targets, _ = inputs()
    half = hidden.detach().bfloat16().requires_grad_()
    loss = language_model_loss(half, weight, targets, 2e-4, None, 5)
    loss.backward()
    assert loss.dtype == torch.float32 and half.grad is not None and half.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss, plain(hidden, weight, targets, 2e-4, None), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["language model", "policy", "preference"])
def test_logits_of_all_tokens_are_never_in_memory(name: str) -> None:
    tokens, vocab, chunk = 512, 2048, 32
    hidden = torch.zeros(2, tokens // 2, DIM, requires_grad=True)
    weight = torch.zeros(vocab, DIM, requires_grad=True)
    targets, zeros, counted = hidden[..., 0].long(), hidden[..., 0].detach(), hidden[..., 0] == 0
    losses: dict[str, Callable[[], Tensor]] = {
        "language model": lambda: language_model_loss(hidden, weight, targets, 2e-4, None, chunk),
        "policy": lambda: policy_loss(
            hidden, weight, PolicyTokens(targets, logp, zeros, counted, logp), PolicyTerms(kl_weight=1.0), chunk
        )[0],
        "preference": lambda: preference_loss(
            hidden, weight, PreferenceTokens(targets, counted, torch.zeros(2)), PreferenceTerms(), chunk
        )[0],
    }
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        logp = token_log_probabilities(hidden, weight, targets, 1.0, chunk)
        losses[name]().backward()
    assert largest <= max(chunk * vocab, vocab * DIM, tokens * DIM)


# -- of a policy ----------------------------------------------------------------------------------------------------------


class PolicyCase:
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
        self.behaviour_logp = self.old_logp + 0.6 * torch.randn(SHAPE, generator=generator, dtype=F64)
        self.sequences = torch.arange(self.mask.numel()).view(SHAPE) // SEQUENCE

    def given(self) -> tuple[Tensor, ...]:
        """Inputs of `loss_and_statistics` but the reference."""
        return self.hidden, self.weight, self.targets, self.old_logp, self.advantages, self.mask


def loss_and_statistics(
    hidden: Tensor,
    weight: Tensor,
    *tokens: Tensor,
    reference_logp: Tensor | None = None,
    behaviour_logp: Tensor | None = None,
    sequences: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    **terms: Any,
) -> tuple[Tensor, PolicyStatistics]:
    given = PolicyTokens._make([*tokens, reference_logp, behaviour_logp, sequences])
    return policy_loss(hidden, weight, given, PolicyTerms(**terms), chunk_tokens)


def plain_logp(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return log_p.gather(-1, targets[..., None]).squeeze(-1)


def plain_policy(case: PolicyCase, terms: dict[str, Any]) -> Tensor:
    """The formula as it is written, with all logits in memory and torch's gradients."""
    eps, delta, temperature = terms.get("eps", 0.2), terms.get("delta", 4.0), terms.get("temperature", 1.0)
    distribution = torch.distributions.Categorical(logits=case.hidden @ case.weight.T / temperature)
    logp = distribution.log_prob(case.targets)
    ratio, within = (logp - case.old_logp).exp(), torch.full(SHAPE, eps, dtype=F64)
    if terms.get("loss") is PolicyLoss.GSPO:
        for number in case.sequences.unique():
            of_it = (case.sequences == number) & case.mask
            length = int(of_it.sum())
            of_all = ((logp - case.behaviour_logp)[of_it].sum() / max(1, length)).exp()
            ratio = torch.where(of_it, of_all, ratio)
            within[of_it] = eps * 4 / length if length > 4 else eps
    free, held = ratio.clamp(max=delta) * case.advantages, ratio.clamp(1 - within, 1 + within) * case.advantages
    weights = torch.ones(SHAPE, dtype=F64)
    if terms.get("loss") is PolicyLoss.TIS:
        weights = (case.old_logp - case.behaviour_logp).exp().clamp(max=2.0)
    each = -weights * torch.minimum(free, held) - terms["entropy_weight"] * distribution.entropy()
    if terms.get("kl_weight"):
        beyond = case.reference_logp - logp
        each = each + terms["kl_weight"] * (beyond.exp() - beyond - 1)
    mean: Tensor = each[case.mask].sum() / case.mask.sum()
    return mean


ALONE: dict[str, dict[str, Any]] = {
    "clipping": {"entropy_weight": 0.0},
    "one-sided clipping": {"entropy_weight": 0.0, "delta": math.inf},
    "entropy": {"entropy_weight": 0.3},
    "all": {"entropy_weight": 0.3, "kl_weight": 0.4, "temperature": 1.7, "eps": 0.1, "delta": 3.0},
    "tis": {"entropy_weight": 0.3, "loss": PolicyLoss.TIS},
    "gspo": {"entropy_weight": 0.3, "loss": PolicyLoss.GSPO, "eps": 0.3},
}


@pytest.mark.parametrize("terms", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 4096])
def test_the_policy_loss_and_its_gradients_are_those_of_the_plain_formula(terms: dict[str, Any], chunk_tokens: int) -> None:
    for seed in range(5):
        case = PolicyCase(seed, terms.get("temperature", 1.0))
        if terms == ALONE["entropy"]:
            case.advantages.zero_()
        if terms == ALONE["gspo"]:
            case.advantages = case.advantages.flatten()[case.sequences]  # one for a sequence
        wanted = plain_policy(case, terms)
        wanted_gradients = torch.autograd.grad(wanted * 3, [case.hidden, case.weight])
        reference = case.reference_logp if terms.get("kl_weight") else None
        given = {**terms, "behaviour_logp": case.behaviour_logp, "sequences": case.sequences}
        loss, _ = loss_and_statistics(*case.given(), **given, reference_logp=reference, chunk_tokens=chunk_tokens)
        gradients = torch.autograd.grad(loss * 3, [case.hidden, case.weight])
        torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
        for got, expected in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (0.5, 1.0, 0.5, 0.5),
        (1.5, 1.0, 1.2, 0.0),
        (0.5, -1.0, -0.8, 0.0),
        (1.5, -1.0, -1.5, -1.5),
        (4.1, -2.0, -8.0, 0.0),
        (1e30, -2.0, -8.0, 0.0),
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
    case = PolicyCase(1, 0.9)
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


def test_without_stale_tokens_importance_weights_change_no_bit() -> None:
    case, found = PolicyCase(3), list[list[Tensor]]()
    hidden, weight = (each.detach().float().requires_grad_() for each in (case.hidden, case.weight))
    for known in ({}, {"loss": PolicyLoss.TIS}, {"loss": PolicyLoss.TIS, "behaviour_logp": case.old_logp.float()}):
        given = (hidden, weight, case.targets, case.old_logp.float(), case.advantages.float(), case.mask)
        loss, statistics = loss_and_statistics(*given, **known, chunk_tokens=5)
        found.append([loss, *statistics, *torch.autograd.grad(loss, [hidden, weight])])
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))


def test_the_range_of_a_sequence_narrows_with_its_length() -> None:
    """All tokens of a sequence have the ratio 1.05; 16 tokens may be .05 from 1, 17 not."""
    for length, slope in ((4, -1.05), (16, -1.05), (17, 0.0)):
        hidden, weight = torch.ones(length, 1, dtype=F64), torch.zeros(2, 1, dtype=F64, requires_grad=True)
        logp = torch.full((length,), math.log(0.5), dtype=F64)
        given = (torch.zeros(length).long(), logp, torch.ones(length, dtype=F64), torch.ones(length).bool())
        stale: dict[str, Any] = {"behaviour_logp": logp - math.log(1.05 - 1e-9), "sequences": torch.zeros(length).long()}
        loss, statistics = loss_and_statistics(hidden, weight, *given, **stale, entropy_weight=0.0, loss=PolicyLoss.GSPO)
        loss.backward()
        assert weight.grad is not None
        assert weight.grad[:, 0].tolist() == pytest.approx([0.5 * slope, -0.5 * slope], abs=1e-8)
        assert float(statistics.clipped) == float(slope == 0.0) and float(statistics.ratio) == pytest.approx(1.05)


def test_logits_of_bf16_states_are_not_rounded_to_bf16() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(64, 32, generator=generator), torch.randn(50, 32, generator=generator)
    hidden, weight = hidden.bfloat16() * 2, weight.bfloat16()
    targets = torch.randint(50, (64,), generator=generator)
    wanted = plain_logp(hidden.double(), weight.double(), targets, 1.0)
    got = token_log_probabilities(hidden, weight, targets)
    assert got.dtype == torch.float32 and float((got - wanted).abs().max()) < 1e-4
    rounded = torch.log_softmax((hidden @ weight.T).float(), dim=1).gather(1, targets[:, None])[:, 0]
    assert float((rounded - wanted).abs().max()) > 1e-2


def test_tokens_that_do_not_count_need_no_numbers() -> None:
    case = PolicyCase(2)
    terms: dict[str, Any] = {"entropy_weight": 0.3, "kl_weight": 0.4, "loss": PolicyLoss.GSPO}
    wanted = plain_policy(case, terms)
    for known in (case.old_logp, case.advantages, case.reference_logp, case.behaviour_logp):
        known[~case.mask] = math.nan
    terms |= {"behaviour_logp": case.behaviour_logp, "sequences": case.sequences}
    loss, statistics = loss_and_statistics(*case.given(), **terms, reference_logp=case.reference_logp)
    gradients = torch.autograd.grad(loss, [case.hidden, case.weight])
    torch.testing.assert_close(loss, wanted)
    assert all(bool(values.isfinite().all()) for values in (*gradients, *statistics))
    assert not gradients[0][~case.mask].any()


def test_no_counted_token_is_no_policy_loss() -> None:
    case = PolicyCase()
    case.mask.zero_()
    loss, statistics = loss_and_statistics(*case.given())
    loss.backward()
    assert float(loss.detach()) == 0 and statistics == PolicyStatistics(*torch.zeros(4, dtype=F64))
    assert case.hidden.grad is not None and not case.hidden.grad.any()
    assert case.weight.grad is not None and not case.weight.grad.any()


@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_log_probabilities_are_those_of_the_softmax(chunk_tokens: int, temperature: float) -> None:
    case = PolicyCase()
    got = token_log_probabilities(case.hidden, case.weight, case.targets, temperature, chunk_tokens)
    assert not got.requires_grad
    torch.testing.assert_close(got, plain_logp(case.hidden, case.weight, case.targets, temperature).detach())


def test_no_token_at_all_is_no_loss() -> None:
    empty = torch.zeros(0)
    hidden, weight = torch.zeros(0, DIM, requires_grad=True), torch.zeros(VOCAB, DIM)
    loss, _ = loss_and_statistics(hidden, weight, empty.long(), empty, empty, empty.bool())
    loss.backward()
    assert float(loss.detach()) == 0
    assert token_log_probabilities(hidden, weight, empty.long()).shape == (0,)


# -- of preferences -------------------------------------------------------------------------------------------------------

PAIRS = (6, 7)
TERMS = [PreferenceTerms(), PreferenceTerms(0.5), PreferenceTerms(0.3, 0.1), PreferenceTerms(5.0, 0.4)]


class PreferenceCase:
    """Hidden states, weights and tokens of three pairs, with margins on both sides of 0."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = F64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(*PAIRS, DIM, generator=generator, dtype=dtype).requires_grad_()
        self.weight = torch.randn(VOCAB, DIM, generator=generator, dtype=dtype).requires_grad_()
        targets = torch.randint(VOCAB, PAIRS, generator=generator)
        mask = torch.rand(PAIRS, generator=generator) < 0.6
        logp = self.plain_logp(targets, mask).detach()
        self.tokens = PreferenceTokens(targets, mask, logp + 2 * torch.randn(PAIRS[0], generator=generator, dtype=dtype))

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
def test_the_preference_loss_its_margins_and_gradients_are_those_of_the_plain_formula(
    terms: PreferenceTerms, chunk_tokens: int
) -> None:
    for seed in range(5):
        case = PreferenceCase(seed)
        wanted, margins = case.plain(terms)
        wanted_gradients = torch.autograd.grad(wanted * 3, [case.hidden, case.weight])
        loss, statistics = preference_loss(case.hidden, case.weight, case.tokens, terms, chunk_tokens)
        gradients = torch.autograd.grad(loss * 3, [case.hidden, case.weight])
        torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(statistics.margins, margins, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(statistics.losses.mean(), wanted.detach(), rtol=1e-12, atol=1e-12)
        for got, expected in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_a_huge_margin_gives_a_finite_loss_and_gradient() -> None:
    case = PreferenceCase()
    for sign in (-1, 1):
        far = case.tokens._replace(reference_logp=sign * torch.tensor([1e4, -1e4] * 3, dtype=F64))
        loss, _ = preference_loss(case.hidden, case.weight, far, PreferenceTerms(0.5, 0.1))
        [gradient] = torch.autograd.grad(loss, [case.hidden])
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()


def test_row_sums_are_those_of_the_tokens_and_rows_without_counted_tokens_have_none() -> None:
    case = PreferenceCase()
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
