"""transformers loads what we write, we load what it writes, and both compute the same logits.

Needs the extra `oracle`: the only tests that are skipped, where transformers is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import CONFIGS, in_blocks, our_logits, random_parameters, tokens_for
from trainer.models.llama.model import Decoder, hidden_states
from trainer.weights.folder import SHARD_BYTES, WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")

TOLERANCE = 1e-4


def write(folder: Path, config: ModelConfig, values: Any, form: ExportFormat = ExportFormat.FP32, **options: Any) -> Path:
    with patch("trainer.weights.folder.SHARD_BYTES", options.pop("shard_bytes", SHARD_BYTES)):
        write_folder(folder, config, in_blocks(values), form, context=256, eos=None, **options)
    return folder


def their_model(folder: Path) -> Any:
    """As users load it, in the numbers of the folder; nothing may be missing, unexpected or of another shape."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True, local_files_only=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def their_logits(model: Any, config: ModelConfig) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens_for(config)).logits
    return logits


def assert_same_logits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.std() > 0.1, "logits that say something"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama3", {"rope_factor": 7.0}),
        ("llama3", {"rope_low_freq_factor": 0.9}),
        ("llama3", {"rope_high_freq_factor": 4.5}),
        ("llama3", {"rope_original_context": 60}),
        ("llama3", {"rope_base": 21_000.0}),
        ("qwen2", {"norm_eps": 1e-3}),
    ],
)
def test_the_tolerance_shows_a_model_that_is_a_little_different(name: str, change: dict[str, Any]) -> None:
    values = random_parameters(CONFIGS[name])
    ours, others = (our_logits(config, values) for config in (CONFIGS[name], CONFIGS[name].changed(**change)))
    assert (ours - others).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shard_bytes", [10**9, 50_000])
def test_an_exported_folder_gives_the_same_logits_in_transformers(name: str, shard_bytes: int, tmp_path: Path) -> None:
    config = CONFIGS[name]
    values = random_parameters(config)
    model = their_model(write(tmp_path, config, values, shard_bytes=shard_bytes))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_bytes < 10**9)
    assert_same_logits(our_logits(config, values), their_logits(model, config))
    assert model.config.tie_word_embeddings == config.tied
    assert model.generation_config.eos_token_id is None


@pytest.mark.parametrize("name", CONFIGS)
def test_bf16_logits_are_as_near_to_fp32_as_those_of_transformers(name: str, tmp_path: Path) -> None:
    config, tokens = CONFIGS[name], tokens_for(CONFIGS[name])
    theirs = their_model(write(tmp_path, config, random_parameters(config)))
    exact = their_logits(theirs, config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = their_logits(theirs, config).float()
    ours = Decoder(config, torch.device("cpu"))
    ours.flat.copy_(torch.from_numpy(random_parameters(config)))
    ours.compute_dtype = torch.bfloat16
    with torch.no_grad():
        hidden = hidden_states(ours, tokens)
        found = (hidden @ ours.output_weight.to(hidden.dtype).T).float()
    assert 0 < (found - exact).square().mean() <= 1.05 * (rounded - exact).square().mean()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_transformers_begins_a_run_with_the_same_logits(name: str, tmp_path: Path) -> None:
    config, first, second = CONFIGS[name], tmp_path / "first", tmp_path / "second"
    first.mkdir()
    values = random_parameters(config, seed=2)
    model = their_model(write(first, config, values))
    model.save_pretrained(second, max_shard_size="100KB")
    found = WeightsFolder(second)
    back = np.concatenate(list(found.values()))
    assert np.array_equal(back, values), "the same numbers, in the same places"
    assert_same_logits(our_logits(found.config, back), their_logits(model, config))


def test_models_that_transformers_makes_itself_begin_runs(tmp_path: Path) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    made = [
        transformers.LlamaConfig(**sizes),
        transformers.LlamaConfig(
            **sizes,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rope_parameters=llama3 | {"original_max_position_embeddings": 64},
        ),
        transformers.Qwen2Config(**sizes, num_key_value_heads=2, tie_word_embeddings=True),
        transformers.Qwen3Config(**sizes, num_key_value_heads=2),
    ]
    for number, config in enumerate(made):
        folder = tmp_path / str(number)
        torch.manual_seed(number)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases that do something
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder)
        found = WeightsFolder(folder)
        assert found.facts["context"] == config.max_position_embeddings
        ours = our_logits(found.config, np.concatenate(list(found.values())))
        assert_same_logits(ours, their_logits(model, found.config))


def test_bf16_is_torchs_rounding(tmp_path: Path) -> None:
    config = CONFIGS["qwen2"]
    values = random_parameters(config)
    model = their_model(write(tmp_path, config, values, ExportFormat.BF16))
    assert model.dtype is torch.bfloat16
    state = model.state_dict()
    rounded = torch.from_numpy(values).bfloat16()
    for place in parameter_layout(config):
        part = rounded[place.offset : place.offset + place.count].view(place.shape)
        assert torch.equal(state[place.name], part), place.name
