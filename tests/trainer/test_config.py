"""A section of the manifest is taken whole or refused, and reading it needs no torch."""

import subprocess
import sys

import pytest

from tests.trainer import small
from trainer.config import TrainingConfig


def test_missing_section_field_is_named() -> None:
    section = {key: value for key, value in small.SECTIONS["inner"].items() if key != "eps"}
    with pytest.raises(ValueError, match="eps"):
        TrainingConfig.from_sections(small.SECTIONS | {"inner": section})


def test_counting_parameters_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, trainer.config; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
