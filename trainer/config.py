"""What to train, as the run's manifest says it, and where each parameter lies in the flat vector.

Decides the order, names and offsets of the parameters: the flat fp32 vector that peers exchange, hash and keep is this
layout, so it is part of the protocol.  Imports nothing outside the standard library, so that the peer process can count
parameters without loading torch.  What the numbers are used for is `trainer.models`'s and `trainer.optim`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

C = TypeVar("C", bound="Section")


@dataclass(frozen=True)
class Section:
    """A section of the manifest.  Keys that this version does not know are refused: they would change the run."""

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        unknown, missing = sorted(set(section) - known), sorted(known - set(section))
        if unknown or missing:
            raise ValueError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
        return cls(**section)


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
        return self.dim // self.heads

    @property
    def parameters(self) -> int:
        last = parameter_layout(self)[-1]
        return last.offset + last.count


@dataclass(frozen=True)
class DataConfig(Section):
    """What is read.  sequence_length: tokens predicted in a window.  held_out_percent: of files, by hash of their path."""

    corpus: str
    sequence_length: int
    sequences_per_step: int
    held_out_percent: int


@dataclass(frozen=True)
class InnerConfig(Section):
    """AdamW and its schedule, in the swarm's steps (round * H + local step)."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float
    z_loss: float
    schedule: str
    warmup_steps: int
    stable_steps: int
    total_steps: int
    joiner_warmup_steps: int


@dataclass(frozen=True)
class TrainingConfig:
    """All that a trainer needs to know of a run."""

    seed: int
    model: ModelConfig
    data: DataConfig
    inner: InnerConfig
    inner_steps: int
    lanes: int
    chunk_parameters: int

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> TrainingConfig:
        """From `{seed, model, data, inner, inner_steps, max_members, chunk_parameters}` of a manifest."""
        return cls(
            seed=int(sections["seed"]),
            model=ModelConfig.from_mapping(sections["model"]),
            data=DataConfig.from_mapping(sections["data"]),
            inner=InnerConfig.from_mapping(sections["inner"]),
            inner_steps=int(sections["inner_steps"]),
            lanes=2 * int(sections["max_members"]),
            chunk_parameters=int(sections["chunk_parameters"]),
        )

    @property
    def windows_per_round(self) -> int:
        """Windows one lane may read in one round."""
        return self.inner_steps * self.data.sequences_per_step

    @property
    def tokens_per_step(self) -> int:
        return self.data.sequences_per_step * self.data.sequence_length


@dataclass(frozen=True)
class ParameterPlace:
    """One tensor in the flat vector.  offset and count are in parameters, not bytes."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
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


def parameter_count(model: Mapping[str, Any]) -> int:
    """Parameters of the model that a manifest's model section describes; raises ValueError when it describes none."""
    return ModelConfig.from_mapping(model).parameters
