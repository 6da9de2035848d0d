"""Factors beside a frozen model: the formula, the gradients, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels.schedule import Place
from protocol.formats.adapter import AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer import small
from tests.trainer.weights.models import LLAMA3, QWEN2, QWEN3, in_blocks, random_parameters
from trainer import memory
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import AdaptedLinear, Decoder, FrozenBase
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.reference import ZeroFactors
from trainer.weights.base import load_base
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

SHAPES = [shape | {"tied": tied} for shape in (LLAMA3, QWEN2, QWEN3) for tied in (True, False)]
TOKENS = torch.arange(24).reshape(2, 12) % 11


def base_of(config: ModelConfig, adapter: AdapterConfig, values: np.ndarray) -> FrozenBase:
    places = parameter_layout(config)
    tensors = {p.name: torch.from_numpy(values[p.offset : p.offset + p.count].copy()).view(p.shape) for p in places}
    return FrozenBase(adapter, tensors)


def random_factors(config: ModelConfig, adapter: AdapterConfig) -> torch.Tensor:
    return torch.randn(adapter_parameters(config, adapter), generator=torch.Generator().manual_seed(3)) * 0.1


@pytest.mark.parametrize("targets", ["all", "attention", "mlp"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_with_factors_computes_what_the_sum_of_both_matrices_does(shape: dict[str, object], targets: str) -> None:
    config, adapter = ModelConfig.from_mapping(shape), AdapterConfig(rank=3, alpha=5.0, targets=targets)
    values, factors = random_parameters(config), random_factors(config, adapter)
    parts = {p.name: factors[p.offset : p.offset + p.count].view(p.shape) for p in adapter_layout(config, adapter)}
    merged = torch.from_numpy(values.copy())
    for place in parameter_layout(config):
        stem = place.name.removesuffix(".weight")
        if f"{stem}.lora_A.weight" in parts:
            product = parts[f"{stem}.lora_B.weight"].double() @ parts[f"{stem}.lora_A.weight"].double()
            merged[place.offset : place.offset + place.count] += (adapter.scale * product).float().flatten()
    model = Decoder(config, small.CPU, factors, base_of(config, adapter, values))
    assert torch.allclose(model(TOKENS), Decoder(config, small.CPU, merged)(TOKENS), atol=1e-5)
    zero = Decoder(config, small.CPU, torch.zeros(model.count), model.base)
    assert torch.equal(zero(TOKENS), Decoder(config, small.CPU, torch.from_numpy(values))(TOKENS)), "without factors"
    assert not ZeroFactors(model.count)[3:7].any()


def test_a_step_changes_the_factors_alone_and_their_beginning_changes_nothing() -> None:
    config, adapter = ModelConfig.from_mapping(small.MODEL), AdapterConfig(rank=4)
    values = random_parameters(config)
    base = base_of(config, adapter, values)
    before = {name: tensor.clone() for name, tensor in base.tensors.items()}
    model = Decoder(config, small.CPU, base=base)
    initial = np.empty(model.count, np.float32)
    initial_parameters(config, 7, initial, adapter)
    model.flat.copy_(torch.from_numpy(initial))
    assert torch.equal(model(TOKENS), Decoder(config, small.CPU, torch.from_numpy(values))(TOKENS))
    loop = InnerLoop(WholeParameters(model), small.config().inner)
    for step in range(3):
        loop.step(Rows(np.arange(68, dtype=np.uint8).reshape(4, 17) % 13), Place(step, 0.0)).read()
    assert not torch.equal(model.flat, torch.from_numpy(initial))
    assert all(torch.equal(before[name], base.tensors[name]) for name in before)
    assert len(model.gradient) == adapter_parameters(config, adapter)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradients_are_those_of_autograd(bias: bool) -> None:
    adapter = AdapterConfig(rank=3, alpha=5.0)
    draws = torch.Generator().manual_seed(1)
    linear = AdaptedLinear(7, 5, adapter, bias=bias).double().requires_grad_(False)
    for factor in (linear.lora_A, linear.lora_B):
        factor.weight.copy_(torch.randn(factor.weight.shape, generator=draws))
    input_bti = torch.randn(2, 4, 7, generator=draws, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(2, 4, 5, generator=draws, dtype=torch.float64)
    found = []
    for own in (True, False):
        leaves = [input_bti, *(factor.weight.requires_grad_(True) for factor in (linear.lora_A, linear.lora_B))]
        plain = F.linear(input_bti, linear.weight, linear.bias) + 5.0 / 3.0 * linear.lora_B(linear.lora_A(input_bti))
        loss = ((linear(input_bti) if own else plain) * wanted).sum()
        found.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("targets", ["all", "attention", "mlp"])
def test_a_layer_keeps_for_its_gradients_what_the_estimate_says(targets: str) -> None:
    config = ModelConfig.from_mapping(small.MODEL | {"dim": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "layers": 7})
    adapter = AdapterConfig(rank=16, targets=targets)
    model = Decoder(config, small.CPU, base=base_of(config, adapter, random_parameters(config)))
    assert model.base is not None
    weights = [model.flat, *model.base.tensors.values()]
    own, kept, alive = {each.untyped_storage().data_ptr() for each in weights}, dict[int, int](), list[torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no other one gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(4, 64, dtype=torch.int64))
    run = replace(small.config(), model=config, adapter=adapter)
    estimate = memory._saved_bytes(config, bf16=False) + memory._factor_bytes(run, config.layers, bf16=False)
    assert sum(kept.values()) / 256 == pytest.approx(estimate, rel=0.08)


def test_the_first_factors_are_the_same_bits_everywhere() -> None:
    config, adapter = ModelConfig.from_mapping(small.MODEL), AdapterConfig(rank=4)
    values = np.empty(adapter_parameters(config, adapter), np.float32)
    initial_parameters(config, 7, values, adapter)
    places = {place.name: values[place.offset : place.offset + place.count] for place in adapter_layout(config, adapter)}
    assert not any(part.any() for name, part in places.items() if name.endswith("lora_B.weight"))
    first = places["model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert [float(each).hex() for each in first[:3]] == FIRST
    assert np.abs(first).max() < 1 / np.sqrt(16) and abs(first.mean()) < 0.05


FIRST = ["0x1.ee92000000000p-3", "-0x1.585a000000000p-3", "-0x1.2d1e000000000p-3"]


def test_files_of_another_model_or_with_a_value_that_is_no_number_are_refused(tmp_path: Path) -> None:
    config, adapter = ModelConfig.from_mapping(small.MODEL), AdapterConfig(rank=4)
    run = replace(small.config(), adapter=adapter)

    def loaded(values: np.ndarray, model: ModelConfig) -> FrozenBase:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        write_folder(folder, model, in_blocks(values), ExportFormat.FP32, context=64, eos=None)
        return load_base(
            replace(run, files={f"base/{path.name}": str(path) for path in folder.iterdir()}), small.CPU, torch.float32
        )

    values = random_parameters(config)
    found = loaded(values, config)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in base_of(config, adapter, values).tensors.items())
    other = ModelConfig.from_mapping(small.MODEL | {"ffn": 32})
    with pytest.raises(FolderError, match="another model"):
        loaded(random_parameters(other), other)
    values[5] = np.nan
    with pytest.raises(FolderError, match="NaN"):
        loaded(values, config)
