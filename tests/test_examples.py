"""Every example run file makes a run, with all that it brings along."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.cli import main
from peer.commands import diagnosis
from peer.joining.run_source import create_run
from peer.measurements.speeds import SHAPES, sized
from protocol.formats.model import ModelConfig
from protocol.run.run_file import sketch_run_file
from tests.protocol.peers import ME
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from tests.trainer.weights.models import QWEN2, in_blocks, random_parameters
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

EXAMPLES = Path(__file__).parent.parent / "examples"
MODELS, TOKENIZERS = ("Qwen2.5-0.5B-Instruct", "Qwen3-8B"), ("TinyLlama_v1.1", "INTELLECT-1")
"""Folders that examples begin with; tiny ones stand in for them."""
DOCUMENTS = 1000
"""Documents of a data set of Hugging Face, for which others stand in."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for path in (*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*.jsonl")):
        shutil.copy(path, folder)
    config = ModelConfig.from_mapping(QWEN2 | {"tied": True, "vocab": VOCAB})
    for name in MODELS:
        (folder / name).mkdir()
        write_folder(folder / name, config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=64, eos=None)
        make_tokenizer(folder / name / "tokenizer.json")
    for name in TOKENIZERS:
        (folder / name).mkdir()
        make_tokenizer(folder / name / "tokenizer.json")
    for name in (*MODELS, *TOKENIZERS):
        (folder / name / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    return folder


@pytest.fixture
def data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-in for the library `datasets`, in which each data set has other documents."""

    def load_dataset(path: str, name: str | None, *, split: str, streaming: bool) -> Iterator[Any]:
        assert name is None and split == "train" and streaming
        return iter([{"text": f"document {number} of {path} " * 40} for number in range(DOCUMENTS)])

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("peer.corpora.build.cores", lambda: 1)  # other processes take seconds to start


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
@pytest.mark.usefixtures("data_sets")
def test_an_example_makes_a_run(name: str, place: Path) -> None:
    manifest = create_run(place / name, place / f"data of {name}").manifest
    assert (manifest.rl is not None) == name.startswith("rl-")
    assert (manifest.data.format == "chat") == (name in ("chat.toml", "friends-8b.toml"))
    assert (manifest.adapter is not None) == ("[adapter]" in COMMENTS[name])
    if name == "rl-qwen.toml":
        assert manifest.tokenizer is not None and manifest.tokenizer.template == "chatml"
    if name == "intellect-1.toml":
        shares = {source.name: source.weight for source in manifest.data.sources}
        assert shares == {"fineweb-edu": 55, "fineweb": 10, "code": 20, "dclm": 10, "math": 5}
        assert [phase.weights for phase in manifest.data.phases] == [[80, 10, 10, 0, 0]]


def test_the_list_of_examples_has_all() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.toml"):
        assert f"[{path.name}]({path.name})" in listed


COMMENTS = {path.name: path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))}


@pytest.mark.parametrize("name", COMMENTS)
def test_the_commands_in_an_example_save_where_it_looks(name: str) -> None:
    """They are all typed in one folder, above that of the examples, as the paths of the others are."""
    text = COMMENTS[name]
    for folder in re.findall(r"--local-dir (\S+)", text):
        assert folder.startswith("examples/") and f'from = "{folder.removeprefix("examples/")}"' in text
    commands = re.findall(r"^#   ((?:hf|peer) .*)$", text, re.MULTILINE)
    assert ("folder above this one" in text) == bool(commands)
    assert all("examples/" in command for command in commands if "INVITATION --role" not in command)


@pytest.mark.parametrize(
    "name", [name for name, text in COMMENTS.items() if not re.search(r"^\[(rl|adapter)\]", text, re.M)]
)
def test_the_comment_of_an_example_tells_its_size_and_what_it_reads(name: str) -> None:
    manifest, head = sketch_run_file(EXAMPLES / name, ME.peer_id), COMMENTS[name].partition("\nname =")[0]
    for number, unit in re.findall(r"([0-9.]+)([MB]) parameters", head):
        assert float(number) * {"M": 1e6, "B": 1e9}[unit] == pytest.approx(manifest.parameters, rel=0.03)
    data = tomllib.loads(COMMENTS[name]).get("data", {})
    assert ("source of this program" in head) == ("from" not in data and "sources" not in data)


SIZES = {"llama-150m": 150e6, "llama-1b": 1e9, "llama-8b": 8e9, "intellect-1": 10e9}
"""Named sizes; the smaller two are counted without embedding and output weights."""


@pytest.mark.parametrize("name", SIZES)
def test_a_named_size_says_what_it_needs_before_its_data_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / f"{name}.toml"
    assert main(["run", "show", "--all", str(path), "--data-dir", str(tmp_path)]) == 0
    said = dict(line.removeprefix("# ").split("  ", 1) for line in capsys.readouterr().out.splitlines()[:5])
    model = sketch_run_file(path, ME.peer_id).model
    ends = 2 * model.vocab * model.dim if SIZES[name] < 8e9 else 0
    assert int(said["model"].split()[0]) - ends == pytest.approx(SIZES[name], rel=0.15)
    assert "of each of 8 of 80 GB" in said["GPUs"] and "too much" not in said["GPUs"]
    assert ("fits no single one" in said["GPUs"]) == (SIZES[name] >= 8e9)


@pytest.mark.parametrize(("name", "size"), zip(SIZES, SHAPES, strict=True))
def test_a_named_size_is_measured_as_the_example_trains_it(name: str, size: str) -> None:
    example, measured = sketch_run_file(EXAMPLES / f"{name}.toml", ME.peer_id), sized(size)
    assert measured.model == example.model and measured.data.sequence_length == example.data.sequence_length
    assert size in diagnosis.SIZES
