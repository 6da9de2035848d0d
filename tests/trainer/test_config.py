"""The parameter layout is gapless, agrees with the manifest, and needs no torch."""

import subprocess
import sys

import pytest

from protocol.run.manifest import ModelSection
from tests.trainer import small
from trainer.config import ModelConfig, TrainingConfig, parameter_count, parameter_layout


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_layout_fills_the_flat_vector_without_gaps(tied: bool, kv_heads: int) -> None:
    layout = parameter_layout(ModelConfig.from_mapping(small.MODEL | {"tied": tied, "kv_heads": kv_heads}))
    offset = 0
    for place in layout:
        assert place.offset == offset
        offset += place.count
    assert offset == parameter_count(small.MODEL | {"tied": tied, "kv_heads": kv_heads})


@pytest.mark.parametrize("tied", [True, False])
def test_manifest_and_trainer_count_the_same_parameters(tied: bool) -> None:
    section = ModelSection(dim=64, heads=8, kv_heads=4, ffn=160, layers=3, tied=tied)
    assert parameter_count(section.model_dump()) == section.parameters


@pytest.mark.parametrize("change", [{"dim": 15}, {"kv_heads": 3}, {"layers": 0}, {"mystery": 1}])
def test_impossible_model_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parameter_count(small.MODEL | change)


def test_missing_section_field_is_named() -> None:
    section = {key: value for key, value in small.SECTIONS["inner"].items() if key != "eps"}
    with pytest.raises(ValueError, match="eps"):
        TrainingConfig.from_sections(small.SECTIONS | {"inner": section})


def test_counting_parameters_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, trainer.config; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
