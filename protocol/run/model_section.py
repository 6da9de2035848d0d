"""The manifest's model section: the shape of the decoder that a run trains."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.run.fitting import ModelShape, model_problems, refuse, rope_problems
from protocol.run.section import Section


class ModelSection(Section):
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
    """Key and value heads; heads must be a multiple."""
    ffn: Annotated[int, Field(ge=8, le=1 << 18)] = 384
    """Width of the SwiGLU layer."""
    rope_base: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 10_000.0
    """Base of the rotary position frequencies."""
    norm_eps: Annotated[float, Field(gt=0, le=0.1, allow_inf_nan=False)] = 1e-5
    """Epsilon of RMSNorm."""
    tied: bool = True
    """Whether the output weights are the embedding's."""
    head_dim: Annotated[int, Field(ge=0, le=1024, multiple_of=2)] = 0
    """Width of an attention head, an even number; 0: dim / heads."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases (Qwen2)."""
    qk_norm: bool = False
    """Whether queries and keys are normed, each head by itself (Qwen3)."""
    rope_factor: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 1.0
    """How far rotary positions are stretched, as Llama 3.1 does it ("llama3"); 1: not at all."""
    rope_low_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 1.0
    """Frequencies with fewer turns in rope_original_context are divided by rope_factor."""
    rope_high_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 4.0
    """Frequencies with more turns in rope_original_context are kept."""
    rope_original_context: Annotated[int, Field(ge=1, le=1 << 24)] = 8192
    """Tokens that the model read before its positions were stretched."""
    context: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Tokens that an exported model says it can read; 0: data.sequence_length."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse(model_problems(self._shape))
        refuse(rope_problems(self.rope_low_freq_factor, self.rope_high_freq_factor))
        return self

    @property
    def _shape(self) -> ModelShape:
        return ModelShape(
            self.vocab,
            self.dim,
            self.layers,
            self.heads,
            self.kv_heads,
            self.ffn,
            self.tied,
            self.head_dim,
            self.qkv_bias,
            self.qk_norm,
        )

    @property
    def parameters(self) -> int:
        """Parameters in the flat vector that peers exchange."""
        return self._shape.parameters
