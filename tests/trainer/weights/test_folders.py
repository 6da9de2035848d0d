"""Folders come back as they were, other programs read them, and bad ones are refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import CONFIGS, F32, QWEN2, in_blocks, random_parameters
from trainer.weights.folder import SHARD_BYTES, WeightsFolder, write_folder
from trainer.weights.safetensors_file import MAX_HEADER_BYTES, ExportFormat, FolderError

CONFIG = ModelConfig.from_mapping(QWEN2 | {"tied": False, "context": 64})
VALUES = random_parameters(CONFIG)
SHARD = 60_000


def write(folder: Path, config: ModelConfig = CONFIG, values: F32 = VALUES, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    form = options.pop("form", ExportFormat.FP32)
    with patch("trainer.weights.folder.SHARD_BYTES", options.pop("shard_bytes", SHARD_BYTES)):
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
        ({"lm_head.weight": None}, "no tensor lm_head.weight, which its config.json requires, as tie_word"),
        ({NORM: torch.ones(63)}, "has the shape [63], but config.json gives [64]"),
        ({NORM: torch.full((64,), float("nan"))}, "NaN or infinite values"),
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


PLACES = [{"dtype": "F32", "shape": [2], "data_offsets": [start, start + 8]} for start in (0, 8)]
NO_FILES = [
    b"",
    b"\xff" * 100,
    (10**6).to_bytes(8, "little") + b"{}",
    (2).to_bytes(8, "little") + b"{x",
    header(a=3),
    *(
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | change) + bytes(8)
        for change in (
            {"data_offsets": [0]}, {"data_offsets": [0, 4]}, {"data_offsets": [4, 12]}, {"data_offsets": [-4, 4]},
            {"shape": [-2, -1]}, {"shape": [1 << 62, 4]}, {"dtype": ["F32"]},
        )
    ),
]  # fmt: skip
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 32 * b"4d" + b"\nsize 11421896\n"


def raw_header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        *((content, "copy it again") for content in NO_FILES),
        (header(a=PLACES[0], b=PLACES[0]) + bytes(8), "bytes of another tensor in b"),
        (header(a=PLACES[0], b=PLACES[1] | {"data_offsets": [12, 20]}) + bytes(20), "bytes of no tensor before b"),
        (header(a=PLACES[1]) + bytes(16), "bytes of no tensor before a"),
        (header(a=PLACES[0]) + bytes(9), "bytes of no tensor at its end"),
        (raw_header(f'{{"a": {json.dumps(PLACES[0])}, "a": {json.dumps(PLACES[1])}}}') + bytes(16), "no readable header"),
        (header(a=PLACES[0] | {"data_offsets": [False, 8]}) + bytes(8), "has an invalid description of the tensor"),
        (header(a=PLACES[0] | {"shape": [1 << 60, 0]}) + bytes(8), "has an invalid description of the tensor"),
        (header(a=PLACES[0], __metadata__=[{}]) + bytes(8), "__metadata__"),
        (header(a=PLACES[0] | {"dtype": "F8_E4M3", "shape": [8]}) + bytes(8), "is quantised, in the format 'F8_E4M3'"),
        (raw_header("{" + " " * MAX_HEADER_BYTES + "}"), "has a header of 2097154 bytes"),
        (POINTER, "is a pointer of Git LFS, not the file; fetch the file with `git lfs pull`"),
    ],
)
def test_files_that_contradict_themselves_are_refused_with_the_reason(content: bytes, part: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FolderError) as caught:
        back(tmp_path)
    assert part in str(caught.value) and "; " in str(caught.value)


def test_an_output_layer_of_its_own_in_a_tied_model_is_refused(tmp_path: Path) -> None:
    config = ModelConfig.from_mapping(QWEN2 | {"tied": True})
    for head in (torch.zeros(300, 64), torch.zeros(299, 64), torch.zeros(300, 64, dtype=torch.bfloat16)):
        change_tensors(write(tmp_path, config, random_parameters(config)), **{"lm_head.weight": head})
        with pytest.raises(FolderError, match="lm_head.weight that is not the embedding, although the model is tied; set"):
            back(tmp_path)


@pytest.mark.parametrize(
    ("absent", "present", "part"),
    [
        ("model-00002-of-*", "", "has no file model-00002-of-"),
        ("*.index.json", "", "has model-00001-of-"),
        ("model*", "", "save the model as safetensors"),
        ("model*", "pytorch_model.bin", "has its weights in pytorch_model.bin; save the model as safetensors"),
        ("model*", "model-q4.gguf", "use the safetensors version of the model"),
        ("model*", "adapter_model.safetensors", "an adapter without its model; merge both first"),
    ],
)
def test_weights_that_are_not_there_are_told_from_what_is(absent: str, present: str, part: str, tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=SHARD)
    for path in tmp_path.glob(absent):
        path.unlink()
    if present:
        (tmp_path / present).touch()
    with pytest.raises(FolderError) as caught:
        back(tmp_path)
    assert part in str(caught.value) and "; " in str(caught.value)


def test_a_file_with_more_than_the_index_says_is_refused(tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=SHARD)
    index = tmp_path / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    del said["weight_map"][NORM]
    index.write_text(json.dumps(said))
    with pytest.raises(
        FolderError, match="a tensor model.norm.weight, which the index does not list; copy the folder again"
    ):
        back(tmp_path)
