"""The parameter layout is gapless and agrees with the manifest."""

import pytest

from protocol.run.model_section import ModelSection
from tests.trainer import small
from trainer.models.llama.config import ModelConfig, parameter_layout


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
