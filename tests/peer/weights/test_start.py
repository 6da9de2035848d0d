"""A run that begins with a folder: what its manifest says, and what the organiser's data directory keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import create_run, find_run
from peer.paths import run_dir
from peer.weights.brought import FolderStart
from protocol.chain.outer_state import OuterState
from protocol.chain.stored_run import StoredRun
from protocol.formats.model import ModelConfig
from protocol.run.manifest import SignedManifest
from tests.trainer.made_tokenizer import make_tokenizer
from tests.trainer.weights.models import LLAMA3, QWEN2, QWEN3, in_blocks, random_parameters
from trainer.data.tokens import checked_file
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

SHAPES = {"llama3": LLAMA3 | {"tied": True}, "qwen2": QWEN2 | {"tied": False}, "qwen3": QWEN3 | {"tied": True}}


def a_folder(path: Path, name: str = "qwen2", seed: int = 0, form: ExportFormat = ExportFormat.FP32) -> np.ndarray:
    """A model in a folder; its parameters."""
    config = ModelConfig.from_mapping(SHAPES[name])
    values = random_parameters(config, seed)
    path.mkdir()
    write_folder(path, config, in_blocks(values), form, context=99, eos=None)
    return np.concatenate(list(WeightsFolder(path).values()))


def a_run_file(folder: Path, text: str = "") -> Path:
    path = folder / "run.toml"
    path.write_text(f'name = "begun"\ncheckpoint_chunk_bytes = 8192\n[model]\nfrom = "base"\n{text}')
    return path


def state_of(signed: SignedManifest, values: np.ndarray) -> OuterState:
    state = OuterState(signed.manifest)
    np.frombuffer(state.theta, np.float32)[:] = values
    return state


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("form", ExportFormat)
def test_the_manifest_names_the_state_that_the_weights_make(name: str, form: ExportFormat, tmp_path: Path) -> None:
    values = a_folder(tmp_path / "base", name, form=form)
    data = tmp_path / "data"
    signed = create_run(a_run_file(tmp_path), data)
    state = state_of(signed, values)
    assert signed.manifest.genesis == state.digest()
    stored = StoredRun(signed, run_dir(data, signed.run))
    start = stored.newest().start
    assert start is not None and bytes(start) == bytes(state.view)
    state.close()
    exported = tmp_path / "out"
    assert main(["export", str(exported), "--dtype", "fp32", "--data-dir", str(data)]) == ExitCode.OK
    assert np.array_equal(np.concatenate(list(WeightsFolder(exported).values())), values), "in and out, exactly"
    assert WeightsFolder(exported).facts == WeightsFolder(tmp_path / "base").facts


def test_joining_a_run_file_keeps_its_weights_and_looking_at_it_keeps_nothing(tmp_path: Path) -> None:
    a_folder(tmp_path / "base")
    data = tmp_path / "data"
    shown = find_run(str(a_run_file(tmp_path)), data)
    assert isinstance(shown, SignedManifest) and not run_dir(data, shown.run).exists()
    joined = find_run(str(tmp_path / "run.toml"), data, founding=True)
    assert joined == shown
    (checkpoint, _) = sorted((run_dir(data, shown.run) / "checkpoints").iterdir())
    before = checkpoint.stat()
    assert find_run(str(tmp_path / "run.toml"), data, founding=True) == shown
    assert checkpoint.stat().st_mtime_ns == before.st_mtime_ns, "it is there already"
    assert run_dir(data, shown.run).stat().st_mode & 0o77 == 0


def test_export_has_the_tokenizer_of_the_run_and_no_other_file_of_the_folder(tmp_path: Path) -> None:
    a_folder(tmp_path / "base")
    for name in ("tokenizer_config.json", "generation_config.json", "secret.txt"):
        (tmp_path / "base" / name).write_text(f'{{"from": "{name}"}}')
    make_tokenizer(tmp_path / "base" / "tokenizer.json")
    data = tmp_path / "data"
    create_run(a_run_file(tmp_path, "[tokenizer]\nends = [5]\n"), data)
    assert main(["export", str(tmp_path / "out"), "--data-dir", str(data)]) == ExitCode.OK
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == checked_file(tmp_path / "base" / "tokenizer.json", [5])
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings == {"clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}, "5 is a letter"
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": None, "do_sample": True, "eos_token_id": 5, "pad_token_id": None}
    assert not (tmp_path / "out" / "secret.txt").exists()


def test_weights_that_change_while_they_are_read_begin_nothing(tmp_path: Path) -> None:
    a_folder(tmp_path / "base")
    data, file = tmp_path / "data", a_run_file(tmp_path)
    signed = find_run(str(file), data)
    assert isinstance(signed, SignedManifest)
    start = FolderStart(tmp_path / "base")
    start.digest(signed.manifest.checkpoint_chunk_bytes)
    weights = tmp_path / "base" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4:] = np.float32(7).tobytes()
    weights.write_bytes(content)
    for changed in (start, FolderStart(tmp_path / "base")):
        with pytest.raises(PeerError, match="has changed while it was read"):
            changed.keep(signed, data)
    assert not [path for path in (run_dir(data, signed.run) / "checkpoints").iterdir() if path.name.startswith("0")]


def test_what_a_run_file_says_beside_it_is_still_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(tmp_path / "base")
    path = a_run_file(tmp_path, "dim = 64\nlayers = 3")
    assert main(["run", "create", str(path), "--data-dir", str(tmp_path / "data")]) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert "[model] from defines the whole model; remove dim, layers" in said and said.count("\n") == 1


def test_a_model_beyond_the_ranges_of_a_run_is_refused_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_folder(tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    described = json.loads(config.read_text()) | {"max_position_embeddings": 300_000_000_000}
    config.write_text(json.dumps(described))
    assert main(["run", "show", str(a_run_file(tmp_path)), "--data-dir", str(tmp_path / "data")]) == ExitCode.INPUT
    assert "config.json: context is 300000000000; it must be at most 16777216; use another" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["tokenizer.model"], ["vocab.json", "merges.txt"],
        ["tokenizer.model", "tokenizer_config.json"],
    ],
)  # fmt: skip
def test_a_tokenizer_in_another_form_is_named_and_refused(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_folder(tmp_path / "base")
    for name in names:
        (tmp_path / "base" / name).write_text("{}")
    assert main(["run", "create", str(a_run_file(tmp_path)), "--data-dir", str(tmp_path / "data")]) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert all(name in said for name in names if name != "tokenizer_config.json")
    assert "save_pretrained" in said and said.count("\n") == 1
    make_tokenizer(tmp_path / "tokenizer.json")
    given = a_run_file(tmp_path, '[tokenizer]\nfrom = "tokenizer.json"\nends = [5]\n')
    assert main(["run", "create", str(given), "--data-dir", str(tmp_path / "data")]) == ExitCode.OK
