"""A section of the manifest is taken whole or refused, and reading it needs no torch."""

import subprocess
import sys

import pytest

from tests.trainer import small
from trainer.config import TrainingConfig


def test_wrong_fields_of_a_section_are_named_in_one_line() -> None:
    section = small.SECTIONS["inner"] | {"epsilon": 1e-8, "lr": 0.0}
    with pytest.raises(ValueError, match=r"^InnerConfig: lr is 0.0; it must be more than 0; epsilon is not a field$"):
        TrainingConfig.from_sections(small.SECTIONS | {"inner": section})


def test_counting_parameters_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, trainer.config; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
