"""What config.json says, and what it may not say."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.formats.model import ModelConfig
from tests.trainer.weights.models import CONFIGS
from trainer.models.llama.huggingface import UnknownModel, config_json, facts_of, generation_json

LLAMA_31 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
    "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


@pytest.mark.parametrize(
    ("described", "billions"), [(LLAMA_31, 8.03), (QWEN25, 0.494), (QWEN3, 0.596)], ids=["llama", "qwen2", "qwen3"]
)
def test_published_models_have_as_many_parameters_as_is_published(described: dict[str, Any], billions: float) -> None:
    section = ModelConfig.from_mapping(facts_of(described))
    assert section.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert section.context == described["max_position_embeddings"]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_as_the_same_model(name: str) -> None:
    config = CONFIGS[name]
    described = config_json(config, "float32", context=77, eos=None)
    assert ModelConfig.from_mapping(facts_of(described)) == ModelConfig(**(vars(config) | {"context": config.context or 77}))


def test_rotary_positions_are_read_in_the_old_form_and_in_the_new_one() -> None:
    old = {key: value for key, value in LLAMA_31.items() if key not in ("rope_theta", "rope_scaling")}
    new = old | {"rope_parameters": {"rope_theta": 500000.0, **LLAMA_31["rope_scaling"]}}  # type: ignore[dict-item]
    assert facts_of(new) == facts_of(LLAMA_31)
    del new["rope_parameters"]["original_max_position_embeddings"]  # type: ignore[attr-defined]
    assert facts_of(new)["rope_original_context"] == 131072
    assert facts_of(QWEN3)["rope_base"] == 1e6 and "rope_factor" not in facts_of(QWEN3)


@pytest.mark.parametrize(
    ("base", "change", "part"),
    [
        (LLAMA_31, {"model_type": "mixtral"}, "model_type is 'mixtral'"),
        (LLAMA_31, {"architectures": ["LlamaForSequenceClassification"]}, "architectures is"),
        (LLAMA_31, {"attention_bias": True}, "attention_bias is True"),
        (LLAMA_31, {"quantization_config": {"bits": 4}}, "quantization_config is"),
        (QWEN25, {"use_sliding_window": True}, "use_sliding_window is True"),
        (QWEN25, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        (LLAMA_31, {"rope_scaling": {"rope_type": "llama3"}}, "factor is None"),
        (LLAMA_31, {"hidden_size": None}, "hidden_size is None"),
        (LLAMA_31, {"num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        (LLAMA_31, {"vocab_size": -1}, "vocab_size is -1"),
        (QWEN3, {"head_dim": {}}, "head_dim is {}"),
        (LLAMA_31, {"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        (LLAMA_31, {"sliding_window": 4096}, "sliding_window is 4096"),
        (LLAMA_31, {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "auto_map names the model's own code"),
        (LLAMA_31, {"logit_scale": 0.25}, "logit_scale is 0.25"),
    ],
)
def test_what_a_run_cannot_be_is_refused_by_name(base: dict[str, Any], change: dict[str, Any], part: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        facts_of(base | change)
    assert part in str(caught.value) and "; " in str(caught.value)


STRETCHED: dict[str, Any] = dict(LLAMA_31["rope_scaling"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("base", "change", "one", "other"),
    [
        (LLAMA_31, {"original_max_position_embeddings": 64}, "original_max_position_embeddings is 64", "is 8192"),
        (LLAMA_31, {"rope_parameters": STRETCHED | {"original_max_position_embeddings": 64}}, "rope_scaling.orig", "is 64"),
        (LLAMA_31, {"rope_parameters": STRETCHED | {"factor": 4.0}}, "scaling.factor is 8.0", "parameters.factor is 4.0"),
        (LLAMA_31, {"rope_parameters": {"rope_type": "default"}}, "rope_scaling.rope_type is 'llama3'", "is 'default'"),
        (LLAMA_31, {"rope_scaling": STRETCHED | {"rope_theta": 10_000.0}}, "rope_theta is 500000.0", "is 10000.0"),
        (QWEN3, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}, "rope_theta is 1000000", "is 5000000.0"),
        (QWEN25, {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "yarn"}}, "'default'", "'yarn'"),
    ],
)  # fmt: skip
def test_a_rope_number_with_two_values_is_refused_with_both(
    base: dict[str, Any], change: dict[str, Any], one: str, other: str
) -> None:
    with pytest.raises(UnknownModel) as caught:
        facts_of(base | change)
    assert one in str(caught.value) and other in str(caught.value) and "; " in str(caught.value)


def test_end_tokens_are_written_as_one_number_or_a_list() -> None:
    config = CONFIGS["demo"]
    for eos, said in ((None, None), ((), None), (7, 7), ((7,), 7), ((7, 9), [7, 9])):
        assert config_json(config, "float32", context=8, eos=eos)["eos_token_id"] == said
        assert generation_json(eos)["eos_token_id"] == said
        known = {"temperature": 0.6, "eos_token_id": 3}
        assert generation_json(eos, known) == {"temperature": 0.6, "eos_token_id": said}
