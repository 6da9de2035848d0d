"""Folders come back as they were, other programs read them, and bad ones are refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from tests.trainer.weights.models import CONFIGS, F32, QWEN2, in_blocks, random_parameters
from trainer.models.llama.config import ModelConfig, parameter_layout
from trainer.weights.errors import FolderError
from trainer.weights.numbers import ExportFormat
from trainer.weights.reading import WeightsFolder
from trainer.weights.writing import write_folder

CONFIG = ModelConfig.from_mapping(QWEN2 | {"tied": False, "context": 64})
VALUES = random_parameters(CONFIG)
SHARD = 60_000


def write(folder: Path, config: ModelConfig = CONFIG, values: F32 = VALUES, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    form = options.pop("form", ExportFormat.FP32)
    write_folder(folder, config, in_blocks(values, options.pop("block", 1000)), form, context=64, eos=None, **options)
    return folder


def back(folder: Path) -> F32:
    return np.concatenate(list(WeightsFolder(folder).values()))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("block", "shard_bytes"), [(1000, 10**9), (10**9, SHARD), (7, SHARD)])
def test_weights_come_back_exactly(name: str, block: int, shard_bytes: int, tmp_path: Path) -> None:
    config, values = CONFIGS[name], random_parameters(CONFIGS[name])
    if len(values) > 100_000 and block == 7:
        block = 70_001
    assert np.array_equal(back(write(tmp_path, config, values, block=block, shard_bytes=shard_bytes)), values)


def test_bf16_comes_back_as_what_was_written(tmp_path: Path) -> None:
    rounded = torch.from_numpy(VALUES).bfloat16().float().numpy()
    assert np.array_equal(back(write(tmp_path, form=ExportFormat.BF16)), rounded)


def test_the_library_reads_each_file_and_the_index_names_all(tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=SHARD)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": CONFIG.parameters, "total_size": 4 * CONFIG.parameters}
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [path.name for path in files] == [
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
    ]
    found: dict[str, torch.Tensor] = {}
    for path in files:
        with safe_open(path, "pt") as opened:  # type: ignore[no-untyped-call]
            assert opened.metadata() == {"format": "pt"}
            names = opened.keys()
            assert len(names) == 1 or path.stat().st_size < SHARD + 5000
            assert all(index["weight_map"][name] == path.name for name in names)
            found |= {name: opened.get_tensor(name) for name in names}
    for place in parameter_layout(CONFIG):
        part = VALUES[place.offset : place.offset + place.count].reshape(place.shape)
        assert np.array_equal(found.pop(place.name).numpy(), part)
    assert not found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_files_of_the_library_are_read_in_any_order_and_format(dtype: torch.dtype, tmp_path: Path) -> None:
    write(tmp_path)
    tensors = {
        place.name: torch.from_numpy(VALUES[place.offset : place.offset + place.count]).view(place.shape).to(dtype)
        for place in reversed(parameter_layout(CONFIG))
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert np.array_equal(back(tmp_path), torch.from_numpy(VALUES).to(dtype).float().numpy())


def test_an_embedding_that_is_said_twice_and_old_buffers_are_passed_over(tmp_path: Path) -> None:
    config = ModelConfig.from_mapping(QWEN2 | {"tied": True})
    values = random_parameters(config)
    write(tmp_path, config, values)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert np.array_equal(back(tmp_path), values)


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({NORM: None}, "has no tensor model.norm.weight"),
        ({NORM: torch.ones(63)}, "has the shape [63], and config.json says [64]"),
        ({NORM: torch.full((64,), float("nan"))}, "no finite numbers"),
        ({NORM: torch.ones(64, dtype=torch.float64)}, "format 'F64'"),
        ({"score.weight": torch.ones(2)}, "has a tensor score.weight"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused(change: dict[str, Any], part: str, tmp_path: Path) -> None:
    change_tensors(write(tmp_path), **change)
    with pytest.raises(FolderError) as caught:
        back(tmp_path)
    assert part in str(caught.value) and "; " in str(caught.value)


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 7,
        b"\xff" * 100,
        (10**6).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{x",
        header(a=3),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0]}),
        header(a={"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [-4, 4]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}) + bytes(8),
    ],
)
def test_bytes_that_are_no_safetensors_file_are_refused(content: bytes, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FolderError, match="; copy it again"):
        back(tmp_path)


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": {"a": "b"}}',
     '{"weight_map": {"a": "absent.safetensors"}}', '{"weight_map": {"a": "model-00001-of-00003.safetensors"}}'],
)  # fmt: skip
def test_an_index_that_leads_nowhere_is_refused(index: str, tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=SHARD)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(FolderError, match="; "):
        back(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"model_type": "gpt2"}', "[" * 100_000])
def test_a_config_that_says_nothing_usable_is_refused(text: str | None, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(FolderError, match=r"config\.json.*; "):
        WeightsFolder(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FolderError, match="save the model as safetensors"):
        back(tmp_path)
