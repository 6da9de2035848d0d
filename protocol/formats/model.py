"""Shape of a decoder of the Llama family (Llama 3, Qwen2, Qwen3), and the place of each tensor in the flat vector.

This module decides the order, names and offsets of the parameters in the flat fp32 vector that peers exchange, hash and
keep, so it is part of the protocol.

The largest run has `MAX_CHUNKS` chunks of `MAX_CHUNK_PARAMETERS`.  Both are bounds on memory: a record proposal names and
signs every chunk, in one envelope of 1 MiB; a peer holds up to 64 parts of chunks that wait for others (4 MiB each), and
the proof of a wrong average carries every member's part of a chunk.  `protocol.run.manifest` checks them, because the frozen
model of an adapter run may be larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.formats.section import Problems, Section

MAX_CHUNKS = 4096
"""Most chunks of a contribution: 4 G parameters a fragment with chunks of 1 MiB.  A record proposal has a signature for
each chunk."""
MAX_CHUNK_PARAMETERS = 1 << 22
MAX_PARAMETERS = MAX_CHUNKS * MAX_CHUNK_PARAMETERS
"""Most values that a run trains and exchanges."""
MAX_FROZEN_PARAMETERS = 200_000_000_000
"""Most parameters of any model.  One with more than `MAX_PARAMETERS` can only be frozen, below an adapter: no vector, chunk
or signature has all of its values, and the trainer reads one tensor at a time."""


def head_count(dim: int) -> int | None:
    """Return the attention heads for a width: about 32, 64 or 128 wide each; None if no number divides it evenly."""
    wanted = 128 if dim >= 2048 else 64 if dim >= 512 else 32
    counts = [heads for heads in range(1, 513) if dim % (2 * heads) == 0]
    return min(counts, key=lambda heads: max(dim / heads / wanted, wanted * heads / dim), default=None)


def kv_head_count(heads: int) -> int:
    """Return the key and value heads: half of the heads or fewer, at most 8."""
    return max(count for count in range(1, max(1, min(8, heads // 2)) + 1) if heads % count == 0)


def ffn_width(dim: int) -> int:
    """Return the SwiGLU width: 8/3 of the model's, rounded up to a multiple of 128 (8 in models narrower than that)."""
    step = 128 if dim >= 128 else 8
    return -(-8 * dim // (3 * step)) * step


class ModelConfig(Section):
    """A decoder of the Llama family (Llama 3, Qwen2, Qwen3); the defaults are the demo's."""

    LATER: ClassVar[frozenset[str]] = frozenset(
        {
            "head_dim",
            "qkv_bias",
            "qk_norm",
            "rope_factor",
            "rope_low_freq_factor",
            "rope_high_freq_factor",
            "rope_original_context",
            "context",
        }
    )

    vocab: Annotated[int, Field(ge=2, le=1 << 20)] = 256
    """Size of the vocabulary in tokens (256: bytes)."""
    dim: Annotated[int, Field(ge=8, le=1 << 15)] = 128
    """Width of the residual stream."""
    layers: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of decoder layers."""
    heads: Annotated[int, Field(ge=1, le=512)] = 4
    """Attention heads; dim / heads must be an even number."""
    kv_heads: Annotated[int, Field(ge=1, le=512)] = 2
    """Key and value heads; heads must be a multiple of their number."""
    ffn: Annotated[int, Field(ge=8, le=1 << 18)] = 384
    """Width of the SwiGLU layer."""
    rope_base: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 10_000.0
    """Base of the rotary position frequencies."""
    norm_eps: Annotated[float, Field(gt=0, le=0.1, allow_inf_nan=False)] = 1e-5
    """Epsilon of RMSNorm."""
    tied: bool = True
    """True: the output weights are the weights of the embedding."""
    head_dim: Annotated[int, Field(ge=0, le=1024, multiple_of=2)] = 0
    """Width of an attention head, an even number; 0: dim / heads."""
    qkv_bias: bool = False
    """True: queries, keys and values have biases (Qwen2)."""
    qk_norm: bool = False
    """True: queries and keys are normed, each head by itself (Qwen3)."""
    rope_factor: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 1.0
    """The factor by which rotary positions are stretched, in the same way as in Llama 3.1 ("llama3"); 1: not at all."""
    rope_low_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 1.0
    """Frequencies that make fewer turns than this within rope_original_context are divided by rope_factor."""
    rope_high_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 4.0
    """Frequencies that make more turns than this within rope_original_context are kept."""
    rope_original_context: Annotated[int, Field(ge=1, le=1 << 24)] = 8192
    """Tokens that the model read before its positions were stretched."""
    context: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Tokens that an exported model says it can read; 0: data.sequence_length."""

    def _problems(self) -> Problems:
        dim, heads, kv_heads = self.dim, self.heads, self.kv_heads
        step = heads if self.head_dim else 2 * heads
        if dim % step:
            rule = f"a multiple of heads ({heads})" if self.head_dim else f"heads ({heads}) times an even number"
            yield "dim heads", f"dim ({dim}) must be {rule}; dim = {-(-dim // step) * step} would do"
        if heads % kv_heads:
            yield (
                "heads kv_heads",
                f"heads ({heads}) must be a multiple of kv_heads ({kv_heads}); kv_heads = {kv_head_count(heads)} would do",
            )
        if self.qkv_bias and self.qk_norm:
            yield (
                "qkv_bias qk_norm",
                "qkv_bias and qk_norm are both true, which no family of models has; qkv_bias = false would do",
            )
        if self.parameters > MAX_FROZEN_PARAMETERS:
            yield (
                "vocab dim layers heads kv_heads ffn tied head_dim",
                f"the model has {self.parameters / 1e9:.2f} G parameters, but at most {MAX_FROZEN_PARAMETERS / 1e9:.0f} G "
                "are allowed; make vocab, dim, ffn or layers smaller",
            )
        low, high = self.rope_low_freq_factor, self.rope_high_freq_factor
        if not low < high:
            yield (
                "rope_low_freq_factor rope_high_freq_factor",
                f"rope_low_freq_factor ({low:g}) must be less than rope_high_freq_factor ({high:g}); 1 and 4 would do",
            )

    @property
    def family(self) -> str:
        """Name of the models that are shaped like this one."""
        return "Qwen3" if self.qk_norm else "Qwen2" if self.qkv_bias else "Llama"

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.dim // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries together; dim unless head_dim is set."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all keys together, and of all values together."""
        return self.kv_heads * self.head_width

    @property
    def parameters(self) -> int:
        """Parameters in the flat vector that peers exchange: embeddings, the last norm, and the layers."""
        biases = self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        norms = 2 * self.dim + (2 * self.head_width if self.qk_norm else 0)
        layer = norms + biases + (2 * self.query_width + 2 * self.kv_width + 3 * self.ffn) * self.dim
        return self.vocab * self.dim * (1 if self.tied else 2) + self.dim + self.layers * layer

    @property
    def product_parameters(self) -> int:
        """Parameters of all but the embedding, and of the output weights."""
        return self.parameters - (0 if self.tied else self.vocab * self.dim)

    def flops_per_token(self, length: int) -> float:
        """Return the floating point operations of training on a token of rows of `length` tokens.

        Forward and backward pass: six for each parameter of a product, the output weights included and the embedding not
        (Kaplan et al. 2020), and those of causal attention, in which a token sees half of its row on average.
        """
        return 6.0 * self.product_parameters + 6.0 * self.layers * self.query_width * length


@dataclass(frozen=True)
class ParameterPlace:
    """Place of one tensor in the flat vector.  offset and count are in parameters, not bytes."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
        """Number of parameters of the tensor."""
        return math.prod(self.shape)


def parameter_layout(config: ModelConfig) -> list[ParameterPlace]:
    """Return the tensors in order, named as in Hugging Face checkpoints; the tensors fill the vector without gaps."""
    shapes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (config.vocab, config.dim))]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes += [(prefix + name, shape) for name, shape in _layer_shapes(config)]
    shapes.append(("model.norm.weight", (config.dim,)))
    if not config.tied:
        shapes.append(("lm_head.weight", (config.vocab, config.dim)))
    layout, offset = [], 0
    for name, shape in shapes:
        layout.append(ParameterPlace(name, shape, offset))
        offset += layout[-1].count
    return layout


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor of one layer; the names leave out the layer."""
    dim, ffn = config.dim, config.ffn
    yield "input_layernorm.weight", (dim,)
    for name, width in (("q", config.query_width), ("k", config.kv_width), ("v", config.kv_width)):
        yield f"self_attn.{name}_proj.weight", (width, dim)
        if config.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (width,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_width,)
        yield "self_attn.k_norm.weight", (config.head_width,)
    yield "self_attn.o_proj.weight", (dim, config.query_width)
    yield "post_attention_layernorm.weight", (dim,)
    yield "mlp.gate_proj.weight", (ffn, dim)
    yield "mlp.up_proj.weight", (ffn, dim)
    yield "mlp.down_proj.weight", (dim, ffn)
