"""Translation between the config.json of Hugging Face folders and our description of a decoder of the Llama family.

Names and defaults match transformers' `LlamaConfig`, `Qwen2Config` and `Qwen3Config` (5.x); files written by 4.x can also be
read. Tensors need no translation: `protocol.formats.model` uses the names of these models. A file with a switch that a
run's model does not have is refused, with the name of the switch. The run decides the fields that only matter in training
(dropout, initial ranges).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from protocol.formats.model import ModelConfig

Ends = Sequence[int] | int | None
"""End tokens of a text: one, several, or none."""


MOST_ENDS = 64
"""Largest number of end tokens that are read from a file; models have up to five."""


class UnknownModel(ValueError):
    """Error for a config.json that no run's model can match; the text completes a sentence and names the field."""


@dataclass(frozen=True)
class _Family:
    """Family of models. name: the family's model_type.

    head_dim, kv_heads: defaults for files without these fields. None means dim / heads, and as many as heads.
    """

    name: str
    architecture: str
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    kv_heads: int | None = None


FAMILIES = {
    family.name: family
    for family in (
        _Family("llama", "LlamaForCausalLM"),
        _Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True, kv_heads=32),
        _Family("qwen3", "Qwen3ForCausalLM", qk_norm=True, head_dim=128, kv_heads=32),
    )
}
_MUST_BE: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "compression_config": None,
    # Switches of other families; the code of such a family may have written the file:
    "use_qk_norm": False,
    "qk_layernorm": False,
    "use_mrope": False,
    "rotary_pct": 1.0,
    "rope_interleaved": False,
    "no_rope_layers": None,
    "no_rope_layer_interval": 0,
    "attention_chunk_size": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "clip_qkv": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "scale_emb": 1.0,
    "scale_depth": 1.0,
    "alibi": False,
    "parallel_residual": False,
    "use_parallel_residual": False,
    "num_experts": 0,
    "num_local_experts": 0,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
}
"""Switches for which a run's model supports only this value; null or a missing field means the same value."""
ORIGINAL = "original_max_position_embeddings"
_OWN_CODE = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
"""Names in `auto_map` for custom code, which may compute the model differently from its family."""

# -- writing -------------------------------------------------------------------------------------------------------------


def config_json(config: ModelConfig, torch_dtype: str, *, context: int, eos: Ends) -> dict[str, Any]:
    """Return the config.json of a model. context: used if `config` has none. eos: end tokens of a text.

    Positions are described twice, once for transformers 5 and once for all other readers.
    """
    family = next(each for each in FAMILIES.values() if (each.qkv_bias, each.qk_norm) == (config.qkv_bias, config.qk_norm))
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
        "bos_token_id": None,  # written because Llama's defaults are 1 and 2
        "eos_token_id": _as_said(eos),
        "pad_token_id": None,
        "torch_dtype": torch_dtype,
    }
    if family.qkv_bias and not config.head_dim:
        del described["head_dim"]  # Qwen2's own files do not have the field
    if not family.qkv_bias:
        described["attention_bias"] = False
    if family.name == "llama":
        described["mlp_bias"] = False
    else:
        described |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": config.layers}
    return described


def generation_json(eos: Ends, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the generation_config.json.

    eos: end tokens of a text.  known: the other fields, taken from the model's own file.
    """
    known = known or {"bos_token_id": None, "pad_token_id": None, "do_sample": True}
    return {**known, "eos_token_id": _as_said(eos)}


def ends_in(described: Mapping[str, Any]) -> list[int]:
    """Return the end tokens, at most `MOST_ENDS`, that a config.json or a generation_config.json names."""
    ends = described.get("eos_token_id")
    found = (end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int and end >= 0)
    return [*islice(found, MOST_ENDS)]


def _as_said(eos: Ends) -> int | list[int] | None:
    """Return end tokens in the form of these files: null, one number, or a list of several."""
    if eos is None or isinstance(eos, int):
        return eos
    return list(eos) if len(eos) > 1 else next(iter(eos), None)


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


# -- reading --------------------------------------------------------------------------------------------------------------


def facts_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest's model section for the model of a config.json. Raises `UnknownModel`.

    The manifest checks the ranges of the numbers and the relations between them.
    """
    family = _family_named(described)
    for name, only in _MUST_BE.items():
        if (value := described.get(name, only)) is not None and value != only:
            raise UnknownModel(f"{name} is {value!r:.40}, and a run's model has only {only!r}; use another model")
    own_code = described.get("auto_map")
    if isinstance(own_code, dict) and any(name in own_code for name in _OWN_CODE):
        raise UnknownModel("auto_map names the model's own code, which a run does not execute; use another model")
    if family.name == "llama" and described.get("sliding_window") is not None:
        raise UnknownModel(
            f"sliding_window is {described['sliding_window']!r:.40}, and a run's Llama attends to all positions; "
            "use another model, or remove the field if the model was trained without it"
        )
    layers = described.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise UnknownModel(
            "layer_types has layers without full attention, but a run's model has only full attention; use another model"
        )
    dim, heads = _count(described, "hidden_size"), _count(described, "num_attention_heads")
    kv_heads = described.get("num_key_value_heads", family.kv_heads)
    given = described.get("head_dim")
    head_dim = (family.head_dim or 0) if given is None else _count(described, "head_dim")
    facts = {
        "vocab": _count(described, "vocab_size"),
        "dim": dim,
        "layers": _count(described, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": heads if kv_heads is None else _count({"num_key_value_heads": kv_heads}, "num_key_value_heads"),
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
    """Return the fields of rotary positions. 4.x writes rope_theta and rope_scaling; 5.x writes rope_parameters with both.

    A file may give a number in several places. Programs read different places, so all places must agree.
    """
    places = _rope_places(described)
    kind = _said_once(places, "rope_type", "type") or "default"
    if _said_once(places, "partial_rotary_factor") not in (None, 1.0):
        raise UnknownModel("partial_rotary_factor is not 1, but a run's model rotates whole heads; use another model")
    facts = {"rope_base": _number({"rope_theta": _said_once(places, "rope_theta", default=10_000.0)}, "rope_theta")}
    if kind == "default":
        return facts
    if kind != "llama3":
        raise UnknownModel(
            f"rope_type is {kind!r:.40}, and a run's model has only 'default' and 'llama3'; use another model"
        )
    names = ("factor", "low_freq_factor", "high_freq_factor")
    factor, low, high = (_number({name: _said_once(places, name)}, name) for name in names)
    original = _said_once(places, ORIGINAL)
    return facts | {
        "rope_factor": factor,
        "rope_low_freq_factor": low,
        "rope_high_freq_factor": high,
        "rope_original_context": _count(described, "max_position_embeddings")
        if original is None
        else _count({ORIGINAL: original}, ORIGINAL),
    }


def _rope_places(described: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the parts of a config.json that may describe rotary positions, each with the prefix of its name."""
    top = {name: described[name] for name in ("rope_theta", ORIGINAL) if name in described}
    places: list[tuple[str, Mapping[str, Any]]] = [("", top)]
    for name in ("rope_scaling", "rope_parameters"):
        section = described.get(name) or {}
        if not isinstance(section, dict):
            raise UnknownModel(f"{name} is {section!r:.40}, but must be a section or null; copy the file again")
        places.append((name + ".", section))
    return places


def _said_once(places: Sequence[tuple[str, Mapping[str, Any]]], *names: str, default: Any = None) -> Any:
    """Return the value of a field that several places may give, or `default`.

    Raises `UnknownModel` if two values differ.
    """
    found = [(place + name, said[name]) for place, said in places for name in names if said.get(name) is not None]
    for where, value in found[1:]:
        if value != found[0][1]:
            raise UnknownModel(
                f"{found[0][0]} is {found[0][1]!r:.40} and {where} is {value!r:.40}; find out which of them the model was "
                "trained with, and remove the other"
            )
    return found[0][1] if found else default


def _count(described: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = described.get(name, default)
    if type(value) is not int or value < 0:
        raise UnknownModel(f"{name} is {value!r:.40}, but must be a whole number; copy the file again")
    return value


def _number(described: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = described.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnknownModel(f"{name} is {value!r:.40}, but must be a number; copy the file again")
    try:
        return float(value)
    except OverflowError as error:
        raise UnknownModel(f"{name} is too large a number for a model; copy the file again") from error


def _switch(described: Mapping[str, Any], name: str) -> bool:
    value = described.get(name, False)
    if type(value) is not bool:
        raise UnknownModel(f"{name} is {value!r:.40}, but must be true or false; copy the file again")
    return value
