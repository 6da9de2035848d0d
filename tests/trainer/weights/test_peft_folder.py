"""Folders of PEFT come back as they were, merge into their base in one rounding, and are refused in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from protocol.formats.adapter import AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import CONFIGS, F32, QWEN2, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.merging import merged_blocks
from trainer.weights.peft_folder import PeftFolder, write_peft_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

MODEL = ModelConfig.from_mapping(QWEN2 | {"layers": 2})
ADAPTER = AdapterConfig(rank=4, alpha=16.0)
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def factors_of(model: ModelConfig, adapter: AdapterConfig) -> F32:
    random = np.random.default_rng(3)
    return (random.standard_normal(adapter_parameters(model, adapter)) * 0.2).astype(np.float32)


def write(
    folder: Path,
    model: ModelConfig = MODEL,
    adapter: AdapterConfig = ADAPTER,
    form: ExportFormat = ExportFormat.FP32,
    block: int = 1000,
    **fields: Any,
) -> Path:
    """fields: changes of adapter_config.json."""
    folder.mkdir(exist_ok=True)
    values = in_blocks(factors_of(model, adapter), block)
    write_peft_folder(folder, model, adapter, values, form, base_name="Qwen/Qwen3-8B")
    described = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(described | fields))
    return folder


def back(folder: PeftFolder) -> F32:
    return np.concatenate(list(folder.values()))


def test_the_files_are_those_of_peft(tmp_path: Path) -> None:
    model = MODEL.changed(layers=1)
    write(tmp_path, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described == {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "Qwen/Qwen3-8B", "r": 4, "lora_alpha": 16,
        "target_modules": ATTENTION + MLP, "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": False,
        "use_rslora": False, "use_dora": False, "init_lora_weights": True, "inference_mode": True, "modules_to_save": None,
        "rank_pattern": {}, "alpha_pattern": {}, "layers_to_transform": None, "layers_pattern": None, "auto_mapping": None,
        "revision": None,
    }  # fmt: skip
    assert isinstance(described["lora_alpha"], int)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as opened:  # type: ignore[no-untyped-call]
        assert opened.metadata() == {"format": "pt"}
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    widths = {"q_proj": (64, 64), "k_proj": (64, 16), "v_proj": (64, 16), "o_proj": (64, 64)}
    widths |= {"gate_proj": (64, 72), "up_proj": (64, 72), "down_proj": (72, 64)}
    expected: dict[str, tuple[int, int]] = {}
    for name, (inputs, outputs) in widths.items():
        module = f"base_model.model.model.layers.0.{'self_attn' if name in ATTENTION else 'mlp'}.{name}"
        expected |= {f"{module}.lora_A.weight": (4, inputs), f"{module}.lora_B.weight": (outputs, 4)}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == expected
    assert np.array_equal(found[FIRST].numpy().reshape(-1), factors_of(model, ADAPTER)[: 4 * 64])


@pytest.mark.parametrize("name", ["demo", "llama3, tied", "llama with wide heads", "qwen2", "qwen3, tied"])
@pytest.mark.parametrize(
    ("adapter", "block"),
    [
        (AdapterConfig(rank=8, alpha=16.0), 10**9),
        (AdapterConfig(rank=3, alpha=1.7, targets="attention"), 7),
        (AdapterConfig(rank=1, alpha=0.5, targets="mlp"), 1000),
    ],
)
def test_an_adapter_comes_back_exactly(name: str, adapter: AdapterConfig, block: int, tmp_path: Path) -> None:
    found = PeftFolder(write(tmp_path, CONFIGS[name], adapter, block=block), CONFIGS[name])
    assert (found.adapter, found.base_name) == (adapter, "Qwen/Qwen3-8B")
    assert back(found).tobytes() == factors_of(CONFIGS[name], adapter).tobytes()


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({"target_modules": "all-linear"}, ADAPTER),
        ({"target_modules": [f"self_attn.{name}" for name in ATTENTION] + MLP}, ADAPTER),
        ({"use_rslora": True}, AdapterConfig(rank=4, alpha=32.0)),
        ({"init_lora_weights": "gaussian", "lora_dropout": 0.1, "peft_version": "0.21.2", "loftq_config": {}}, ADAPTER),
    ],
)
def test_fields_that_leave_plain_lora_are_read(fields: dict[str, Any], adapter: AdapterConfig, tmp_path: Path) -> None:
    assert PeftFolder(write(tmp_path, **fields), MODEL).adapter == adapter


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', and a run's adapter has only 'LORA'"),
        ({"use_dora": True}, "use_dora is True, and a run's adapter has only False; merge it into its base (PEFT: merge_"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"use_of_next_year": 0}, "has a field 'use_of_next_year', which plain LoRA does not have"),
        ({"use_rslora": 2}, "use_rslora is 2, but must be true or false; copy the file again"),
        ({"lora_alpha": 10**400}, "alpha is 1000"),
        ({"target_modules": [f"layers.0.{name}" for name in ATTENTION]}, "target_modules names 'layers.0.k_proj'"),
        ({"target_modules": ["embed_tokens"]}, "target_modules names 'embed_tokens'"),
        ({"target_modules": ".*_proj"}, "target_modules is '.*_proj', but must be a list of modules' names"),
        ({"r": 8}, "q_proj.lora_A.weight has the shape [4, 64], but adapter_config.json and the base give [8, 64]"),
        ({"target_modules": ATTENTION}, "has a tensor base_model.model.model.layers.0.mlp.down_proj.lora_A.weight, which"),
    ],
)  # fmt: skip
def test_a_config_beyond_plain_lora_is_refused(fields: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(FolderError) as caught:
        PeftFolder(write(tmp_path, **fields), MODEL)
    assert part in str(caught.value) and "; " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({FIRST: None}, f"has no tensor {FIRST}, which adapter_config.json and the base require; copy the folder again"),
        ({FIRST: torch.ones(4, 63)}, "has the shape [4, 63]"),
        ({FIRST: torch.full((4, 64), math.inf)}, "self_attn.q_proj.lora_A.weight contains NaN or infinite values; use"),
        ({FIRST.replace("lora_A", "lora_magnitude_vector"): torch.ones(64)}, "lora_magnitude_vector.weight, which a run's"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_the_adapters_are_refused(change: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = write(tmp_path) / "adapter_model.safetensors"
    tensors = {**safetensors.torch.load_file(path), **change}
    safetensors.torch.save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(FolderError) as caught:
        back(PeftFolder(tmp_path, MODEL))
    assert part in str(caught.value) and "; " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"layers": 3}, "has no tensor base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"),
        ({"kv_heads": 2}, "k_proj.lora_B.weight has the shape [16, 4], but adapter_config.json and the base give [32, 4]"),
    ],
)  # fmt: skip
def test_an_adapter_of_another_base_is_refused_with_its_own_bases_name(
    changes: dict[str, int], part: str, tmp_path: Path
) -> None:
    with pytest.raises(FolderError) as caught:
        PeftFolder(write(tmp_path), MODEL.changed(**changes))
    assert part in str(caught.value) and "use the adapter's own base ('Qwen/Qwen3-8B')" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("adapter_config.json", None, "give a folder in which PEFT has saved an adapter"),
        ("adapter_config.json", b'{"r": 4, "r": 8}', "is not readable as JSON; give a folder"),
        ("adapter_config.json", b'{"lora_alpha": NaN}', "is not readable as JSON"),
        ("adapter_config.json", b"[" * 70 + b"]" * 70, "is not readable as JSON"),
        pytest.param("adapter_config.json", b" " * (3 << 20), "it is larger than 2 MiB", id="large"),
        ("adapter_model.safetensors", None, "No such file or directory; copy the folder again"),
        ("adapter_model.safetensors", bytes(100), "is not a safetensors file, or is incomplete"),
    ],
)
def test_files_that_are_missing_or_damaged_are_refused(name: str, content: bytes | None, part: str, tmp_path: Path) -> None:
    path = write(tmp_path) / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(FolderError) as caught:
        PeftFolder(tmp_path, MODEL)
    assert part in str(caught.value) and str(path) in str(caught.value)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (write(tmp_path) / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(FolderError, match="weights in adapter_model.bin, which may execute code when it is read; save the"):
        PeftFolder(tmp_path, MODEL)


# -- merging into the base ------------------------------------------------------------------------------------------------


def base_folder(folder: Path, model: ModelConfig, form: ExportFormat) -> WeightsFolder:
    folder.mkdir()
    write_folder(folder, model, in_blocks(random_parameters(model)), form, context=64, eos=None)
    return WeightsFolder(folder)


def expected_sum(base: WeightsFolder, adapter: AdapterConfig) -> F32:
    """W + alpha / rank * B A of every projection in fp32, the other tensors as they are."""
    values, factors = np.concatenate(list(base.values())), factors_of(base.config, adapter)
    places = {place.name: place for place in parameter_layout(base.config)}
    pairs = iter(adapter_layout(base.config, adapter))
    for a_place, b_place in zip(pairs, pairs, strict=True):
        a, b = (factors[each.offset :][: each.count].reshape(each.shape) for each in (a_place, b_place))
        place = places[a_place.name.replace("lora_A.", "")]
        values[place.offset :][: place.count] += (np.float32(adapter.alpha / adapter.rank) * (b @ a)).reshape(-1)
    return values


@pytest.mark.parametrize("name", ["llama3", "llama with wide heads, tied", "qwen2", "qwen3, tied"])
@pytest.mark.parametrize("form", ExportFormat)
@pytest.mark.parametrize("targets", ["all", "attention", "mlp"])
def test_a_merged_folder_has_the_sum_in_one_rounding(name: str, form: ExportFormat, targets: Any, tmp_path: Path) -> None:
    model, adapter = CONFIGS[name], AdapterConfig(rank=8, alpha=12.0, targets=targets)
    base = base_folder(tmp_path / "base", model, form)
    (tmp_path / "merged").mkdir()
    blocks = merged_blocks(base, adapter, in_blocks(factors_of(model, adapter), 777))
    write_folder(tmp_path / "merged", model, blocks, form, context=64, eos=None)
    expected = torch.from_numpy(expected_sum(base, adapter))
    if form is ExportFormat.BF16:
        expected = expected.bfloat16().float()
    merged = WeightsFolder(tmp_path / "merged")
    assert merged.config == base.config
    assert np.array_equal(np.concatenate(list(merged.values())), expected.numpy())
