"""Decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU (Llama's shape, with the switches of Qwen).

All parameters are views of one flat fp32 tensor, and their gradients are views of another, in the order of
`parameter_layout`. So copying the swarm's parameters and taking the difference are each one vector operation.
`trainer.models.llama.initial` fills the parameters; `trainer.objective` computes the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.llama.config import ModelConfig, parameter_layout

# ------------------------------------------------------------------------------------------------------------------------
# Rows of several documents: the position of each token in its document, and attention within the document.
#
# A document is a sequence of equal ids in a row; a new row begins a new document. Each document is computed separately, so
# its attention costs no more than for a document alone, and needs no mask with the square of a row's length.


def document_spans(documents_bt: Tensor) -> tuple[Tensor, list[int]]:
    """Return positions (B, T) that begin at 0 in each document, and the documents' lengths, row by row."""
    batch, length = documents_bt.shape
    begins_bt = torch.ones_like(documents_bt, dtype=torch.bool)
    begins_bt[:, 1:] = documents_bt[:, 1:] != documents_bt[:, :-1]
    places_t = torch.arange(length, device=documents_bt.device)
    positions_bt = places_t - torch.where(begins_bt, places_t, 0).cummax(dim=1).values
    starts: list[int] = begins_bt.flatten().nonzero().flatten().tolist()
    ends = [*starts[1:], batch * length]
    return positions_bt, [end - start for start, end in zip(starts, ends, strict=True)]


def causal_attention(query_bhtw: Tensor, key_bhtw: Tensor, value_bhtw: Tensor, lengths: Sequence[int] | None) -> Tensor:
    """Compute causal attention (B, H, T, W) within the documents of these lengths, or, if None, within whole rows."""
    if lengths is None:
        return F.scaled_dot_product_attention(query_bhtw, key_bhtw, value_bhtw, is_causal=True)
    batch, heads, length, width = query_bhtw.shape
    ends = torch.tensor(lengths).cumsum(0)[:-1].tolist()
    query, key, value = (
        each.transpose(0, 1).reshape(1, heads, batch * length, width).tensor_split(ends, dim=2)
        for each in (query_bhtw, key_bhtw, value_bhtw)
    )
    mixed = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in zip(query, key, value, strict=True)]
    return torch.cat(mixed, dim=2).view(heads, batch, length, width).transpose(0, 1)


# ------------------------------------------------------------------------------------------------------------------------


class Past(Protocol):
    """Interface to keys and values of earlier tokens, to which a forward pass attends (`trainer.generate.engine`)."""

    @property
    def rotations(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the tokens' positions, (B, 1, T, width of a head)."""

    @property
    def mask(self) -> Tensor:
        """Mask that is added to the attention scores: 0 or -inf, (B, 1, queries for each key head, keys)."""

    def extend(self, layer: int, key_bhtd: Tensor, value_bhtd: Tensor) -> tuple[Tensor, Tensor]:
        """Add the tokens' own keys and values; return all that they attend to, (B, key heads, keys, head width)."""


class Decoder(nn.Module):
    """Decoder from tokens (B, T) to normalised hidden states (B, T, dim).

    flat: the parameters (n), fp32; in a model without gradients, in the precision of its matrix products. Sums and norms are
    always fp32. gradient: the gradients, fp32 (n); empty in a model without gradients.
    """

    def __init__(self, config: ModelConfig, device: torch.device, flat: Tensor | None = None) -> None:
        """Make a decoder. flat: existing parameters, for a model without gradients; None for zeros with gradients."""
        super().__init__()
        self.config = config
        self.layout = parameter_layout(config)
        count = self.layout[-1].offset + self.layout[-1].count
        trains = flat is None
        self.flat = torch.zeros(count, dtype=torch.float32, device=device) if flat is None else flat
        self.gradient = torch.zeros_like(self.flat) if trains else self.flat.new_empty(0)
        assert self.flat.shape == (count,)
        self.tensors: dict[str, nn.Parameter] = {}
        for place in self.layout:
            span = slice(place.offset, place.offset + place.count)
            parameter = nn.Parameter(self.flat[span].view(place.shape), requires_grad=trains)
            if trains:
                parameter.grad = self.gradient[span].view(place.shape)
            self.tensors[place.name] = parameter
            self.register_parameter(place.name.replace(".", "/"), parameter)

    def over(self, flat: Tensor) -> Decoder:
        """Return a model of the same shape that uses the parameters in `flat`, without copying or changing them."""
        return Decoder(self.config, flat.device, flat)

    @property
    def output_weight(self) -> Tensor:
        """Output weights, (vocab, dim)."""
        return self.tensors["model.embed_tokens.weight" if self.config.tied else "lm_head.weight"]

    def forward(self, tokens_bt: Tensor, documents_bt: Tensor | None = None, past: Past | None = None) -> Tensor:
        """Return normalised hidden states (B, T, dim), fp32, of tokens (B, T).

        documents_bt: (B, T), int, for rows of several documents, each a sequence of one id. A document has the same hidden
        states as alone. past: keys and values before the tokens, if any; the tokens are then part of one document.
        """
        assert documents_bt is None or past is None
        hidden = F.embedding(tokens_bt, self.tensors["model.embed_tokens.weight"]).float()
        cos, sin = past.rotations if past else rotations(self.config, tokens_bt.shape[1], hidden.device)
        lengths = None
        if documents_bt is not None:
            positions_bt, lengths = document_spans(documents_bt)
            cos, sin = cos[positions_bt].unsqueeze(1), sin[positions_bt].unsqueeze(1)
        for layer in range(self.config.layers):
            hidden = hidden + self._attention(layer, hidden, cos, sin, past or lengths)
            hidden = hidden + self._feed_forward(layer, hidden)
        return self._norm("model.norm.weight", hidden)

    def _attention(
        self, layer: int, hidden_btd: Tensor, cos: Tensor, sin: Tensor, context: Past | Sequence[int] | None
    ) -> Tensor:
        """Compute a layer's attention.

        context: the tokens' past, or the lengths of the rows' documents; None for neither.
        """
        config, prefix = self.config, f"model.layers.{layer}."
        batch, length, _ = hidden_btd.shape
        normed = self._norm(prefix + "input_layernorm.weight", hidden_btd).to(self.flat.dtype)

        def heads(name: str, count: int) -> Tensor:
            """Project to (B, heads, T, width of a head)."""
            weight = self.tensors[f"{prefix}self_attn.{name}_proj.weight"]
            bias = self.tensors[f"{prefix}self_attn.{name}_proj.bias"] if config.qkv_bias else None
            projected = F.linear(normed, weight, bias).view(batch, length, count, config.head_width)
            if config.qk_norm and name != "v":
                projected = self._norm(f"{prefix}self_attn.{name}_norm.weight", projected).to(projected.dtype)
            return projected.transpose(1, 2)

        query = _rotate(heads("q", config.heads), cos, sin)
        key = _rotate(heads("k", config.kv_heads), cos, sin)
        value = heads("v", config.kv_heads)
        if context is None or isinstance(context, Sequence):
            mixed = _within(query, key, value, context)
        else:
            mixed = _looking_back(query, *context.extend(layer, key, value), context.mask)
        mixed = mixed.transpose(1, 2).reshape(batch, length, config.query_width)
        return F.linear(mixed, self.tensors[f"{prefix}self_attn.o_proj.weight"])

    def _feed_forward(self, layer: int, hidden_btd: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}."
        normed = self._norm(prefix + "post_attention_layernorm.weight", hidden_btd).to(self.flat.dtype)
        gate = F.silu(F.linear(normed, self.tensors[prefix + "mlp.gate_proj.weight"]))
        up = F.linear(normed, self.tensors[prefix + "mlp.up_proj.weight"])
        return F.linear(gate * up, self.tensors[prefix + "mlp.down_proj.weight"])

    def _norm(self, name: str, hidden_btd: Tensor) -> Tensor:
        weight = self.tensors[name].float()
        return F.rms_norm(hidden_btd.float(), weight.shape, weight, self.config.norm_eps)


def _within(query_bhtd: Tensor, key_bktd: Tensor, value_bktd: Tensor, lengths: Sequence[int] | None) -> Tensor:
    """Compute attention of tokens to themselves and to earlier tokens of their document, (B, heads, T, width of a head)."""
    group = query_bhtd.shape[1] // key_bktd.shape[1]
    if group != 1:
        key_bktd, value_bktd = key_bktd.repeat_interleave(group, dim=1), value_bktd.repeat_interleave(group, dim=1)
    return causal_attention(query_bhtd, key_bktd, value_bktd, lengths)


def _looking_back(query_bhtd: Tensor, key_bksd: Tensor, value_bksd: Tensor, mask: Tensor) -> Tensor:
    """Compute attention to the past and to the tokens. Queries that share a key head are adjacent, so keys are read once."""
    batch, heads, length, width = query_bhtd.shape
    grouped = query_bhtd.reshape(batch, key_bksd.shape[1], -1, width)
    mixed = F.scaled_dot_product_attention(grouped, key_bksd, value_bksd, attn_mask=mask)
    return mixed.reshape(batch, heads, length, width)


def rotations(config: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (length, width of a head), fp32, each half repeated as in Llama's Hugging Face form."""
    half = torch.arange(0, config.head_width, 2, dtype=torch.float32, device=device) / config.head_width
    frequencies = _stretched(config, 1.0 / config.rope_base**half)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()


def _stretched(config: ModelConfig, frequencies: Tensor) -> Tensor:
    """Stretch frequencies as Llama 3.1 does beyond its original context.

    Low frequencies are divided by the factor, high ones are kept, and those between are interpolated (transformers:
    `_compute_llama3_parameters`).
    """
    if config.rope_factor == 1.0:
        return frequencies
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    turns = config.rope_original_context * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / config.rope_factor + kept * frequencies


def _rotate(heads_bhtd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads_bhtd.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (heads_bhtd * cos + turned * sin).to(heads_bhtd.dtype)


# ------------------------------------------------------------------------------------------------------------------------
# Hidden states in the precision of a model's device.


def hidden_states(model: Decoder, tokens_bt: Tensor, documents_bt: Tensor | None = None) -> Tensor:
    """Return hidden states (B, T, dim) of tokens on the model's device, in the precision that the device computes in."""
    device = model.flat.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden: Tensor = model(tokens_bt, documents_bt)
    return hidden.bfloat16() if device.type == "cuda" else hidden  # the output product is bf16, the rest fp32
