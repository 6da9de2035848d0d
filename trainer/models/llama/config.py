"""Shape of a decoder of the Llama family (Llama 3, Qwen2, Qwen3), and the place of each tensor in the flat vector.

This module decides the order, names and offsets of the parameters in the flat fp32 vector that peers exchange, hash and
keep, so it is part of the protocol. It imports only the standard library, so that the peer process can count parameters
without loading torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.section import SectionFields


@dataclass(frozen=True)
class ModelConfig(SectionFields):
    """Shape of a Llama-style decoder: the manifest's model section. Fields with defaults were added after the first runs.

    ffn: width of the SwiGLU layer. tied: True if the embedding's weights are also the output weights. head_dim: width of an
    attention head, 0 for dim / heads. qkv_bias: query, key and value have biases (Qwen2). qk_norm: queries and keys are
    normed, separately for each head (Qwen3). rope_factor and the following fields: Llama 3's stretching of rotary positions;
    a factor of 1 does not stretch. context: number of tokens that an exported model claims to read, 0 for the length of the
    run's windows.
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    rope_base: float
    norm_eps: float
    tied: bool
    head_dim: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_context: int = 8192
    context: int = 0

    def __post_init__(self) -> None:
        if min(self.vocab, self.dim, self.layers, self.heads, self.kv_heads, self.ffn) < 1:
            raise ValueError("model sizes must be at least 1")
        if self.dim % self.heads or self.heads % self.kv_heads or self.head_width % 2:
            raise ValueError("dim and heads must be multiples of heads and kv_heads, and the width of a head even")

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

    def flops_per_token(self, length: int) -> float:
        """Return the floating point operations of training on a token of rows of `length` tokens.

        Forward and backward pass: six for each parameter of a product, the output weights included and the embedding not
        (Kaplan et al. 2020), and those of causal attention, in which a token sees half of its row on average.
        """
        products = self.parameters - (0 if self.tied else self.vocab * self.dim)
        return 6.0 * products + 6.0 * self.layers * self.query_width * length

    @property
    def parameters(self) -> int:
        """Number of parameters in the flat vector."""
        last = parameter_layout(self)[-1]
        return last.offset + last.count


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
