"""`peer simulate`, from a run file to its table, drawing and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode

RUN = 'name = "planned"\n[model]\ndim = 64\nlayers = 2\n[data]\nfrom = "no such folder"\n[rounds]\ninner_steps = 30\n'


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def said(capsys: pytest.CaptureFixture[str], run_file: Path, *options: str) -> str:
    assert main(["simulate", str(run_file), *options, "--data-dir", str(run_file.parent / "data")]) == ExitCode.OK
    return capsys.readouterr().out


def test_it_prints_a_table_a_proposal_and_drawings(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    text = said(capsys, run_file, "--peers", "3", "--speed", "2000..20000")
    assert text.startswith("3 peers: 2.0 k to 20.0 k tokens/s each, 20.0 Mbit/s up")
    for subject in ("run file", "proposed", "inner steps (H)", "tokens a day", "memory", "disk", "The proposal: "):
        assert subject in text
    drawn = [line for line in text.splitlines() if line.startswith(("fastest", "median", "slowest"))]
    assert len(drawn) in (3, 6) and all(len(line) <= 72 for line in drawn)


def test_the_json_has_both_settings(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(said(capsys, run_file, "--json", "--up", "1mbit"))
    first, second = told["settings"]
    assert (first["name"], first["inner_steps"], second["name"]) == ("run file", 30, "proposed")
    assert {"round_s", "exchange_s", "utilisation", "up_day", "tokens_a_day"} <= first.keys()
    assert told["run"]["name"] == "planned" and told["peers"][0]["count"] == 8 and told["needs"]["disk"] > 0


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--peers", "many"], "give a number such as 8, or the path"),
        (["--online", "nights"], "as 8h/16h"),
        (["--speed", "-1"], "as 5000 or 2000..20000"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str], remedy: str, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option, value = options
    assert main(["simulate", str(run_file), f"{option}={value}", "--data-dir", str(run_file.parent / "data")]) != ExitCode.OK
    error = capsys.readouterr().err
    assert error.startswith("peer: ") and error.count("\n") == 1 and remedy in error
