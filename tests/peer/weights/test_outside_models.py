"""Folders of models that come from others: links, pipes, devices, sparse files and absurd sizes, for every command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.weights import folders
from peer.weights.folders import check_memory
from peer.weights.tokenizer_files import NAMES
from protocol.formats.model import ModelConfig
from tests.trainer.data.corpora import Shape, texts, write_corpus
from tests.trainer.made_tokenizer import ENDS, make_tokenizer
from tests.trainer.weights.models import SHAPE, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

SECRET = "THE-SECRET"
pytestmark = pytest.mark.usefixtures("tiny_blocks")

CONFIG = ModelConfig.from_mapping(SHAPE | {"tied": True, "context": 128})


@pytest.fixture(autouse=True)
def nothing_typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the commands an empty standard input."""
    with open(os.devnull) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield


def a_model(path: Path, seed: int = 0) -> Path:
    path.mkdir()
    write_folder(path, CONFIG, in_blocks(random_parameters(CONFIG, seed)), ExportFormat.BF16, context=64, eos=ENDS)
    make_tokenizer(path / "tokenizer.json")
    return path


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


KINDS: dict[str, Callable[[Path], object]] = {
    "secret": lambda path: path.symlink_to(path.parent.parent / "secret"),
    "environment": lambda path: path.symlink_to("/proc/self/environ"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": lambda path: os.mkfifo(path),
    "sparse": _sparse,
}


FILES = [*NAMES, "config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "secret") for name in FILES), *(("merges.txt", kind) for kind in KINDS), ("config.json", "pipe")],
)
def test_merge_copies_only_files_of_the_folder(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    place = a_model(tmp_path / "a") / name
    a_model(tmp_path / "b", 1)
    place.unlink(missing_ok=True)
    KINDS[kind](place)
    assert main(["merge", "a", "b", "merged"]) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert name in said and SECRET not in said and said.count("\n") == 1 and len(said) < 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "secret"]


COMMANDS = {
    "merge": ["merge", "a", "a", "merged"],
    "chat": ["chat", "a"],
    "eval": ["eval", "a", "--corpus", "corpus"],
    "run create": ["run", "create", "run.toml"],
    "tasks rate": ["tasks", "rate", "tasks.jsonl", "--model", "a", "--out", "rated.jsonl"],
}


TASK: dict[str, object] = {
    "problem_id": "1", "source": "tests", "task_type": "numeric_answer", "in_source_id": None, "prompt": "1+1",
    "gold_standard_solution": None, "verification_info": json.dumps({"ground_truth": 2, "tolerance": 0.5}), "metadata": {},
    "hf_dataset_name": "tests/tests",
}  # fmt: skip


def every_command(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('name = "begun"\n[model]\nfrom = "a"\n')
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASK))
    return main([*words, "--data-dir", str(tmp_path / "data")])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["secret", "device", "pipe"])
def test_every_command_refuses_a_tokenizer_that_is_no_file(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    place = a_model(tmp_path / "a") / "tokenizer.json"
    place.unlink()
    KINDS[kind](place)
    corpus(tmp_path)
    assert every_command(COMMANDS[command], tmp_path, monkeypatch) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert "tokenizer.json" in said and SECRET not in said and said.count("\n") == 1


GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 99}
TOKENIZERS: dict[str, Callable[[Path], object]] = {
    "no tokenizer": lambda path: path.write_text("{}"),
    "too many tokens": lambda path: _grow(path, 400),
    "part that makes texts longer": lambda path: _change(path, {"normalizer": GROWING}),
}


def _change(path: Path, fields: dict[str, object]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _grow(path: Path, tokens: int) -> None:
    made = json.loads(path.read_text())
    made["model"]["vocab"] |= {f"more{number}": 300 + number for number in range(tokens)}
    path.write_text(json.dumps(made))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_command_refuses_the_same_tokenizers(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    TOKENIZERS[kind](a_model(tmp_path / "a") / "tokenizer.json")
    corpus(tmp_path)
    assert every_command(COMMANDS[command], tmp_path, monkeypatch) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert "token" in said and said.count("\n") == 1
    assert not (tmp_path / "merged").exists() and not (tmp_path / "data" / "runs").exists()


def corpus(place: Path) -> None:
    write_corpus(place / "corpus", Shape(), {"web": texts(1, 900, 700)})


SIZES = [
    {"vocab_size": 1 << 40},
    {"hidden_size": 1 << 30},
    {"num_hidden_layers": 4},
    {"num_attention_heads": 1 << 40, "head_dim": 16},
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: ",".join(sizes))
def test_no_command_takes_memory_for_tensors_that_are_not_there(
    command: str,
    sizes: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = a_model(tmp_path / "a") / "config.json"
    (tmp_path / "a" / "tokenizer.json").unlink()
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    corpus(tmp_path)
    assert every_command(COMMANDS[command], tmp_path, monkeypatch) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert ("copy" in said or "use a model" in said) and said.count("\n") == 1 and len(said) < 2000


def test_a_model_larger_than_the_memory_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "available_memory", lambda: 1000)
    check_memory(1000, "cpu")
    with pytest.raises(PeerError, match="takes about 1.0 kB of memory and 1.0 kB are free; close"):
        check_memory(1001, "cpu")


def test_a_folder_names_a_bounded_number_of_end_tokens(tmp_path: Path) -> None:
    generation = a_model(tmp_path / "a") / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [*range(200_000)]}))
    assert len(WeightsFolder(tmp_path / "a").ends) <= 64 + len(ENDS)


def test_a_shard_of_an_index_that_is_a_link_is_refused(tmp_path: Path) -> None:
    model = a_model(tmp_path / "a")
    (model / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (model / "model-1.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    names = list(WeightsFolder(a_model(tmp_path / "b"))._stored)
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "model-1.safetensors")})
    )
    with pytest.raises(FolderError, match="model-1.safetensors: it is a link that leads out of the folder"):
        WeightsFolder(model)
