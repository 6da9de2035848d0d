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
from protocol.corpora.manifest import CorpusKind
from protocol.formats.adapter import AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer import small
from tests.trainer.data.corpora import Shape, preferences, write_corpus
from tests.trainer.weights.models import LLAMA3, QWEN2, QWEN3, in_blocks, random_parameters
from trainer import memory
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import AdaptedLinear, Decoder, FrozenBase
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.reference import ZeroFactors
from trainer.weights.base import load_base
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError
from trainer.worker import Task, Worker

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


@pytest.mark.parametrize("targets", ["all", "attention", "mlp"])
def test_a_layer_keeps_for_its_gradients_what_the_estimate_says(targets: Targets) -> None:
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


def test_preferences_are_compared_with_the_frozen_model_and_need_no_other_weights(tmp_path: Path) -> None:
    shape = Shape(CorpusKind.PREFERENCE, row_tokens=17, block_tokens=34)
    folder = write_corpus(tmp_path / "corpus", shape, {"a": (preferences(1, 40, 17), preferences(2, 9, 17))})
    base = tmp_path / "base"
    base.mkdir()
    model, adapter = ModelConfig.from_mapping(small.MODEL), AdapterConfig(rank=4)
    write_folder(base, model, in_blocks(random_parameters(model)), ExportFormat.BF16, context=64, eos=None)
    sections = small.run_sections(folder, {"a": 1}, format="preference", sequences_per_step=5, beta=0.5)
    files = {**sections["files"], **{f"base/{path.name}": str(path) for path in base.iterdir()}}
    run = replace(TrainingConfig.from_sections(sections), adapter=adapter, files=files)
    theta = np.empty(run.parameters, np.float32)
    initial_parameters(model, 7, theta, adapter)
    worker = Worker(run, small.CPU, tmp_path)
    out = memoryview(bytearray(worker.layout.payload_bytes))
    margins = []
    for round in (3, 4):  # a newcomer, which was not in the first round
        done = worker.compute(Task(round, [[0, 20]], 4, 0), theta, out, lambda *step: False)
        margins.append(done.margin)
        theta = worker.model.flat.numpy().copy()
    assert margins[0] is not None and margins[1] is not None and abs(margins[0]) < margins[1]
    assert not (tmp_path / "initial.bf16").exists()
