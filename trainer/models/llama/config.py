"""The shape of a decoder of the Llama family, and where each of its tensors lies in the flat vector.

Decides the order, names and offsets of the parameters: the flat fp32 vector that peers exchange, hash and keep is this
layout, so it is part of the protocol.  Imports nothing outside the standard library, so that the peer process can count
parameters without loading torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.section import Section


@dataclass(frozen=True)
class ModelConfig(Section):
    """A Llama-style decoder.  ffn: width of the SwiGLU layer.  tied: output weights are the embedding's."""

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    rope_base: float
    norm_eps: float
    tied: bool

    def __post_init__(self) -> None:
        if min(self.vocab, self.dim, self.layers, self.heads, self.kv_heads, self.ffn) < 1:
            raise ValueError("model sizes must be at least 1")
        if self.dim % self.heads or self.heads % self.kv_heads or (self.dim // self.heads) % 2:
            raise ValueError("dim must be heads times an even number, and heads a multiple of kv_heads")

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.heads

    @property
    def parameters(self) -> int:
        """Parameters in the flat vector."""
        last = parameter_layout(self)[-1]
        return last.offset + last.count


@dataclass(frozen=True)
class ParameterPlace:
    """One tensor in the flat vector.  offset and count are in parameters, not bytes."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
        """Parameters of the tensor."""
        return math.prod(self.shape)


def parameter_layout(config: ModelConfig) -> list[ParameterPlace]:
    """The tensors in their order, named as in Hugging Face checkpoints of Llama; they fill the vector without gaps."""
    kv_dim = config.kv_heads * config.head_dim
    shapes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (config.vocab, config.dim))]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes += [
            (prefix + "input_layernorm.weight", (config.dim,)),
            (prefix + "self_attn.q_proj.weight", (config.dim, config.dim)),
            (prefix + "self_attn.k_proj.weight", (kv_dim, config.dim)),
            (prefix + "self_attn.v_proj.weight", (kv_dim, config.dim)),
            (prefix + "self_attn.o_proj.weight", (config.dim, config.dim)),
            (prefix + "post_attention_layernorm.weight", (config.dim,)),
            (prefix + "mlp.gate_proj.weight", (config.ffn, config.dim)),
            (prefix + "mlp.up_proj.weight", (config.ffn, config.dim)),
            (prefix + "mlp.down_proj.weight", (config.dim, config.ffn)),
        ]
    shapes.append(("model.norm.weight", (config.dim,)))
    if not config.tied:
        shapes.append(("lm_head.weight", (config.vocab, config.dim)))
    layout, offset = [], 0
    for name, shape in shapes:
        layout.append(ParameterPlace(name, shape, offset))
        offset += layout[-1].count
    return layout
