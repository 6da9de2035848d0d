"""The config.json of Hugging Face folders: what a decoder of the Llama family is called there, and back.

Names and defaults are those of transformers' `LlamaConfig`, `Qwen2Config` and `Qwen3Config` (5.x), and what 4.x wrote is
read too.  Tensors need no translation: `trainer.models.llama.config` has them under the names of these models.  A switch
that a run's model does not have is refused by name; what only training reads (dropout, initial ranges) is the run's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.models.llama.config import ModelConfig


class UnknownModel(ValueError):
    """A config.json that no run's model answers to; the text is the rest of a sentence, and names the field."""


@dataclass(frozen=True)
class _Family:
    """model_type, and the architecture's name.  head_dim: what a file means that does not say; None for an equal share."""

    name: str
    architecture: str
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None


FAMILIES = {
    family.name: family
    for family in (
        _Family("llama", "LlamaForCausalLM"),
        _Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True),
        _Family("qwen3", "Qwen3ForCausalLM", qk_norm=True, head_dim=128),
    )
}
_MUST_BE: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Switches that a run's model has in one position, which is also what a file means that does not say."""

# -- out --------------------------------------------------------------------------------------------------------------


def config_json(config: ModelConfig, torch_dtype: str, *, context: int, eos: int | None) -> dict[str, Any]:
    """The config.json of a model.  context: where `config` has none.  eos: the token that ends a text.

    Positions are described twice, as transformers 5 reads them and as all others do.
    """
    family = _family_of(config)
    scaling = _scaling(config)
    described = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": config.context or context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_base, **(scaling or {"rope_type": "default"})},
        "tie_word_embeddings": config.tied,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,  # said, for Llama's defaults are 1 and 2
        "eos_token_id": eos,
        "pad_token_id": None,
        "torch_dtype": torch_dtype,
    }
    if family.qkv_bias and not config.head_dim:
        del described["head_dim"]  # Qwen2's own files have none
    if not family.qkv_bias:
        described["attention_bias"] = False
    if family.name == "llama":
        described["mlp_bias"] = False
    else:
        described |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": config.layers}
    return described


def generation_json(eos: int | None) -> dict[str, Any]:
    """The generation_config.json.  eos: the token that ends a text."""
    return {"bos_token_id": None, "eos_token_id": eos, "pad_token_id": None, "do_sample": True}


def _family_of(config: ModelConfig) -> _Family:
    return next(f for f in FAMILIES.values() if (f.qkv_bias, f.qk_norm) == (config.qkv_bias, config.qk_norm))


def _scaling(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_factor == 1.0:
        return None
    return {
        "rope_type": "llama3",
        "factor": config.rope_factor,
        "low_freq_factor": config.rope_low_freq_factor,
        "high_freq_factor": config.rope_high_freq_factor,
        "original_max_position_embeddings": config.rope_original_context,
    }


# -- in ---------------------------------------------------------------------------------------------------------------


def facts_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a manifest for what a config.json describes; raises `UnknownModel`.

    Ranges, and how the numbers hang together, are the manifest's to check.
    """
    family = _family_named(described)
    for name, only in _MUST_BE.items():
        if (value := described.get(name, only)) != only:
            raise UnknownModel(f"{name} is {value!r:.40}, and a run's model has only {only!r}; take another model")
    layers = described.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise UnknownModel("layer_types has layers without full attention, which a run's model has not; take another model")
    dim, heads = _count(described, "hidden_size"), _count(described, "num_attention_heads")
    kv_heads = described.get("num_key_value_heads")
    given = described.get("head_dim")
    head_dim = (family.head_dim or 0) if given is None else _count(described, "head_dim")
    facts = {
        "vocab": _count(described, "vocab_size"),
        "dim": dim,
        "layers": _count(described, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": heads if kv_heads is None else _count(described, "num_key_value_heads"),
        "ffn": _count(described, "intermediate_size"),
        "norm_eps": _number(described, "rms_norm_eps", 1e-6),
        "tied": _switch(described, "tie_word_embeddings"),
        "head_dim": 0 if head_dim * heads == dim else head_dim,
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "context": _count(described, "max_position_embeddings", 0),
    }
    return facts | _rope_facts(described)


def _family_named(described: Mapping[str, Any]) -> _Family:
    family = FAMILIES.get(str(described.get("model_type")))
    if family is None:
        raise UnknownModel(
            f"model_type is {described.get('model_type')!r:.40}, and a run trains {', '.join(FAMILIES)}; take one of these"
        )
    if described.get("architectures") not in (None, [family.architecture]):
        raise UnknownModel(
            f"architectures is {described['architectures']!r:.60}, and a run trains {family.architecture}; take that one"
        )
    return family


def _rope_facts(described: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions: 4.x says rope_theta and rope_scaling, 5.x rope_parameters, which has both."""
    scaling = described.get("rope_scaling") or described.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise UnknownModel(f"rope_scaling is {scaling!r:.40}, and must be a section or null; copy the file again")
    facts = {"rope_base": _number(scaling, "rope_theta", _number(described, "rope_theta", 10_000.0))}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnknownModel("partial_rotary_factor is not 1, and a run's model turns whole heads; take another model")
    if kind == "default":
        return facts
    if kind != "llama3":
        raise UnknownModel(
            f"rope_type is {kind!r:.40}, and a run's model has only 'default' and 'llama3'; take another model"
        )
    original = described.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
    return facts | {
        "rope_factor": _number(scaling, "factor"),
        "rope_low_freq_factor": _number(scaling, "low_freq_factor"),
        "rope_high_freq_factor": _number(scaling, "high_freq_factor"),
        "rope_original_context": _count(described, "max_position_embeddings")
        if original is None
        else _count({"original_max_position_embeddings": original}, "original_max_position_embeddings"),
    }


def _count(described: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = described.get(name, default)
    if type(value) is not int or value < 0:
        raise UnknownModel(f"{name} is {value!r:.40}, and must be a whole number; copy the file again")
    return value


def _number(described: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = described.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnknownModel(f"{name} is {value!r:.40}, and must be a number; copy the file again")
    return float(value)


def _switch(described: Mapping[str, Any], name: str) -> bool:
    value = described.get(name, False)
    if type(value) is not bool:
        raise UnknownModel(f"{name} is {value!r:.40}, and must be true or false; copy the file again")
    return value
