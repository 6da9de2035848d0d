"""PEFT loads what we write and we load what it writes; both compute the same logits and the same merged weights.

Needs the extra `oracle`: skipped where PEFT or transformers is not installed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from protocol.formats.adapter import AdapterConfig, adapter_layout, adapter_parameters
from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import CONFIGS, F32, in_blocks, random_parameters, tokens_for
from trainer.models.llama.model import Decoder, FrozenBase
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.merging import merged_blocks
from trainer.weights.peft_folder import PeftFolder, write_peft_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
peft: Any = pytest.importorskip("peft", reason="install the extra: pip install -e '.[oracle]'")

pytestmark = pytest.mark.slow

FAMILIES = ["llama3", "llama3, tied", "qwen2", "qwen2, tied", "qwen3", "qwen3, tied"]
ADAPTERS = {
    "all": AdapterConfig(rank=8, alpha=4.0),
    "attention": AdapterConfig(rank=4, alpha=6.5, targets="attention"),
    "mlp": AdapterConfig(rank=16, alpha=16.0, targets="mlp"),
}
TOLERANCE = 1e-5
"""Largest difference of logits of about 1, of the same products in the same order."""
DECODER_TOLERANCE = 1e-4
"""Largest difference of logits of our decoder, which sums in another order."""


def base_of(path: Path, config: ModelConfig, form: ExportFormat = ExportFormat.FP32) -> Any:
    """Write a base as we export it, and return the model that transformers loads from it."""
    path.mkdir()
    write_folder(path, config, in_blocks(random_parameters(config)), form, context=256, eos=None)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True).eval()


def random_factors(config: ModelConfig, adapter: AdapterConfig) -> F32:
    random = np.random.default_rng(7)
    return (random.standard_normal(adapter_parameters(config, adapter)) * 0.1).astype(np.float32)


def written(path: Path, config: ModelConfig, adapter: AdapterConfig) -> Path:
    path.mkdir()
    factors = in_blocks(random_factors(config, adapter))
    write_peft_folder(path, config, adapter, factors, ExportFormat.FP32, base_name=str(path.parent / "base"))
    return path


def logits_of(model: Any, config: ModelConfig) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens_for(config)).logits
    return logits


def adapted_logits(model: Any, config: ModelConfig, adapter: AdapterConfig, factors: F32) -> torch.Tensor:
    """Return the logits of a base of transformers with every projection as W x + s B (A x), without PEFT."""

    def added(a: torch.Tensor, b: torch.Tensor) -> Callable[..., torch.Tensor]:
        return lambda module, inputs, output: output + adapter.scale * ((inputs[0] @ a.T) @ b.T)

    places, flat, hooks = adapter_layout(config, adapter), torch.from_numpy(factors), []
    for a, b in zip(places[::2], places[1::2], strict=True):
        pair = [flat[each.offset :][: each.count].view(each.shape) for each in (a, b)]
        hooks.append(model.get_submodule(a.name.removesuffix(".lora_A.weight")).register_forward_hook(added(*pair)))
    logits = logits_of(model, config)
    for hook in hooks:
        hook.remove()
    return logits


def decoded_logits(base: WeightsFolder, folder: PeftFolder) -> torch.Tensor:
    """Return the logits of our decoder with both folders."""
    tensors = {place.name: torch.from_numpy(base.tensor(place)) for place in parameter_layout(base.config)}
    factors = torch.from_numpy(np.concatenate(list(folder.values())))
    model = Decoder(base.config, torch.device("cpu"), factors, FrozenBase.whole(folder.adapter, tensors))
    with torch.no_grad():
        return F.linear(model(tokens_for(base.config)), model.output_weight)


@pytest.mark.parametrize("targets", ADAPTERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_exported_adapter_gives_the_same_logits_in_peft(name: str, targets: str, tmp_path: Path) -> None:
    config, adapter = CONFIGS[name], ADAPTERS[targets]
    base = base_of(tmp_path / "base", config)
    alone = logits_of(base, config)
    ours = adapted_logits(base, config, adapter, random_factors(config, adapter))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # PEFT's, about fields and tensors that it misses or does not know
        theirs = peft.PeftModel.from_pretrained(base, written(tmp_path / "adapter", config, adapter))
    loaded = theirs.peft_config["default"]
    assert (loaded.r, loaded.lora_alpha, loaded.inference_mode) == (adapter.rank, adapter.alpha, True)
    assert (ours - alone).abs().max() > 0.1, "an adapter that does something"
    logits = logits_of(theirs.eval(), config)
    torch.testing.assert_close(logits, ours, rtol=TOLERANCE, atol=TOLERANCE)
    decoded = decoded_logits(WeightsFolder(tmp_path / "base"), PeftFolder(tmp_path / "adapter", config))
    torch.testing.assert_close(decoded, logits, rtol=0, atol=DECODER_TOLERANCE)


@pytest.mark.parametrize("form", ExportFormat)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_merged_export_is_what_peft_merges(name: str, form: ExportFormat, tmp_path: Path) -> None:
    config, adapter = CONFIGS[name], ADAPTERS["all"]
    base = base_of(tmp_path / "base", config, form)
    dtype, folder = base.dtype, written(tmp_path / "adapter", config, adapter)
    (tmp_path / "merged").mkdir()
    blocks = merged_blocks(WeightsFolder(tmp_path / "base"), adapter, PeftFolder(folder, config).values())
    write_folder(tmp_path / "merged", config, blocks, form, context=256, eos=None)
    merged = peft.PeftModel.from_pretrained(base, folder).merge_and_unload()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto", local_files_only=True)
    assert model.dtype is merged.dtype is dtype
    ours, theirs, bounds = model.state_dict(), merged.state_dict(), rounding_bounds(config, adapter, dtype)
    assert set(ours) == set(theirs) and set(bounds) <= set(ours)
    for name, tensor in ours.items():
        assert ((tensor.double() - theirs[name].double()).abs() <= bounds.get(name, torch.zeros(()))).all(), name


def rounding_bounds(config: ModelConfig, adapter: AdapterConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return how far two sums of each projection may differ: one rounding of `dtype`, and those of the product in fp32."""
    values, factors = (
        torch.from_numpy(each).double() for each in (random_parameters(config), random_factors(config, adapter))
    )
    places, bounds = {place.name: place for place in parameter_layout(config)}, {}
    layout = adapter_layout(config, adapter)
    for a_place, b_place in zip(layout[::2], layout[1::2], strict=True):
        a, b = (factors[each.offset :][: each.count].view(each.shape) for each in (a_place, b_place))
        place = places[a_place.name.replace(".lora_A.", ".")]
        weight = values[place.offset :][: place.count].view(place.shape)
        product = adapter.scale * (b.abs() @ a.abs())
        single, rounding = torch.finfo(torch.float32).eps, torch.finfo(dtype).eps
        bounds[place.name] = rounding * (weight.abs() + product) + adapter.rank * single * product
    return bounds


def trained(base: Any, dtype: torch.dtype, **options: Any) -> Any:
    """Return a model of PEFT whose factors all have values."""
    known: dict[str, Any] = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "target_modules": "all-linear"}
    model = peft.get_peft_model(
        base.to(dtype), peft.LoraConfig(**known | options), autocast_adapter_dtype=dtype is torch.float32
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, AdapterConfig(rank=4, alpha=8.0)),
        (
            {"target_modules": ["v_proj", "q_proj", "k_proj", "o_proj"]},
            AdapterConfig(rank=4, alpha=8.0, targets="attention"),
        ),
        ({"target_modules": ["gate_proj", "up_proj", "down_proj"], "r": 3}, AdapterConfig(rank=3, alpha=8.0, targets="mlp")),
        ({"use_rslora": True, "r": 8, "lora_alpha": 16}, AdapterConfig(rank=8, alpha=16 * math.sqrt(8))),
        ({"init_lora_weights": "gaussian", "lora_dropout": 0.1}, AdapterConfig(rank=4, alpha=8.0)),
    ],
)
def test_a_folder_that_peft_saved_is_read_and_written_bit_for_bit(
    options: dict[str, Any], expected: AdapterConfig, dtype: torch.dtype, tmp_path: Path
) -> None:
    config = CONFIGS["qwen2, tied"]
    model = trained(base_of(tmp_path / "base", config), dtype, **options)
    model.save_pretrained(tmp_path / "theirs")
    found = PeftFolder(tmp_path / "theirs", config)
    assert found.adapter == expected
    assert found.base_name == str(tmp_path / "base")
    scales = {module.scaling["default"] for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)}
    assert [*scales] == [pytest.approx(found.adapter.scale, rel=1e-15)]
    state = {name.replace(".default", ""): tensor for name, tensor in model.state_dict().items() if "lora_" in name}
    values = torch.from_numpy(np.concatenate(list(found.values())))
    for place in adapter_layout(config, found.adapter):
        theirs = state[f"base_model.model.{place.name}"]
        assert torch.equal(values[place.offset :][: place.count].view(place.shape), theirs.float())
    form = ExportFormat.FP32 if dtype is torch.float32 else ExportFormat.BF16
    (tmp_path / "ours").mkdir()
    write_peft_folder(tmp_path / "ours", config, found.adapter, found.values(), form, base_name=found.base_name)
    one, other = (safetensors.torch.load_file(tmp_path / each / "adapter_model.safetensors") for each in ("ours", "theirs"))
    assert set(one) == set(other)
    assert all(one[name].dtype is other[name].dtype and torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True, "target_modules": ["q_proj", "k_proj", "v_proj"]}, "lora_bias is True"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is {'q_proj': 2}"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern is {'q_proj': 2}"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"layers_to_transform": [0, 2], "target_modules": ["q_proj"]}, "layers_to_transform is [0, 2]"),
        ({"target_modules": ["q_proj", "v_proj"]}, "target_modules is ['q_proj', 'v_proj']"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "target_modules names 'embed_tokens'"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is [1, 2]"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ],
)
def test_a_folder_that_peft_saved_beyond_plain_lora_is_refused(options: dict[str, Any], part: str, tmp_path: Path) -> None:
    config = CONFIGS["qwen2"]
    trained(base_of(tmp_path / "base", config), torch.float32, **options).save_pretrained(tmp_path / "theirs")
    with pytest.raises(FolderError) as caught:
        PeftFolder(tmp_path / "theirs", config)
    assert part in str(caught.value) and "; " in str(caught.value)
