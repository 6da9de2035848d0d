"""Low-rank factors on the projections of a frozen model (LoRA, Hu et al. 2021), and their places in the flat vector.

In an adapter run the vector that peers exchange, hash and keep has the factors alone.  This module decides their order,
names and offsets, so it is part of the protocol: layer by layer and projection by projection, `lora_A` (rank, in) and then
`lora_B` (out, rank).  A projection W of the frozen model becomes W x + alpha / rank * B (A x).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from protocol.formats.model import ModelConfig, ParameterPlace
from protocol.formats.section import Section

WeightFormatName = Literal["bf16", "int8", "int4"]
"""Format in which every peer of a run holds the matrices of the frozen model; one for a run, because proofs depend on it."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PROJECTIONS = {"all": ATTENTION + MLP, "attention": ATTENTION, "mlp": MLP}
"""The projections of each layer that have factors, by `AdapterConfig.targets`, in their order in the layer."""
BASE_PREFIX = "base/"
"""Prefix of the names of the frozen model's files among the files of a run; the names in its folder follow."""
BITS_A_VALUE = 2.0
"""Bits of text that a trained value can hold, at most about (Allen-Zhu and Li 2024)."""


class AdapterConfig(Section):
    """Trained factors of a frozen model."""

    rank: Annotated[int, Field(ge=1, le=256)] = 32
    """Rank of the factors: the number of values that each of a projection's inputs and outputs has."""
    alpha: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] = 32.0
    """Numerator of the factors' scale, alpha / rank."""
    targets: Literal["all", "attention", "mlp"] = "all"
    """Projections of each layer that have factors: "all", "attention" (four) or "mlp" (three)."""

    @property
    def scale(self) -> float:
        """Number by which the product of the factors is multiplied."""
        return self.alpha / self.rank


def projections(model: ModelConfig, targets: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name in its layer, the inputs and the outputs of each projection that has factors."""
    query, kv = (model.dim, model.query_width), (model.dim, model.kv_width)
    shapes = {"q_proj": query, "k_proj": kv, "v_proj": kv, "o_proj": query[::-1]}
    shapes |= {"gate_proj": (model.dim, model.ffn), "up_proj": (model.dim, model.ffn), "down_proj": (model.ffn, model.dim)}
    for name in PROJECTIONS[targets]:
        yield f"{'self_attn' if name in ATTENTION else 'mlp'}.{name}", *shapes[name]


def adapter_layout(model: ModelConfig, adapter: AdapterConfig) -> list[ParameterPlace]:
    """Return the factors in order, named as in a folder of PEFT without its prefix; they fill the vector without gaps."""
    layout, offset = list[ParameterPlace](), 0
    for layer in range(model.layers):
        for name, inputs, outputs in projections(model, adapter.targets):
            for factor, shape in (("lora_A", (adapter.rank, inputs)), ("lora_B", (outputs, adapter.rank))):
                layout.append(ParameterPlace(f"model.layers.{layer}.{name}.{factor}.weight", shape, offset))
                offset += layout[-1].count
    return layout


def adapter_parameters(model: ModelConfig, adapter: AdapterConfig) -> int:
    """Return the number of values of the factors."""
    layer = sum(inputs + outputs for _, inputs, outputs in projections(model, adapter.targets))
    return model.layers * adapter.rank * layer
