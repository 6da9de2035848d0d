"""The language-model loss: cross-entropy plus max-z-loss, without ever holding all logits.

    loss = mean over counted tokens of (logsumexp(logits) - logits[target] + z_loss * max(logits)^2)

The logits of a chunk of tokens are made, turned into their gradient and dropped, all in the forward pass (their
gradient depends on nothing that comes later but a factor).  Memory beyond inputs and gradients: `chunk_tokens` x
vocabulary, twice.

Logits come from a product in the hidden states' precision; everything after is fp32.  Max-z-loss: Baichuan 2 (Yang et
al. 2023, section 2), with the weight 2e-4 in INTELLECT-1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 4096
"""Tokens whose logits are in memory at once: 2 GiB of fp32 with a vocabulary of 128 256."""


def language_model_loss(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    z_loss: float = 0.0,
    mask: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Tensor:
    """The loss as an fp32 scalar, nats a token, differentiable in `hidden` and `output_weight`.

    hidden: (..., dim), float.  output_weight: (vocab, dim), float.  targets: (...), int64.
    mask: (...), bool, true for tokens that count; None counts all.  When none counts, the loss is 0.
    """
    assert hidden.shape[:-1] == targets.shape, f"hidden {tuple(hidden.shape)} against targets {tuple(targets.shape)}"
    assert mask is None or mask.shape == targets.shape
    assert chunk_tokens > 0
    counted = None if mask is None else mask.reshape(-1)
    differentiate = torch.is_grad_enabled() and (hidden.requires_grad or output_weight.requires_grad)
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]),
        output_weight,
        targets.reshape(-1),
        counted,
        z_loss,
        chunk_tokens,
        differentiate,
    )
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_td: Tensor,
        weight_vd: Tensor,
        targets_t: Tensor,
        mask_t: Tensor | None,
        z_loss: float,
        chunk_tokens: int,
        differentiate: bool,
    ) -> Tensor:
        count = targets_t.numel() if mask_t is None else int(mask_t.sum())
        scale = 1.0 / max(1, count)
        product_weight_vd = weight_vd.to(hidden_td.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden_td.device)
        grad_hidden_td = torch.empty_like(hidden_td) if differentiate and hidden_td.requires_grad else None
        grad_weight_vd = (
            torch.zeros_like(weight_vd, dtype=torch.float32) if differentiate and weight_vd.requires_grad else None
        )
        for start in range(0, targets_t.numel(), chunk_tokens):
            span = slice(start, start + chunk_tokens)
            share_t = _shares(mask_t, span, targets_t[span], scale)
            logits_tv = (hidden_td[span] @ product_weight_vd.T).float()
            total += _loss_of(logits_tv, targets_t[span], share_t, z_loss)
            if not differentiate:
                continue
            gradient_tv = _gradient_in_place(logits_tv, targets_t[span], share_t, z_loss).to(hidden_td.dtype)
            if grad_hidden_td is not None:
                torch.mm(gradient_tv, product_weight_vd, out=grad_hidden_td[span])
            if grad_weight_vd is not None:
                grad_weight_vd += gradient_tv.T @ hidden_td[span]
        ctx.save_for_backward(grad_hidden_td, grad_weight_vd)
        ctx.weight_dtype = weight_vd.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        factor = grads[0]
        grad_hidden_td, grad_weight_vd = ctx.saved_tensors
        if grad_hidden_td is not None:
            grad_hidden_td = grad_hidden_td * factor.to(grad_hidden_td.dtype)
        if grad_weight_vd is not None:
            grad_weight_vd = (grad_weight_vd * factor).to(ctx.weight_dtype)
        return grad_hidden_td, grad_weight_vd, None, None, None, None, None


def _shares(mask_t: Tensor | None, span: slice, targets_t: Tensor, scale: float) -> Tensor:
    """Weight of each token in the mean: fp32, (tokens,)."""
    if mask_t is None:
        return torch.full(targets_t.shape, scale, dtype=torch.float32, device=targets_t.device)
    return mask_t[span].float() * scale


def _loss_of(logits_tv: Tensor, targets_t: Tensor, share_t: Tensor, z_loss: float) -> Tensor:
    of_target_t = logits_tv.gather(1, targets_t[:, None]).squeeze(1)
    loss_t = torch.logsumexp(logits_tv, dim=1) - of_target_t
    if z_loss:
        loss_t = loss_t + z_loss * logits_tv.amax(dim=1).square()
    return (loss_t * share_t).sum()


def _gradient_in_place(logits_tv: Tensor, targets_t: Tensor, share_t: Tensor, z_loss: float) -> Tensor:
    """share * (softmax - one-hot of target + 2 z max * one-hot of argmax), overwriting the logits."""
    top_t, top_index_t = logits_tv.max(dim=1)
    gradient_tv = logits_tv.sub_(torch.logsumexp(logits_tv, dim=1, keepdim=True)).exp_()
    gradient_tv.scatter_add_(1, targets_t[:, None], torch.full_like(targets_t[:, None], -1, dtype=torch.float32))
    if z_loss:
        gradient_tv.scatter_add_(1, top_index_t[:, None], (2 * z_loss * top_t)[:, None])
    return gradient_tv.mul_(share_t[:, None])
