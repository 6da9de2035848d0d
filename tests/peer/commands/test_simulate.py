"""`peer simulate`, from a run file to its table, drawing and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode
from peer.resources.pace import keep_pace

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


def test_it_says_when_the_run_ends_in_days_and_years_and_at_whose_speed(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text("total_tokens = 8_640_000_000_000\n" + RUN)
    text = said(capsys, run_file, "--peers", "1", "--speed", "100k")
    assert "1 peer: 100.0 k tokens/s, " in text, "a speed that somebody said is not assumed"
    assert "The run ends after 8.6 T tokens: in 1,489 days (4.1 years), at 67.2 k tokens/s of all" in text
    assert "tokens/s of all these peers together." in text
    text = said(capsys, run_file, "--peers", "2")
    assert "50.0 k tokens/s each (assumed: a model this small; `peer bench` measures it)" in text
    run_file.write_text("total_tokens = 1_000\n" + RUN.replace("dim = 64", "dim = 1024"))
    text = said(capsys, run_file, "--peers", "2")
    assert "tokens/s each (assumed: 1 TFLOP/s; `peer bench` measures it)" in text and "0 seconds" not in text
    keep_pace(run_file.parent / "data", 1000.0, 1_000_000, "`peer bench`")
    text = said(capsys, run_file, "--peers", "2")
    assert "tokens/s each (measured on this computer on " in text and " by `peer bench`), " in text
    assert " by `peer bench`" not in said(capsys, run_file, "--peers", "2", "--speed", "5k")
    run_file.write_text("total_rounds = 100\n" + RUN)
    first = json.loads(said(capsys, run_file, "--json"))["settings"][0]
    assert first["end_s"] == pytest.approx(100 * first["round_s"])


@pytest.mark.slow
def test_ten_thousand_peers_have_as_many_members_as_max_members_and_the_remedies_are_said(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text(RUN + "max_members = 128\n")
    text = said(capsys, run_file, "--peers", "10000")
    assert "rounds whose 128 places (max_members) are taken" in text and "raise max_members (to 256 at most)" in text
    first = json.loads(said(capsys, run_file, "--json", "--peers", "10000"))["settings"][0]
    assert first["members"] == 128
    assert first["lost"] == 0 and first["surplus"] / first["utilisation"] == pytest.approx(1 - 128 / 10_000, rel=1e-3)


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


def test_a_run_that_needs_more_members_than_there_are(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file.write_text(RUN + "min_members = 3\n")
    assert main(["simulate", str(run_file), "--peers", "2", "--data-dir", str(run_file.parent / "data")]) == ExitCode.INPUT
    assert "lower rounds.min_members" in capsys.readouterr().err


def test_rounds_that_learn_from_rollouts_are_not_predicted(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file.write_text('name = "rollouts"\n[model]\ndim = 64\nlayers = 2\n[rl]\nenvironment = "sort"\n')
    assert main(["simulate", str(run_file), "--data-dir", str(run_file.parent / "data")]) == ExitCode.INPUT
    assert "without [rl]" in capsys.readouterr().err


def test_data_that_are_read_only_so_often_end_the_run_before_its_total(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_file.parent / "book.txt").write_text("a few words in a line\n" * 2000)
    data = '[data]\nfrom = "book.txt"\nsequence_length = 64\nepochs = 2\n'
    run_file.write_text(f'name = "planned"\ntotal_rounds = 3000\n[model]\ndim = 64\nlayers = 2\n{data}')
    text = said(capsys, run_file, "--peers", "2")
    assert re.search("ends after 8[0-9.]* k tokens, when its data have been read as often as data.epochs says: in", text)
    (told,) = {each["end_s"] for each in json.loads(said(capsys, run_file, "--peers", "2", "--json"))["settings"][:1]}
    assert told < 60
