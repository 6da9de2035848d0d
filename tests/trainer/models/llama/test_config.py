"""The parameter layout is gapless and agrees with the manifest."""

from dataclasses import MISSING, fields

import numpy as np
import pytest

from protocol.run.sections import ModelSection
from tests.trainer import small
from trainer.models.llama.config import ModelConfig, parameter_layout
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


@pytest.mark.parametrize("tied", [True, False])
def test_manifest_and_trainer_count_the_same_parameters(tied: bool) -> None:
    section = ModelSection(dim=64, heads=8, kv_heads=4, ffn=160, layers=3, tied=tied)
    assert parameters(section.model_dump()) == section.parameters


@pytest.mark.parametrize("change", [{"dim": 15}, {"kv_heads": 3}, {"layers": 0}, {"mystery": 1}])
def test_impossible_model_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parameters(small.MODEL | change)


def test_manifest_and_trainer_have_the_same_facts_with_the_same_defaults() -> None:
    known = {field.name: field.default for field in fields(ModelConfig)}
    assert set(known) == set(ModelSection.model_fields)
    later = {name: field.default for name, field in ModelSection.model_fields.items() if name in ModelSection.LATER}
    assert later == {name: known[name] for name in later} == {k: v for k, v in known.items() if v is not MISSING}


@pytest.mark.parametrize(
    "change", [{"qkv_bias": True}, {"qk_norm": True}, {"head_dim": 12}, {"qk_norm": True, "head_dim": 20}]
)
def test_switches_of_the_families_are_counted_alike(change: dict[str, object]) -> None:
    section = ModelSection.model_validate({"dim": 64, "heads": 8, "kv_heads": 2, "layers": 3, **change})
    assert parameters(section.model_dump()) == section.parameters != ModelSection(dim=64, heads=8, layers=3).parameters


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
