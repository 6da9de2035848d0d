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

from protocol.formats.model import ModelConfig
from tests.trainer.weights.models import CONFIGS, in_blocks, our_logits, random_parameters, tokens_for
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
