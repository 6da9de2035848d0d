"""`peer export` as a person types it: whole folders, exact numbers, and sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.cli import main
from peer.errors import ExitCode
from peer.joining.run_source import store_manifest
from peer.paths import run_dir
from peer.weights import folders
from protocol.chain.results import CheckpointName
from protocol.run.manifest import SignedManifest, demo_manifest
from tests.protocol.chains import a_replica, a_run, grow
from tests.protocol.peers import ANN
from tests.test_imports import loaded_after
from tests.trainer.weights.models import our_logits, tokens_for
from trainer.models.llama.initial import initial_parameters
from trainer.weights.folder import WeightsFolder


def read(folder: Path) -> np.ndarray:
    return np.concatenate(list(WeightsFolder(folder).values()))


def export(data: Path, *words: str) -> int:
    return main(["export", *words, "--data-dir", str(data)])


def keep(signed: SignedManifest, data: Path) -> None:
    data.mkdir(exist_ok=True)
    store_manifest(signed, data)


def test_the_demo_run_is_exported_before_it_was_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(demo_manifest(), tmp_path / "data")
    assert export(tmp_path / "data", str(tmp_path / "model"), "--dtype", "fp32") == ExitCode.OK
    out = capsys.readouterr().out
    assert "rounds      0" in out and "The folder has no tokenizer: the run reads bytes" in out
    found = WeightsFolder(tmp_path / "model")
    expected = np.empty(demo_manifest().manifest.parameters, np.float32)
    initial_parameters(found.config, demo_manifest().manifest.seed, expected)
    assert np.array_equal(read(tmp_path / "model"), expected)
    assert found.facts["context"] == 256
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "generation_config.json",
        "manyhands.json",
        "model.safetensors",
    ]
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~folders.umask()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_transformers_loads_the_demo_run_with_the_same_logits(dtype: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    keep(demo_manifest(), tmp_path / "data")
    assert export(tmp_path / "data", str(tmp_path / "model"), "--dtype", dtype) == ExitCode.OK
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    found = WeightsFolder(tmp_path / "model")
    ours = our_logits(found.config, read(tmp_path / "model"))
    with torch.no_grad():
        torch.testing.assert_close(ours, model(tokens_for(found.config)).logits, rtol=0, atol=1e-4)
    assert model.generate(tokens_for(found.config)[:1, :8], max_new_tokens=4, do_sample=False).shape[1] <= 12


def test_the_tip_and_a_checkpoint_are_exported_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed = a_run(ANN)
    keep(signed, tmp_path)
    replica = a_replica(signed, run_dir(tmp_path, signed.run))
    states: dict[str, np.ndarray] = {}
    for rounds in (2, 3):
        grow(replica, rounds - replica.state.rounds, [ANN], voters=[ANN])
        states[str(rounds)] = np.frombuffer(replica.state.theta, np.float32).copy()
        if rounds == 2:
            leaves = replica.state.leaves()
            replica.store.checkpoints.write(CheckpointName(2, replica.history.tip), leaves, replica.state.view)
    replica.state.close()
    assert export(tmp_path, str(tmp_path / "tip"), "--dtype", "fp32") == ExitCode.OK
    assert (
        export(tmp_path, signed.run.hex()[:8], str(tmp_path / "old"), "--checkpoint", "2", "--dtype", "fp32") == ExitCode.OK
    )
    assert np.array_equal(read(tmp_path / "tip"), states["3"]) and np.array_equal(read(tmp_path / "old"), states["2"])
    assert export(tmp_path, str(tmp_path / "none"), "--checkpoint", "1") == ExitCode.INPUT
    assert "there are some after 2 rounds" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_what_stands_in_the_way_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(demo_manifest(), tmp_path / "data")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    cases = {
        (str(tmp_path / "full"),): "exists already",
        (str(tmp_path / "full" / "mine"),): "exists already",
        (str(tmp_path / "absent" / "model"),): "there is no folder",
        ("00000000", str(tmp_path / "model")): "is not a run in",
    }
    for words, part in cases.items():
        assert export(tmp_path / "data", *words) == ExitCode.INPUT
        assert part in (said := capsys.readouterr().err) and said.startswith("peer: ") and said.count("\n") == 1
    assert export(tmp_path / "nowhere", str(tmp_path / "model")) == ExitCode.INPUT
    assert "join one with `peer join`" in capsys.readouterr().err


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(demo_manifest(), tmp_path / "data")

    def fail(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    assert export(tmp_path / "data", str(tmp_path / "model")) == ExitCode.RESOURCES
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.slow
def test_an_export_needs_no_torch() -> None:
    assert "torch" not in loaded_after("import peer.joining.run_source, peer.weights.folders, peer.weights.brought")
