"""The chunked loss is the plain formula, gradients included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.losses import (
    PolicyTerms,
    PolicyTokens,
    PreferenceTerms,
    PreferenceTokens,
    language_model_loss,
    language_model_losses,
    policy_loss,
    preference_loss,
    token_log_probabilities,
)

VOCAB, DIM = 23, 8


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
def test_loss_and_gradients_are_those_of_the_plain_formula(z_loss: float, masked: bool, chunk_tokens: int) -> None:
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
