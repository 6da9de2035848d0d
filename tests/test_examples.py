"""Every example run file makes a run, with all that it brings along."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peer.joining.run_source import create_run
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from tests.trainer.weights.models import QWEN2, in_blocks, random_parameters
from trainer.models.llama.config import ModelConfig
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

EXAMPLES = Path(__file__).parent.parent / "examples"
MODEL = "Qwen2.5-0.5B-Instruct"
"""The folder that an example begins with; a tiny one of the same family stands in for it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for path in (*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*.jsonl")):
        shutil.copy(path, folder)
    config = ModelConfig.from_mapping(QWEN2 | {"tied": True, "vocab": VOCAB})
    (folder / MODEL).mkdir()
    write_folder(folder / MODEL, config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=64, eos=None)
    make_tokenizer(folder / MODEL / "tokenizer.json")
    (folder / MODEL / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    return folder


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_an_example_makes_a_run(name: str, place: Path) -> None:
    manifest = create_run(place / name, place / f"data of {name}").manifest
    assert (manifest.rl is not None) == name.startswith("rl-")
    assert (manifest.data.format == "chat") == (name == "chat.toml")
    if name == "rl-qwen.toml":
        assert manifest.tokenizer is not None and manifest.tokenizer.template == "chatml"


def test_the_list_of_examples_has_all() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.toml"):
        assert f"[{path.name}]({path.name})" in listed
