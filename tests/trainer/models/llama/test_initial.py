"""Initial parameters are a function of the seed, with the published distributions."""

import hashlib

import numpy as np
import pytest

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer import small
from trainer.models.llama.initial import STD, TRUNCATE_AT, initial_parameters

UNTIED = small.MODEL | {"dim": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "tied": False}


def _tensors(model: dict[str, object], seed: int) -> dict[str, np.ndarray]:
    config = ModelConfig.from_mapping(model)
    values = np.empty(config.parameters, dtype=np.float32)
    initial_parameters(config, seed, values)
    return {place.name: values[place.offset : place.offset + place.count] for place in parameter_layout(config)}


def test_bits_of_the_initial_parameters_never_change() -> None:
    digest = hashlib.blake2b(small.theta().astype("<f4").tobytes(), digest_size=16).hexdigest()
    assert digest == "6c4c661bdd8523a0aa390cc9fd9231bb"


def test_distributions_are_as_published_and_no_two_tensors_or_seeds_are_alike() -> None:
    tensors = _tensors(UNTIED, 1)
    first, second = (tensors[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(tensors["lm_head.weight"], _tensors(UNTIED, 2)["lm_head.weight"])
    assert abs(tensors["model.embed_tokens.weight"].std() - 1.0) < 0.02
    up = tensors["model.layers.0.mlp.up_proj.weight"]
    assert abs(up.std() - STD) < 0.02 * STD + 0.015 * STD  # truncation takes 1.3 % off
    assert abs(up).max() <= np.float32(TRUNCATE_AT * STD)
    residual = tensors["model.layers.1.mlp.down_proj.weight"]
    assert abs(residual.std() - STD / 2) < 0.05 * STD / 2
    assert (tensors["model.norm.weight"] == 1).all()
    assert abs(tensors["lm_head.weight"].std() - 1 / 8) < 0.005


@pytest.mark.parametrize("change", [{}, {"tied": False}, {"qkv_bias": True}, {"qk_norm": True, "head_dim": 20}], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_layout_fills_the_flat_vector_without_gaps(change: dict[str, object], kv_heads: int) -> None:
    config = ModelConfig.from_mapping(small.MODEL | {"dim": 64, "heads": 8, "kv_heads": kv_heads} | change)
    offset = 0
    for place in parameter_layout(config):
        assert place.offset == offset
        offset += place.count
    assert offset == config.parameters


def test_biases_begin_at_0_and_norms_at_1() -> None:
    for switch in ("qkv_bias", "qk_norm"):
        config = ModelConfig.from_mapping(small.MODEL | {switch: True})
        values = np.empty(config.parameters, np.float32)
        initial_parameters(config, 3, values)
        for place in parameter_layout(config):
            part = values[place.offset : place.offset + place.count]
            expected = 0.0 if place.name.endswith("bias") else 1.0 if place.name.endswith("norm.weight") else None
            assert expected is None or (part == expected).all(), place.name
            assert expected is not None or part.std() > 0, place.name
