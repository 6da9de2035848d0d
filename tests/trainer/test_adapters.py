"""Factors beside a frozen model: the formula, the gradients, and what stays as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels.schedule import Place
from protocol.formats.adapter import AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer import small
from tests.trainer.weights.models import LLAMA3, QWEN2, QWEN3, in_blocks, random_parameters
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import AdaptedLinear, Decoder, FrozenBase
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.reference import ZeroFactors
from trainer.weights.base import load_base
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

Targets = Literal["all", "attention", "mlp"]
Format = Literal["int8", "int4"]
SHAPES = [shape | {"tied": tied} for shape in (LLAMA3, QWEN2, QWEN3) for tied in (True, False)]
TOKENS = torch.arange(24).reshape(2, 12) % 11


def base_of(config: ModelConfig, adapter: AdapterConfig, values: np.ndarray) -> FrozenBase:
    places = parameter_layout(config)
    tensors = {p.name: torch.from_numpy(values[p.offset : p.offset + p.count].copy()).view(p.shape) for p in places}
    return FrozenBase.whole(adapter, tensors)


def random_factors(config: ModelConfig, adapter: AdapterConfig) -> torch.Tensor:
    return torch.randn(adapter_parameters(config, adapter), generator=torch.Generator().manual_seed(3)) * 0.1


@pytest.mark.parametrize("targets", ["all", "attention", "mlp"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_with_factors_computes_what_the_sum_of_both_matrices_does(
    shape: dict[str, object], targets: Targets
) -> None:
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


@pytest.mark.parametrize("targets", ["all", "mlp"])
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_quantised_model_learns_as_one_with_the_values_of_its_codes(
    tmp_path: Path, form: Format, targets: Targets
) -> None:
    """Bit for bit, gradients too: the values are written into one scratch for each product."""
    model, adapter = ModelConfig.from_mapping(small.MODEL | {"tied": False}), AdapterConfig(rank=4, targets=targets)
    values = random_parameters(model)
    write_folder(tmp_path, model, in_blocks(values), ExportFormat.BF16, context=64, eos=None)
    files = {f"base/{path.name}": str(path) for path in tmp_path.iterdir()}
    run = replace(small.config(), model=model, adapter=adapter, base_format=form, files=files)
    base = load_base(run, small.CPU, torch.float32)
    assert len(base.matrices) == 7 * model.layers and len(base.tensors) + len(base.matrices) == len(parameter_layout(model))
    dense = {name: matrix.weights(base.scratch).clone() for name, matrix in base.matrices.items()}
    plain = FrozenBase.whole(adapter, {**base.tensors, **dense})
    factors, found = random_factors(model, adapter), []
    for each in (base, plain):
        decoder = Decoder(model, small.CPU, base=each)
        decoder.flat.copy_(factors)
        decoder.recomputed = 1
        loss = decoder(TOKENS).square().sum()
        loss.backward()
        found.append((loss.detach(), decoder.gradient.clone(), decoder.over(factors)(TOKENS).detach()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert found[0][1].abs().sum() > 0 and not torch.equal(
        dense["model.layers.0.mlp.up_proj.weight"].flatten(), base.scratch
    )


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
    whole = base_of(config, adapter, values).tensors
    assert all(torch.equal(found.tensors[name], tensor.bfloat16().float()) for name, tensor in whole.items())
    other = ModelConfig.from_mapping(small.MODEL | {"ffn": 32})
    with pytest.raises(FolderError, match="another model"):
        loaded(random_parameters(other), other)
    for value, said in ((np.nan, "NaN"), (3.4e38, r"model.embed_tokens.weight contains values that are too large for bf16")):
        values[5] = value
        with pytest.raises(FolderError, match=said):
            loaded(values, config)


def test_a_damaged_file_of_the_frozen_model_is_called_by_its_name_and_its_path(tmp_path: Path) -> None:
    config = ModelConfig.from_mapping(small.MODEL)
    write_folder(tmp_path, config, in_blocks(random_parameters(config)), ExportFormat.BF16, context=64, eos=None)
    files = {f"base/{path.name}": str(path) for path in tmp_path.iterdir()}
    run = replace(small.config(), adapter=AdapterConfig(rank=4), files=files)
    described = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(described | {"num_attention_heads": 3}))
    with pytest.raises(FolderError, match=rf"config\.json of the run's frozen model \({tmp_path}/config\.json\)"):
        load_base(run, small.CPU, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps(described | {"intermediate_size": 40}))
    with pytest.raises(FolderError, match=r"the run's frozen model: .* has the shape .*; ask the organiser"):
        load_base(run, small.CPU, torch.float32)
