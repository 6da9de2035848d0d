"""Losses of pre-training, of preferences and of reinforcement learning, computed without holding all logits at once.

    language model  mean over counted tokens of (logsumexp(logits) - logits[target] + z_loss * max(logits)^2)
    policy          minus the mean over counted tokens of w min(min(r, delta) A, clip(r, 1 - eps, 1 + eps) A)
    preference      minus the mean over pairs of (1 - smoothing) log sigmoid(margin) + smoothing log sigmoid(-margin)

The forward pass computes the logits of a chunk of tokens, turns them into their gradient and drops them: only a scalar
factor of the gradient depends on later computation. Beyond inputs and gradients, memory holds the logits of one chunk in
fp32, and in bf16 also their copy for the products. The loss of preferences has one such factor for each row, so its backward
pass computes the logits again.

Logits come from a product in the precision of the hidden states; all later computation is in fp32. The policy loss compares
log-probabilities under different weights, so its logits are at least fp32 already: bf16 would round a logit of 16 by up to
0.06, and a ratio by 6 %. The max-z-loss is from Baichuan 2 (Yang et al. 2023, section 2); its weight is 2e-4 in INTELLECT-1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

CHUNK_TOKENS = 4096
"""Most tokens whose logits are in memory at once."""
CHUNK_LOGITS = 1 << 27
"""Most logits in memory at once: 512 MiB of fp32, which are 1046 tokens with a vocabulary of 128 256."""
PIECE_LOGITS = 1 << 20
"""Most logits whose losses a CPU computes at once: 4 MiB of fp32, which stay in its caches."""
LARGEST_LOG_RATIO = 20.0
"""Limit on differences of log-probabilities, so that no ratio overflows; e^20 is far beyond any delta."""
TRUNCATION = 2.0
"""Largest importance weight of a token in the policy loss `TIS`."""
GSPO_TOKENS = 4
"""Most tokens of a sequence whose geometric mean ratio may differ from 1 by eps in the policy loss `GSPO`."""


def tokens_at_once(output_weight: Tensor) -> int:
    """Return the number of tokens of a chunk, by the vocabulary of the output weights, (vocab, dim)."""
    return max(1, min(CHUNK_TOKENS, CHUNK_LOGITS // output_weight.shape[0]))


def language_model_loss(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    z_loss: float = 0.0,
    mask: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Return the loss as an fp32 scalar, nats per token, differentiable in `hidden` and `output_weight`.

    hidden: (..., dim), float.  output_weight: (vocab, dim), float.  targets: (...), int64.
    mask: (...), bool, true for tokens that count; None if all count. If no token counts, the loss is 0.
    """
    return language_model_losses(hidden, output_weight, targets, z_loss, mask, chunk_tokens)[0]


def language_model_losses(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    z_loss: float = 0.0,
    mask: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss as `language_model_loss` does, and the nats of each token, (...), fp32, without gradient.

    The nats are without the z-loss, and 0 for tokens that do not count.
    """
    assert hidden.shape[:-1] == targets.shape, f"hidden {tuple(hidden.shape)} against targets {tuple(targets.shape)}"
    assert mask is None or mask.shape == targets.shape
    differentiate = torch.is_grad_enabled() and (hidden.requires_grad or output_weight.requires_grad)
    loss, nats_t = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]),
        output_weight,
        _Targets(targets.reshape(-1), None if mask is None else mask.reshape(-1)),
        z_loss,
        chunk_tokens or tokens_at_once(output_weight),
        differentiate,
    )
    return loss, nats_t.view(targets.shape)


class _Targets(NamedTuple):
    """Targets (tokens,), and a mask that is true for targets that count, or None if all count."""

    targets_t: Tensor
    mask_t: Tensor | None


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_td: Tensor,
        weight_vd: Tensor,
        targets: _Targets,
        z_loss: float,
        chunk_tokens: int,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        targets_t, mask_t = targets
        share_t = _shares(targets_t, mask_t)
        product_weight_vd = weight_vd.to(hidden_td.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden_td.device)
        nats_t = torch.zeros(targets_t.shape, dtype=torch.float32, device=hidden_td.device)
        grad_hidden_td = torch.empty_like(hidden_td) if differentiate and hidden_td.requires_grad else None
        grad_weight_vd = (
            torch.zeros_like(weight_vd, dtype=torch.float32) if differentiate and weight_vd.requires_grad else None
        )
        room_tv = _room_for_logits(min(chunk_tokens, targets_t.numel()), product_weight_vd)
        for start in range(0, targets_t.numel(), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            logits_tv = room_tv[: len(targets_t[chunk])]  # overwritten with their gradient
            torch.mm(hidden_td[chunk], product_weight_vd.T, out=logits_tv)
            for span in _pieces(logits_tv):
                tokens = slice(start + span.start, start + span.stop)
                piece = _nats_in_place(logits_tv[span].float(), targets_t[tokens])  # in their own memory, if they are fp32
                nats_t[tokens] = piece.nats_t
                if z_loss:
                    total += z_loss * (piece.top_t.square() * share_t[tokens]).sum()
                if differentiate:
                    gradient_tv = _gradient_in_place(piece, targets_t[tokens], share_t[tokens], z_loss)
                    if logits_tv.dtype != torch.float32:
                        logits_tv[span] = gradient_tv
                    del gradient_tv
                del piece
            if grad_hidden_td is not None:
                torch.mm(logits_tv, product_weight_vd, out=grad_hidden_td[chunk])
            if grad_weight_vd is not None:
                _add_product(grad_weight_vd, logits_tv.T, hidden_td[chunk])
        total += (nats_t * share_t).sum()
        ctx.save_for_backward(grad_hidden_td, grad_weight_vd)
        ctx.weight_dtype = weight_vd.dtype
        nats_t = nats_t if mask_t is None else nats_t.where(mask_t, 0.0)
        ctx.mark_non_differentiable(nats_t)
        return total, nats_t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_saved_gradients(ctx, grads[0]), None, None, None, None


_rooms: dict[torch.dtype, Tensor] = {}
"""Memory for the logits of a chunk on the CPU, by precision.  A process keeps it: if it gave the memory back, smaller blocks
would take a part of the place, and the next chunk would need another place."""


def _room_for_logits(tokens: int, weight_vd: Tensor) -> Tensor:
    """Return memory for logits, (tokens, vocab), with the precision and on the device of the output weights."""
    count = tokens * weight_vd.shape[0]
    if weight_vd.device.type != "cpu":
        return weight_vd.new_empty(tokens, weight_vd.shape[0])
    if weight_vd.dtype not in _rooms or _rooms[weight_vd.dtype].numel() < count:
        _rooms[weight_vd.dtype] = weight_vd.new_empty(count)
    return _rooms[weight_vd.dtype][:count].view(tokens, weight_vd.shape[0])


def _saved_gradients(ctx: Any, factor: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `hidden` and `output_weight` from the forward pass, times the gradient of the loss."""
    grad_hidden_td, grad_weight_vd = ctx.saved_tensors
    if grad_hidden_td is not None:
        grad_hidden_td = grad_hidden_td * factor.to(grad_hidden_td.dtype)
    if grad_weight_vd is not None:
        grad_weight_vd = (grad_weight_vd * factor).to(ctx.weight_dtype)
    return grad_hidden_td, grad_weight_vd


def _shares(targets_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """Return the weight of each token in the mean: fp32, (tokens,).  Does not wait for the device."""
    if mask_t is None:
        return torch.full(targets_t.shape, 1.0 / max(1, targets_t.numel()), dtype=torch.float32, device=targets_t.device)
    return mask_t.float() / mask_t.sum().clamp(min=1)


def _pieces(logits_tv: Tensor) -> Iterator[slice]:
    """Yield spans of tokens whose losses are computed at once: all on a GPU, as many as fit its caches on a CPU."""
    tokens, vocab = logits_tv.shape
    at_once = max(1, PIECE_LOGITS // vocab) if logits_tv.device.type == "cpu" else tokens
    for start in range(0, tokens, at_once):
        yield slice(start, min(tokens, start + at_once))


class _ComputedLogits(NamedTuple):
    """Loss on some tokens.

    nats_t, sums_t: fp32 (tokens,). top_t, top_index_t: (tokens,), the largest logit, and its place. exp_tv: exponentials of
    the logits, divided by that of the largest, fp32; sums_t has their sums.
    """

    nats_t: Tensor
    top_t: Tensor
    top_index_t: Tensor
    exp_tv: Tensor
    sums_t: Tensor


def _nats_in_place(logits_tv: Tensor, targets_t: Tensor) -> _ComputedLogits:
    """Overwrite logits with exponentials, which the loss and its gradient share."""
    top_t, top_index_t = logits_tv.max(dim=1)
    own_t = logits_tv.gather(1, targets_t[:, None]).squeeze(1)
    exp_tv = logits_tv.sub_(top_t[:, None]).exp_()
    sums_t = exp_tv.sum(dim=1)
    return _ComputedLogits(top_t + sums_t.log() - own_t, top_t, top_index_t, exp_tv, sums_t)


def _gradient_in_place(piece: _ComputedLogits, targets_t: Tensor, share_t: Tensor, z_loss: float) -> Tensor:
    """Overwrite the exponentials with share * (softmax - one-hot of target + 2 z max * one-hot of argmax)."""
    gradient_tv = piece.exp_tv.mul_((share_t / piece.sums_t)[:, None])
    gradient_tv.scatter_add_(1, targets_t[:, None], -share_t[:, None])
    if z_loss:
        gradient_tv.scatter_add_(1, piece.top_index_t[:, None], (2 * z_loss * piece.top_t * share_t)[:, None])
    return gradient_tv


def _add_product(sum_vd: Tensor, one_vt: Tensor, other_td: Tensor) -> None:
    """Add a product to a sum, which may be more precise; without memory for the product if it is not."""
    if sum_vd.dtype == one_vt.dtype:
        sum_vd.addmm_(one_vt, other_td)
    else:
        sum_vd += one_vt @ other_td


# -- the policy loss ---------------------------------------------------------------------------------------------------


class PolicyLoss(Enum):
    """Loss of a policy.  The behaviour is the policy that made the tokens, which may be older than the old policy.

    CLIP: two-sided clipping of the ratio to the old policy (DeepSeekMath, Shao et al. 2024; INTELLECT-2, 2025).
    TIS: the same times min(p_old / p_behaviour, `TRUNCATION`), a weight without gradient: truncated importance sampling
    (Ionides 2008) in the decoupled form of Hilton et al. 2021 ("Batch size-invariance for policy optimization").
    GSPO: two-sided clipping of the geometric mean of a sequence's ratios to the behaviour (Zheng et al. 2025, "Group
    Sequence Policy Optimization").
    """

    CLIP = "clip"
    TIS = "tis"
    GSPO = "gspo"


class PolicyStatistics(NamedTuple):
    """Means over the counted tokens, scalars without gradient; 0 if no token counts.

    clipped: share of tokens for which clipping removes the gradient of the objective. ratio: the clipped quantity r.
    entropy: in nats, of the distribution at the token's place. kl: the k3 estimate in nats; 0 without a reference.
    """

    clipped: Tensor
    ratio: Tensor
    entropy: Tensor
    kl: Tensor


@dataclass(frozen=True)
class PolicyTerms:
    """Parameters of the policy loss (`policy_loss`).

    delta: at least 1 + eps; with infinity, clipping is one-sided (PPO). kl_weight: a value other than 0 needs a reference.
    """

    eps: float = 0.2
    delta: float = 4.0
    temperature: float = 1.0
    entropy_weight: float = 1e-4
    kl_weight: float = 0.0
    loss: PolicyLoss = PolicyLoss.CLIP

    def __post_init__(self) -> None:
        assert 0 <= self.eps < 1 and self.delta >= 1 + self.eps and self.temperature > 0


class PolicyTokens(NamedTuple):
    """Inputs of the policy loss for each token, (...), besides the logits.

    targets: int64. mask: bool, true for tokens that count. old_logp, advantages, reference_logp, behaviour_logp: float,
    without gradient, read only for tokens that count. reference_logp: None without a reference. behaviour_logp: None if the
    old policy made the tokens; `PolicyLoss.CLIP` does not read it. sequences: int64, number of each token's sequence, from 0
    and below the number of tokens; read by `PolicyLoss.GSPO`, for which all tokens of a sequence have the same advantage.
    """

    targets: Tensor
    old_logp: Tensor
    advantages: Tensor
    mask: Tensor
    reference_logp: Tensor | None = None
    behaviour_logp: Tensor | None = None
    sequences: Tensor | None = None

    def flat(self) -> PolicyTokens:
        """Return the inputs as (tokens,), without gradient."""
        return PolicyTokens._make(None if each is None else each.detach().reshape(-1) for each in self)

    def part(self, span: slice) -> PolicyTokens:
        """Return the inputs for a part of the tokens."""
        return PolicyTokens._make(None if each is None else each[span] for each in self)


def policy_loss(
    hidden: Tensor,
    output_weight: Tensor,
    tokens: PolicyTokens,
    terms: PolicyTerms,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, PolicyStatistics]:
    """Return the GRPO loss with two-sided clipping, a scalar differentiable in `hidden` and `output_weight`, and statistics.

        L = mean over counted tokens of
            - w min(min(r, delta) A, clip(r, 1 - eps, 1 + eps) A) - entropy_weight * entropy + kl_weight * k3

    logp and entropy are computed from softmax(logits / temperature). k3 = exp(x) - x - 1 with x = reference_logp - logp; its
    gradient flows through logp. r and w depend on the loss:

        CLIP  r = exp(logp - old_logp), w = 1
        TIS   r = exp(logp - old_logp), w = min(exp(old_logp - behaviour_logp), `TRUNCATION`)
        GSPO  r = exp(mean over the sequence's counted tokens of logp - behaviour_logp), w = 1; eps times
              `GSPO_TOKENS` / n for a sequence of n > `GSPO_TOKENS` counted tokens

    If the policy is free at a few tokens of a sequence only, whatever its length, the mean of its n log-ratios spreads as
    1 / n, and with it GSPO's range (measured by `python -m benchmarks.rl_ablation`).  So outputs of 2000 tokens have the
    4e-4 of the paper, which has one range for outputs of one length.

    Sources: GRPO is from DeepSeekMath (Shao et al. 2024, section 4.1). The mean over all tokens, and the bound `delta` on
    the ratios of tokens with a negative advantage, are from INTELLECT-2 (Prime Intellect 2025, section on two-sided GRPO
    clipping). k3 is from Schulman ("Approximating KL divergence", 2020).

    hidden: (..., dim), float.  output_weight: (vocab, dim), float.
    """
    assert hidden.shape[:-1] == tokens.targets.shape, f"hidden {tuple(hidden.shape)}, targets {tuple(tokens.targets.shape)}"
    assert {each.shape for each in tokens if each is not None} == {tokens.targets.shape}
    assert tokens.reference_logp is not None or not terms.kl_weight, "a KL term needs a reference"
    assert tokens.sequences is not None or terms.loss is not PolicyLoss.GSPO, "GSPO compares sequences"
    differentiate = torch.is_grad_enabled() and (hidden.requires_grad or output_weight.requires_grad)
    chunk = chunk_tokens or tokens_at_once(output_weight)
    loss, means = _ChunkedPolicyLoss.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]), output_weight, tokens.flat(), terms, chunk, differentiate
    )
    return loss, PolicyStatistics(*means.unbind())


@torch.no_grad()
def token_log_probabilities(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Return log softmax(logits / temperature)[target] of each token, (...), at least fp32, without gradient."""
    hidden_td, targets_t = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    chunk, product_weight_vd = chunk_tokens or tokens_at_once(output_weight), output_weight.to(hidden.dtype)
    parts = [
        _log_softmax(hidden_td[start : start + chunk], product_weight_vd, temperature)
        .gather(1, targets_t[start : start + chunk, None])
        .squeeze(1)
        for start in range(0, targets_t.numel(), chunk)
    ]
    return torch.cat(parts).view(targets.shape) if parts else torch.zeros(targets.shape, device=hidden.device)


class _ChunkedPolicyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_td: Tensor,
        weight_vd: Tensor,
        tokens: PolicyTokens,
        terms: PolicyTerms,
        chunk_tokens: int,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden_td.dtype, torch.float32)
        scale = 1.0 / tokens.mask.sum().clamp(min=1).to(wide)
        product_weight_vd = weight_vd.to(hidden_td.dtype)
        totals = torch.zeros(5, dtype=wide, device=hidden_td.device)
        grad_hidden_td = torch.empty_like(hidden_td) if differentiate and hidden_td.requires_grad else None
        grad_weight_vd = torch.zeros_like(weight_vd, dtype=wide) if differentiate and weight_vd.requires_grad else None
        sequences = None
        if terms.loss is PolicyLoss.GSPO:
            logp_t = token_log_probabilities(hidden_td, product_weight_vd, tokens.targets, terms.temperature, chunk_tokens)
            sequences = _sequence_ratios(logp_t, tokens, terms.eps)
        for start in range(0, tokens.targets.numel(), chunk_tokens):
            span = slice(start, start + chunk_tokens)
            part = tokens.part(span)
            log_p_tv = _log_softmax(hidden_td[span], product_weight_vd, terms.temperature)
            p_tv = log_p_tv.exp()
            entropy_t = -torch.bmm(p_tv[:, None, :], log_p_tv[:, :, None])[:, 0, 0]
            logp_t = log_p_tv.gather(1, part.targets[:, None]).squeeze(1)
            if sequences is None:
                limited = _limited_ratios(logp_t, part, terms)
            else:
                limited = _LimitedRatios(sequences.ratio_t[span], sequences.eps_t[span])
            values_nt, slope_t = _policy_terms(logp_t, entropy_t, part, terms, limited)
            totals += values_nt.where(part.mask, 0.0).sum(dim=1) * scale
            if not differentiate:
                continue
            share_t = part.mask.to(wide) * (scale / terms.temperature)
            slope_t = slope_t.where(part.mask, 0.0) * share_t
            bonus_t = share_t * terms.entropy_weight
            # gradient of the logits: slope * (one-hot of target - p) + entropy weight * p * (log p + entropy)
            gradient_tv = log_p_tv.add_(entropy_t[:, None]).mul_(bonus_t[:, None]).sub_(slope_t[:, None]).mul_(p_tv)
            gradient_tv = gradient_tv.scatter_add_(1, part.targets[:, None], slope_t[:, None]).to(hidden_td.dtype)
            if grad_hidden_td is not None:
                torch.mm(gradient_tv, product_weight_vd, out=grad_hidden_td[span])
            if grad_weight_vd is not None:
                _add_product(grad_weight_vd, gradient_tv.T, hidden_td[span])
        ctx.save_for_backward(grad_hidden_td, grad_weight_vd)
        ctx.weight_dtype = weight_vd.dtype
        means = totals[1:].clone()
        ctx.mark_non_differentiable(means)
        return totals[0].clone(), means

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_saved_gradients(ctx, grads[0]), None, None, None, None


def _log_softmax(hidden_td: Tensor, weight_vd: Tensor, temperature: float) -> Tensor:
    """Return log softmax(logits / temperature), (tokens, vocab), at least fp32; so are the logits."""
    wide = torch.promote_types(hidden_td.dtype, torch.float32)
    if hidden_td.dtype == wide:
        logits_tv = hidden_td @ weight_vd.T
    elif hidden_td.is_cuda:
        logits_tv = torch.mm(hidden_td, weight_vd.T, out_dtype=wide)
    else:
        logits_tv = hidden_td.to(wide) @ weight_vd.T.to(wide)
    if temperature != 1.0:
        logits_tv.div_(temperature)
    return logits_tv.sub_(torch.logsumexp(logits_tv, dim=1, keepdim=True))


class _LimitedRatios(NamedTuple):
    """Ratios of tokens, their limits on both sides of 1, and their importance weights, each (tokens,).

    weights_t: None for weights of 1.
    """

    ratio_t: Tensor
    eps_t: Tensor
    weights_t: Tensor | None = None


def _limited_ratios(logp_t: Tensor, tokens: PolicyTokens, terms: PolicyTerms) -> _LimitedRatios:
    """Return each token's ratio to the old policy, and its importance weight if the loss has any."""
    ratio_t, weights_t = (logp_t - tokens.old_logp).clamp(max=LARGEST_LOG_RATIO).exp(), None
    if terms.loss is PolicyLoss.TIS and tokens.behaviour_logp is not None:
        weights_t = _importance_weights(tokens.old_logp, tokens.behaviour_logp).to(logp_t.dtype)
    return _LimitedRatios(ratio_t, torch.full_like(ratio_t, terms.eps), weights_t)


def _importance_weights(old_logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Return min(p_old / p_behaviour, `TRUNCATION`) of each token; exactly 1 if both are the same numbers."""
    return (old_logp - behaviour_logp).clamp(max=LARGEST_LOG_RATIO).exp().clamp(max=TRUNCATION)


def _sequence_ratios(logp_t: Tensor, tokens: PolicyTokens, eps: float) -> _LimitedRatios:
    """Return the geometric mean of the ratios to the behaviour in each token's sequence, and its limit."""
    assert tokens.sequences is not None
    behaviour_t = tokens.old_logp if tokens.behaviour_logp is None else tokens.behaviour_logp
    sums_s, lengths_s = torch.zeros_like(logp_t), torch.zeros_like(logp_t)
    sums_s.index_add_(0, tokens.sequences, (logp_t - behaviour_t).where(tokens.mask, 0.0))
    lengths_s.index_add_(0, tokens.sequences, tokens.mask.to(logp_t.dtype))
    ratio_s = (sums_s / lengths_s.clamp(min=1)).clamp(max=LARGEST_LOG_RATIO).exp()
    eps_s = eps * GSPO_TOKENS / lengths_s.clamp(min=GSPO_TOKENS)
    return _LimitedRatios(ratio_s[tokens.sequences], eps_s[tokens.sequences])


def _policy_terms(
    logp_t: Tensor, entropy_t: Tensor, tokens: PolicyTokens, terms: PolicyTerms, limited: _LimitedRatios
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, clipped, ratio, entropy and k3, (5, tokens), and the loss's derivative by logp (tokens,).

    The ratio of a sequence of n tokens has the derivative r / n by each token's logp, and n tokens have it in their loss.
    """
    advantages_t, ratio_t, eps_t = tokens.advantages.to(logp_t.dtype), limited.ratio_t, limited.eps_t
    free_t = ratio_t.clamp(max=terms.delta) * advantages_t
    held_t = ratio_t.clamp(1 - eps_t, 1 + eps_t) * advantages_t
    clipped_t = torch.where(
        advantages_t < 0, (ratio_t < 1 - eps_t) | (ratio_t > terms.delta), (ratio_t > 1 + eps_t) & (advantages_t > 0)
    )
    loss_t, slope_t = -torch.minimum(free_t, held_t), -(ratio_t * advantages_t).where(~clipped_t, 0.0)
    if limited.weights_t is not None:
        loss_t, slope_t = loss_t * limited.weights_t, slope_t * limited.weights_t
    loss_t = loss_t - terms.entropy_weight * entropy_t
    k3_t = torch.zeros_like(logp_t)
    if tokens.reference_logp is not None:
        beyond_t = (tokens.reference_logp - logp_t).clamp(max=LARGEST_LOG_RATIO)
        k3_t = beyond_t.exp() - beyond_t - 1
        loss_t = loss_t + terms.kl_weight * k3_t
        slope_t = slope_t + terms.kl_weight * (1 - beyond_t.exp())
    return torch.stack([loss_t, clipped_t.to(logp_t.dtype), ratio_t, entropy_t, k3_t]), slope_t


# -- the loss of preferences -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreferenceTerms:
    """Parameters of the loss of preferences (`preference_loss`).  label_smoothing: assumed share of swapped pairs."""

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        assert self.beta > 0 and 0 <= self.label_smoothing < 0.5


class PreferenceTokens(NamedTuple):
    """Inputs of the loss of preferences for P pairs; row 2 p is chosen, and row 2 p + 1 is rejected.

    targets: (2 P, T), int64. mask: (2 P, T), bool, true for tokens that count. reference_logp: (2 P,), the sums of
    `row_log_probabilities` under the reference weights.
    """

    targets: Tensor
    mask: Tensor
    reference_logp: Tensor


class PreferenceStatistics(NamedTuple):
    """Loss and margin of each pair, (P,), without gradient.

    margin: beta times the difference of the log-ratios of model and reference, chosen minus rejected; above 0 if the model
    prefers the chosen text more than the reference does.
    """

    losses: Tensor
    margins: Tensor


def preference_loss(
    hidden: Tensor,
    output_weight: Tensor,
    tokens: PreferenceTokens,
    terms: PreferenceTerms,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, PreferenceStatistics]:
    """Return the DPO loss, a scalar differentiable in `hidden` and `output_weight`, and the loss and margin of each pair.

        margin = beta ((logp(chosen) - reference(chosen)) - (logp(rejected) - reference(rejected)))
        L = mean over pairs of - (1 - smoothing) log sigmoid(margin) - smoothing log sigmoid(-margin)

    logp and reference are sums over the counted tokens of a row. Sources: Rafailov et al. 2023 ("Direct Preference
    Optimization", equation 7); the smoothing is conservative DPO (Mitchell, "A note on DPO with noisy preferences", 2023).

    hidden: (2 P, T, dim), float.  output_weight: (vocab, dim), float.
    """
    assert len(tokens.targets) % 2 == 0 and tokens.reference_logp.shape == tokens.targets.shape[:1]
    logp_b = row_log_probabilities(hidden, output_weight, tokens.targets, tokens.mask, chunk_tokens)
    ratio_b = logp_b - tokens.reference_logp.detach()
    margin_p = terms.beta * (ratio_b[0::2] - ratio_b[1::2])
    smoothing = terms.label_smoothing
    losses_p = -(1 - smoothing) * logsigmoid(margin_p) - smoothing * logsigmoid(-margin_p)
    return losses_p.mean(), PreferenceStatistics(losses_p.detach(), margin_p.detach())


def row_log_probabilities(
    hidden: Tensor, output_weight: Tensor, targets: Tensor, mask: Tensor, chunk_tokens: int | None = None
) -> Tensor:
    """Return the sum of log softmax(logits)[target] over each row's counted tokens, (B,), at least fp32, differentiable.

    hidden: (B, T, dim), float.  output_weight: (vocab, dim), float.  targets: (B, T), int64.  mask: (B, T), bool.
    """
    assert hidden.shape[:-1] == targets.shape == mask.shape
    row_t, place_t = mask.nonzero(as_tuple=True)
    logp_t: Tensor = _ChunkedLogProbabilities.apply(  # type: ignore[no-untyped-call]
        hidden[row_t, place_t], output_weight, targets[row_t, place_t], chunk_tokens or tokens_at_once(output_weight)
    )
    return torch.zeros(len(targets), dtype=logp_t.dtype, device=logp_t.device).index_add(0, row_t, logp_t)


class _ChunkedLogProbabilities(torch.autograd.Function):
    """Log-probabilities of tokens, (tokens,), from hidden states; the backward pass computes the logits again."""

    @staticmethod
    def forward(ctx: Any, hidden_td: Tensor, weight_vd: Tensor, targets_t: Tensor, chunk_tokens: int) -> Tensor:
        ctx.save_for_backward(hidden_td, weight_vd, targets_t)
        ctx.chunk_tokens = chunk_tokens
        product_weight_vd = weight_vd.to(hidden_td.dtype)
        logp_t = torch.zeros(
            targets_t.shape, dtype=torch.promote_types(hidden_td.dtype, torch.float32), device=hidden_td.device
        )
        for start in range(0, targets_t.numel(), chunk_tokens):
            span = slice(start, start + chunk_tokens)
            log_p_tv = _log_softmax(hidden_td[span], product_weight_vd, 1.0)
            logp_t[span] = log_p_tv.gather(1, targets_t[span, None]).squeeze(1)
        return logp_t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_td, weight_vd, targets_t = ctx.saved_tensors
        slope_t, product_weight_vd = grads[0], weight_vd.to(hidden_td.dtype)
        grad_hidden_td = torch.empty_like(hidden_td) if ctx.needs_input_grad[0] else None
        grad_weight_vd = torch.zeros_like(weight_vd, dtype=slope_t.dtype) if ctx.needs_input_grad[1] else None
        for start in range(0, targets_t.numel(), ctx.chunk_tokens):
            span = slice(start, start + ctx.chunk_tokens)
            # gradient of the logits: slope * (one-hot of target - p)
            gradient_tv = _log_softmax(hidden_td[span], product_weight_vd, 1.0).exp_().mul_(-slope_t[span, None])
            gradient_tv = gradient_tv.scatter_add_(1, targets_t[span, None], slope_t[span, None]).to(hidden_td.dtype)
            if grad_hidden_td is not None:
                torch.mm(gradient_tv, product_weight_vd, out=grad_hidden_td[span])
            if grad_weight_vd is not None:
                _add_product(grad_weight_vd, gradient_tv.T, hidden_td[span])
        return grad_hidden_td, None if grad_weight_vd is None else grad_weight_vd.to(weight_vd.dtype), None, None
