"""`peer merge` as a person types it: a folder as good as those it was made of, and sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from peer.cli import main
from peer.errors import ExitCode
from peer.weights import folders
from protocol.formats.model import ModelConfig
from tests.trainer.weights.models import F32, SHAPE, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.merging import Linear, Rule, Slerp, Ties, merged
from trainer.weights.safetensors_file import ExportFormat

CONFIG = ModelConfig.from_mapping(SHAPE | {"tied": True, "context": 128})


def model(path: Path, seed: int, config: ModelConfig = CONFIG) -> str:
    path.mkdir()
    write_folder(path, config, in_blocks(random_parameters(config, seed)), ExportFormat.FP32, context=64, eos=7)
    return str(path)


def read(folder: Path) -> F32:
    return np.concatenate(list(WeightsFolder(folder).values()))


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--weights", "1,3"], Linear((1, 3))),
        (["--rule", "slerp", "--t", "0.3"], Slerp(0.3)),
        (["--rule", "ties", "--base", "base", "--density", "0.5", "--scale", "0.7"], Ties((1, 1), 0.5, 0.7)),
    ],
)
def test_models_are_merged_by_the_rule(
    words: list[str], rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    models = [model(tmp_path / name, seed) for seed, name in enumerate(("a", "b", "base"))]
    assert main(["merge", "a", "b", "merged", "--dtype", "fp32", *words]) == ExitCode.OK
    out = capsys.readouterr().out
    assert f"parameters  {CONFIG.parameters} " in out and "has no tokenizer" in out
    sources = [models[2], *models[:2]] if "ties" in words else models[:2]
    wanted = np.concatenate(list(merged([WeightsFolder(Path(source)) for source in sources], rule)))
    assert np.array_equal(read(tmp_path / "merged"), wanted)
    described = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert (described["eos_token_id"], described["max_position_embeddings"]) == (7, 128)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "base", "merged"]


def test_what_cannot_be_merged_is_a_sentence_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = model(tmp_path / "a", 0), model(tmp_path / "b", 1)
    wide = model(tmp_path / "wide", 2, ModelConfig.from_mapping(SHAPE | {"tied": True, "ffn": 80}))
    target, before = str(tmp_path / "merged"), sorted(tmp_path.iterdir())
    cases: list[tuple[list[str], ExitCode, str]] = [
        ([one, target], ExitCode.USAGE, "linear takes two models or more"),
        ([one, other, wide, target, "--rule", "slerp"], ExitCode.USAGE, "slerp takes two models; give"),
        ([one, other, target, "--rule", "slerp", "--t", "2"], ExitCode.USAGE, "slerp takes a share from 0"),
        ([one, other, target, "--weights", "1,2,3"], ExitCode.USAGE, "3 weights are given for 2 models"),
        ([one, other, target, "--weights=0,-1"], ExitCode.USAGE, "the weights of a merge"),
        ([one, other, target, "--rule", "ties"], ExitCode.USAGE, "the rule ties starts from a base"),
        ([one, other, target, "--base", one], ExitCode.USAGE, "linear has no --base, which belongs to ties; leave it out"),
        ([one, other, target, "--t", "0.3"], ExitCode.USAGE, "linear has no --t, which belongs to slerp"),
        ([one, other, target, "--rule", "slerp", "--weights", "1,2"], ExitCode.USAGE, "which belongs to linear and ties"),
        ([one, wide, target], ExitCode.INPUT, "merge only models of the same shape"),
        ([one, str(tmp_path / "absent"), target], ExitCode.INPUT, "config.json"),
        ([one, other, wide], ExitCode.INPUT, "exists already"),
    ]
    for words, code, part in cases:
        assert main(["merge", *words]) == code
        said = capsys.readouterr().err
        assert part in said and said.startswith("peer: ") and said.count("\n") == 1, said
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = model(tmp_path / "a", 0), model(tmp_path / "b", 1)
    monkeypatch.setattr(folders, "ROOM", 1e15)
    assert main(["merge", one, other, str(tmp_path / "merged")]) == ExitCode.RESOURCES
    assert "make room" in capsys.readouterr().err and not (tmp_path / "merged").exists()
