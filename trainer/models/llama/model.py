"""Decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU (Llama's shape, with the switches of Qwen).

The modules are named as in Hugging Face checkpoints, and their parameters are in the order of `parameter_layout`. In one
process the parameters are views of one flat tensor, and the gradients of another, so that copying the swarm's parameters and
taking the difference are each one vector operation. `trainer.models.llama.initial` fills the parameters;
`trainer.objective` computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels.quantizer import QuantizedMatrix
from protocol.formats.adapter import PROJECTIONS, AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig, ParameterPlace, parameter_layout
from trainer.device import default_dtype, on_device
from trainer.models.llama.cache import LookBack, rotations
from trainer.models.llama.prefetcher import LayerPrefetcher, PrefetchedMatrix

# ------------------------------------------------------------------------------------------------------------------------
# Rows of several documents: the position of each token in its document, and attention within the document.


@dataclass(frozen=True)
class Documents:
    """Documents of some rows.  A document is a sequence of equal ids in a row; a new row begins a new document.

    positions_bt: int64 (B, T), on the device; they begin at 0 in each document. lengths: numbers of tokens of the documents,
    row by row. ends_n: int32 (documents + 1), on the device: 0, then the end of each document in the joined rows.
    """

    positions_bt: Tensor
    lengths: list[int]
    ends_n: Tensor

    @classmethod
    def of(cls, ids_bt: npt.NDArray[np.integer], device: torch.device) -> Self:
        """Return the documents with these ids, integers (B, T).  The lengths come from the host, so no device is asked."""
        rows, length = ids_bt.shape
        begins_bt = np.ones((rows, length), np.bool_)
        begins_bt[:, 1:] = ids_bt[:, 1:] != ids_bt[:, :-1]
        starts = np.flatnonzero(begins_bt)
        ends = np.append(starts, rows * length)
        lengths = np.diff(ends)
        positions = np.arange(rows * length) - np.repeat(starts, lengths)
        return cls(
            on_device(positions.reshape(rows, length), device),
            lengths.tolist(),
            on_device(ends.astype(np.int32), device),
        )


SHORT = 256
"""Number of tokens below which attention with its gradient takes longer in bf16 than in fp32 on a CPU, up to 3 times."""


def causal_attention(query_bhtw: Tensor, key_bktw: Tensor, value_bktw: Tensor, documents: Documents | None) -> Tensor:
    """Compute causal attention, (B, H, T, W), within documents, or, if None, within whole rows.

    A CPU computes each document alone, which is 2 to 8 times as fast as one call with a mask (documents of 64 to 256
    tokens); a GPU computes all in one call, which takes their ends. Neither method needs a mask, whose size would be the
    square of a row's length.
    """
    if documents is None:
        return _attend(query_bhtw, key_bktw, value_bktw)
    rows, heads, length, width = query_bhtw.shape
    query, key, value = (each.transpose(1, 2).flatten(0, 1) for each in (query_bhtw, key_bktw, value_bktw))
    if query_bhtw.device.type != "cpu" and query_bhtw.dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        ends_n, longest = documents.ends_n, max(documents.lengths)
        grouped: dict[str, Any] = {"enable_gqa": True}
        if "enable_gqa" not in signature(varlen_attn).parameters:  # as in torch 2.11
            grouped, each = {}, query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        mixed = varlen_attn(query, key, value, ends_n, ends_n, longest, longest, window_size=(-1, 0), **grouped)
        assert isinstance(mixed, Tensor)
    else:
        alone = zip(*(torch.split(each, documents.lengths) for each in (query, key, value)), strict=True)
        parts = [_attend(*(each.transpose(0, 1)[None] for each in document)) for document in alone]
        mixed = torch.cat([part[0].transpose(0, 1) for part in parts])
    return mixed.view(rows, length, heads, width).transpose(1, 2)


def _attend(query_bhtw: Tensor, key_bktw: Tensor, value_bktw: Tensor) -> Tensor:
    """Compute causal attention within whole rows."""
    dtype = query_bhtw.dtype
    is_short = query_bhtw.device.type == "cpu" and query_bhtw.shape[2] < SHORT
    if is_short and dtype == torch.bfloat16 and query_bhtw.requires_grad:
        with torch.autocast("cpu", enabled=False):  # which would compute in bf16
            return _attend(query_bhtw.float(), key_bktw.float(), value_bktw.float()).to(dtype)
    return F.scaled_dot_product_attention(query_bhtw, key_bktw, value_bktw, is_causal=True, enable_gqa=True)


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """Inputs of a layer's attention other than the hidden states: rotations, and the tokens' past or documents, if any.

    cos, sin: as in `rotations`, fp32, (T, width of a head) or (B, 1, T, width of a head).
    """

    cos: Tensor
    sin: Tensor
    past: LookBack | None = None
    documents: Documents | None = None


class RMSNorm(nn.Module):
    """Root mean square norm of (..., width), in fp32 in any precision of input and weight; the result is fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the normed values."""
        if not torch.is_grad_enabled():
            return _normed(hidden.float(), self.weight.float(), self._eps)[0]
        normed: Tensor = _RmsNorm.apply(hidden.float(), self.weight.float(), self._eps)  # type: ignore[no-untyped-call]
        return normed


def _normed(hidden: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the normed values, and the inverse of each row's root mean square."""
    inverse = hidden.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (hidden * inverse).mul_(weight), inverse


class _RmsNorm(torch.autograd.Function):
    """RMS norm whose backward pass goes over the values less often than torch's, which is composed of simple operations."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, inverse = _normed(hidden, weight, eps)
        ctx.save_for_backward(hidden, weight, inverse)
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, inverse = ctx.saved_tensors
        (gradient,) = grads
        product = gradient * hidden
        of_weight = None
        with torch.autocast(
            hidden.device.type, enabled=False
        ):  # a compiled backward pass has the setting of the forward pass
            if ctx.needs_input_grad[1]:
                of_weight = inverse.reshape(-1) @ product.reshape(-1, len(weight))
            along = (product @ weight).unsqueeze(-1).mul_(inverse**3).div_(len(weight))
        of_hidden = (gradient * weight).mul_(inverse).addcmul_(hidden, along, value=-1)
        return of_hidden, of_weight, None


StoredMatrix = QuantizedMatrix | PrefetchedMatrix
"""A frozen matrix whose values are written for each product."""


@dataclass(frozen=True)
class FrozenBase:
    """Weights that do not learn, below trained factors; on one device.

    tensors: tensors of `parameter_layout` by name, in the precision of products; an embedding may be in bf16 in the memory
    of the computer instead.  matrices: the other ones, quantised or prefetched.  scratch: room for the values of the largest
    of these matrices, in the precision of products.  files: the model's published files, by their names in its folder; empty
    if it did not come from files.  prefetcher: the layers of the prefetched matrices; None if there are none.
    """

    adapter: AdapterConfig
    tensors: Mapping[str, Tensor]
    matrices: Mapping[str, StoredMatrix]
    scratch: Tensor
    files: Mapping[str, Path] = field(default_factory=dict)
    prefetcher: LayerPrefetcher | None = None

    @classmethod
    def whole(cls, adapter: AdapterConfig, tensors: Mapping[str, Tensor]) -> Self:
        """Return weights of which none are quantised."""
        return cls(adapter, tensors, {}, torch.empty(0))

    @property
    def dtype(self) -> torch.dtype:
        """Precision of products."""
        return self.tensors["model.norm.weight"].dtype


def trained_layout(config: ModelConfig, base: FrozenBase | None) -> list[ParameterPlace]:
    """Return the places of the values that are trained: the whole model's, or those of the factors beside a base."""
    return parameter_layout(config) if base is None else adapter_layout(config, base.adapter)


class FrozenLinear(nn.Linear):
    """Product with a frozen matrix: x Wᵀ + b.  A quantised W is written into a scratch for each product."""

    matrix: tuple[StoredMatrix, Tensor] | None = None
    """Stored W, and the scratch; None if W is `weight`."""
    scale = 0.0

    def forward(self, input: Tensor) -> Tensor:
        """Return the product, (..., outputs), in the precision of the input and of the frozen matrix."""
        return self._product(input, None)

    def _product(self, input: Tensor, factors: tuple[Tensor, Tensor] | None) -> Tensor:
        matrix: FrozenMatrix = self.weight if self.matrix is None else self.matrix
        if not torch.is_grad_enabled():
            sum_no, _ = _adapted(input.flatten(0, -2), matrix, self.bias, factors, self.scale)
            return sum_no.view(*input.shape[:-1], -1)
        down, up = factors if factors is not None else (None, None)
        output: Tensor = _AdaptedProduct.apply(input, matrix, self.bias, down, up, self.scale)  # type: ignore[no-untyped-call]
        return output


class AdaptedLinear(FrozenLinear):
    """Product with a frozen matrix, and with the trained factors beside it: x Wᵀ + b + scale (x Aᵀ) Bᵀ (Hu et al. 2021).

    The factors are never added to W: a sum rounded to the matrix's precision has other log-probabilities.
    """

    def __init__(self, inputs: int, outputs: int, adapter: AdapterConfig, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.lora_A = nn.Linear(inputs, adapter.rank, bias=False)
        self.lora_B = nn.Linear(adapter.rank, outputs, bias=False)
        self.scale = adapter.scale

    def forward(self, input: Tensor) -> Tensor:
        """Return the sum, (..., outputs), in the precision of the input and of the frozen matrix."""
        return self._product(input, (self.lora_A.weight, self.lora_B.weight))


FrozenMatrix = Tensor | tuple[StoredMatrix, Tensor]
"""A matrix (outputs, inputs), or a stored one with the scratch for its values."""


def _values(matrix: FrozenMatrix) -> Tensor:
    """Return the values of a matrix, those of a stored one until the next one is asked for."""
    return matrix if isinstance(matrix, Tensor) else matrix[0].weights(matrix[1])


def _adapted(
    input_ni: Tensor, matrix: FrozenMatrix, bias_o: Tensor | None, factors: tuple[Tensor, Tensor] | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Return the sum, (n, outputs), and the product with A, (n, rank), if there are factors."""
    weight_oi = _values(matrix)
    assert input_ni.dtype == weight_oi.dtype, "the frozen matrix is in the precision of products"
    with torch.autocast(input_ni.device.type, enabled=False):
        output_no = F.linear(input_ni, weight_oi, bias_o)
        if factors is None:
            return output_no, None
        down_ri, up_or = (factor.to(input_ni.dtype) for factor in factors)
        inner_nr = input_ni @ down_ri.T
        return output_no.addmm_(inner_nr, up_or.T, alpha=scale), inner_nr


class _AdaptedProduct(torch.autograd.Function):
    """Sum of both products, without a copy of the outputs for the second one or a gradient of the frozen matrix."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        matrix: FrozenMatrix,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
        scale: float,
    ) -> Tensor:
        input_ni, factors = input.flatten(0, -2), None if down is None or up is None else (down, up)
        output_no, inner_nr = _adapted(input_ni, matrix, bias, factors, scale)
        ctx.save_for_backward(None if factors is None else input_ni, down, up, inner_nr)
        ctx.matrix, ctx.scale = matrix, scale
        return output_no.view(*input.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_ni, down_ri, up_or, inner_nr = ctx.saved_tensors
        of_input = of_down = of_up = of_inner = None
        with torch.autocast(grads[0].device.type, enabled=False):
            gradient_no = grads[0].flatten(0, -2)
            if inner_nr is not None:
                of_inner = (gradient_no @ up_or.to(gradient_no.dtype)).mul_(ctx.scale)
                of_up = (gradient_no.T @ inner_nr).to(up_or.dtype).mul_(ctx.scale)
                of_down = (of_inner.T @ input_ni).to(down_ri.dtype)
            if ctx.needs_input_grad[0]:
                of_input = gradient_no @ _values(ctx.matrix)
                if of_inner is not None:
                    of_input.addmm_(of_inner, down_ri.to(gradient_no.dtype))
                of_input = of_input.view(*grads[0].shape[:-1], -1)
        return of_input, None, None, of_down, of_up, None


def _projection(name: str, inputs: int, outputs: int, adapter: AdapterConfig | None, *, bias: bool = False) -> nn.Linear:
    if adapter is None:
        return nn.Linear(inputs, outputs, bias=bias)
    if name not in PROJECTIONS[adapter.targets]:
        return FrozenLinear(inputs, outputs, bias=bias)
    return AdaptedLinear(inputs, outputs, adapter, bias=bias)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions.  number: the layer's number."""

    def __init__(self, config: ModelConfig, number: int, adapter: AdapterConfig | None) -> None:
        super().__init__()
        self._number, self._width, bias = number, config.head_width, config.qkv_bias
        self.q_proj = _projection("q_proj", config.dim, config.query_width, adapter, bias=bias)
        self.k_proj = _projection("k_proj", config.dim, config.kv_width, adapter, bias=bias)
        self.v_proj = _projection("v_proj", config.dim, config.kv_width, adapter, bias=bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self._width, config.norm_eps)
            self.k_norm = RMSNorm(self._width, config.norm_eps)
        self.o_proj = _projection("o_proj", config.query_width, config.dim, adapter)
        self._norms = config.qk_norm
        self.attend_to_documents = causal_attention

    def forward(self, normed_btd: Tensor, context: Context) -> Tensor:
        """Return the layer's attention, (B, T, dim)."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (each(normed_btd).view(*normed_btd.shape[:2], -1, self._width) for each in projections)
        if self._norms:
            query, key = self.q_norm(query).to(value.dtype), self.k_norm(key).to(value.dtype)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        query, key = (_rotate(each, context.cos, context.sin) for each in (query, key))
        if context.past is None:
            attention = causal_attention if context.documents is None else self.attend_to_documents
            mixed = attention(query, key, value, context.documents)
        else:
            key, value = context.past.extend(self._number, key, value)
            grouped = query.reshape(
                len(query), key.shape[1], -1, self._width
            )  # the queries of a key head are adjacent, so keys and values are read once
            mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=context.past.mask).reshape(query.shape)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, adapter: AdapterConfig | None) -> None:
        super().__init__()
        self.gate_proj = _projection("gate_proj", config.dim, config.ffn, adapter)
        self.up_proj = _projection("up_proj", config.dim, config.ffn, adapter)
        self.down_proj = _projection("down_proj", config.ffn, config.dim, adapter)

    def forward(self, normed_btd: Tensor) -> Tensor:
        """Return the layer's feed-forward, (B, T, dim)."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(normed_btd)) * self.up_proj(normed_btd))
        return output


class Layer(nn.Module):
    """Layer of a decoder.  The hidden states between layers are fp32."""

    def __init__(self, config: ModelConfig, number: int, adapter: AdapterConfig | None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.self_attn = Attention(config, number, adapter)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = FeedForward(config, adapter)

    def forward(self, hidden_btd: Tensor, context: Context) -> Tensor:
        """Return the hidden states after the layer, (B, T, dim)."""
        dtype = self.input_layernorm.weight.dtype
        hidden_btd = hidden_btd + self.self_attn(self.input_layernorm(hidden_btd).to(dtype), context)
        fed: Tensor = self.mlp(self.post_attention_layernorm(hidden_btd).to(dtype))
        return hidden_btd + fed


class _Body(nn.Module):
    """All modules but the output weights, under the name that they have in a checkpoint."""

    def __init__(self, config: ModelConfig, adapter: AdapterConfig | None) -> None:
        super().__init__()
        # drawing values, which are replaced, would load torch's compiler: 144 MB
        self.embed_tokens = nn.Embedding.from_pretrained(torch.empty(config.vocab, config.dim), freeze=False)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(Layer(config, number, adapter) for number in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)


def _tried(values: Tensor) -> Tensor:
    """Return a simple function of the values, which tests the compiler."""
    return values.sin().square()


Result = TypeVar("Result")
Head = Callable[[Tensor, Tensor], Result]
"""Function of hidden states (B, T, dim) and output weights (vocab, dim)."""


class Decoder(nn.Module):
    """Decoder from tokens (B, T) to normalised hidden states (B, T, dim).

    flat: the parameters (n), fp32; in a model without gradients, in the precision of its matrix products. Sums and norms are
    always fp32. gradient: the gradients, fp32 (n); empty in a model without gradients. layout: places of the parameters in
    both. count: number of parameters. base: frozen weights, if the parameters are factors beside them. compute_dtype:
    precision of the products of `hidden_states`. recomputed: number of layers, from the first, of which the forward pass
    keeps only the input for the backward pass, which computes the rest again. device: device on which it computes.
    """

    recomputed = 0

    def __init__(
        self, config: ModelConfig, device: torch.device, flat: Tensor | None = None, base: FrozenBase | None = None
    ) -> None:
        """Make a decoder. flat: existing parameters, for a model without gradients; None for zeros with gradients."""
        super().__init__()
        self.config, self.device, self.base = config, device, base
        adapter = base.adapter if base is not None else None
        self.layout = trained_layout(config, base)
        self.count = self.layout[-1].offset + self.layout[-1].count
        self.compute_dtype = default_dtype(device)
        trains = flat is None
        self.flat = torch.zeros(self.count, dtype=torch.float32, device=device) if flat is None else flat
        self.gradient = torch.zeros_like(self.flat) if trains else self.flat.new_empty(0)
        assert self.flat.shape == (self.count,)
        with torch.device("meta"):  # the parameters are replaced below
            self.model = _Body(config, adapter)
            if not config.tied:
                self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)
        owners, own = dict(self.named_modules()), dict(self.named_parameters())
        for name, values in base.tensors.items() if base is not None else ():
            owner, _, last = name.rpartition(".")
            setattr(owners[owner], last, nn.Parameter(values, requires_grad=False))
            del own[name]
        for name, matrix in base.matrices.items() if base is not None else ():
            module = owners[name.removesuffix(".weight")]
            assert base is not None and isinstance(module, FrozenLinear)
            module.matrix = matrix, base.scratch
            del own[name], module.weight
        shapes = [(place.name, place.shape) for place in self.layout]
        assert shapes == [(name, tuple(parameter.shape)) for name, parameter in own.items()]
        for place in self.layout:
            span = slice(place.offset, place.offset + place.count)
            parameter = nn.Parameter(self.flat[span].view(place.shape), requires_grad=trains)
            if trains:
                parameter.grad = self.gradient[span].view(place.shape)
            owner, _, last = place.name.rpartition(".")
            setattr(owners[owner], last, parameter)

    def over(self, flat: Tensor) -> Decoder:
        """Return a model of the same shape that uses the parameters in `flat`, without copying or changing them."""
        model = Decoder(self.config, flat.device, flat, self.base)
        model.compute_dtype = self.compute_dtype
        return model

    def compile_layers(self) -> None:
        """Have torch compile each layer at its first use, which takes about 40 s of a CPU's time.

        A small function is compiled at once, because an error in a step would end the trainer.  Raises OSError if that
        fails.
        """
        try:
            values = torch.ones(2, device=self.device, requires_grad=True)
            total = torch.compile(_tried)(values).sum()  # loads the compiler: 144 MB
            total.backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - no compiler, no headers, no Triton: errors differ by device and version
            reason = str(error).partition("\n")[0]
            raise OSError(f"torch needs a C++ compiler, such as g++, and Python's headers: {reason}") from error
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            # attention within documents stays uncompiled, because their lengths differ from step to step
            layer.self_attn.attend_to_documents = torch.compiler.disable(causal_attention)  # type: ignore[no-untyped-call]
            layer.compile()

    @property
    def prefetches(self) -> bool:
        """True if frozen layers are copied to the device before they are computed."""
        return self.base is not None and self.base.prefetcher is not None

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """Parameters by name, in the order of the layout."""
        return dict(self.named_parameters())

    @property
    def output_weight(self) -> Tensor:
        """Output weights, (vocab, dim)."""
        return self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight

    def forward(
        self,
        tokens_bt: Tensor,
        documents: Documents | None = None,
        past: LookBack | None = None,
        head: Head[Any] | None = None,
    ) -> Any:
        """Return normalised hidden states (B, T, dim), fp32, of tokens (B, T); or the result of `head`, if any, on them.

        documents: for rows of several documents; each has the same hidden states as alone. past: keys and values before the
        tokens, if any; the tokens are then part of one document.
        """
        assert documents is None or past is None
        embedding = self.model.embed_tokens  # the computer's memory may have it, and not the device
        hidden_btd = embedding(tokens_bt.to(embedding.weight.device)).to(tokens_bt.device).float()
        cos, sin = past.rotations if past else rotations(self.config, tokens_bt.shape[1], hidden_btd.device)
        if documents is not None:
            cos, sin = (each[documents.positions_bt].unsqueeze(1) for each in (cos, sin))
        context = Context(cos, sin, past, documents)
        recomputed = self.recomputed if torch.is_grad_enabled() else 0
        for number, layer in enumerate(self.model.layers):
            if number < recomputed:
                hidden_btd = checkpoint(layer, hidden_btd, context, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden_btd = layer(hidden_btd, context)
        normed_btd: Tensor = self.model.norm(hidden_btd)
        return normed_btd if head is None else head(normed_btd, self.output_weight)


class _Rotation(torch.autograd.Function):
    """Rotation of heads by their positions' angles, in fp32; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, heads_bhtd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(heads_bhtd, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, -sin), None, None


def _rotated(heads_bhtd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    values = heads_bhtd.float()
    return (values * cos).addcmul_(values.roll(values.shape[-1] // 2, -1), sin).to(heads_bhtd.dtype)


def _rotate(heads_bhtd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return _rotated(heads_bhtd, cos, sin)
    rotated: Tensor = _Rotation.apply(heads_bhtd, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


# ------------------------------------------------------------------------------------------------------------------------
# Hidden states in the precision in which a model trains.


def through_head(model: Decoder, tokens_bt: Tensor, documents: Documents | None, head: Head[Result]) -> Result:
    """Return the result of `head` on the hidden states (B, T, dim) of tokens on the model's device.

    The hidden states are in the model's `compute_dtype`, as are its products; sums between layers, norms and rotations are
    fp32. The head is computed within the model's forward pass: only there are the output weights whole if ranks share them.
    """
    kind, lower = tokens_bt.device.type, model.compute_dtype == torch.bfloat16

    def outside(hidden_btd: Tensor, weight_vd: Tensor) -> Result:
        with torch.autocast(kind, enabled=False):
            return head(hidden_btd.to(model.compute_dtype), weight_vd)

    with torch.autocast(kind, dtype=torch.bfloat16, enabled=lower):
        result: Result = model(tokens_bt, documents, None, outside)
    return result


def hidden_states(model: Decoder, tokens_bt: Tensor, documents: Documents | None = None) -> Tensor:
    """Return hidden states (B, T, dim) in the form that a head gets."""
    return through_head(model, tokens_bt, documents, lambda hidden_btd, _: hidden_btd)
