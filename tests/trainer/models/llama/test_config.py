"""The parameter layout is gapless and has as many parameters as the model."""

import numpy as np
import pytest

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer import small
from trainer.models.llama.initial import initial_parameters


def parameters(model: dict[str, object]) -> int:
    return ModelConfig.from_mapping(model).parameters


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_layout_fills_the_flat_vector_without_gaps(tied: bool, kv_heads: int) -> None:
    layout = parameter_layout(ModelConfig.from_mapping(small.MODEL | {"tied": tied, "kv_heads": kv_heads}))
    offset = 0
    for place in layout:
        assert place.offset == offset
        offset += place.count
    assert offset == parameters(small.MODEL | {"tied": tied, "kv_heads": kv_heads})


@pytest.mark.parametrize("change", [{"dim": 15}, {"kv_heads": 3}, {"layers": 0}, {"mystery": 1}])
def test_impossible_model_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parameters(small.MODEL | change)


@pytest.mark.parametrize(
    "change", [{"qkv_bias": True}, {"qk_norm": True}, {"head_dim": 12}, {"qk_norm": True, "head_dim": 20}]
)
def test_switches_of_the_families_are_counted_as_they_are_laid_out(change: dict[str, object]) -> None:
    config = ModelConfig.from_mapping(small.MODEL | {"dim": 64, "heads": 8, "kv_heads": 2} | change)
    last = parameter_layout(config)[-1]
    assert config.parameters == last.offset + last.count


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
