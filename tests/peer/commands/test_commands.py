"""Commands that talk to a running peer, when there is one and when there is none."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from peer.cli import main
from peer.commands.pause import seconds_of
from peer.errors import ExitCode


def test_status_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert "No peer is running" in capsys.readouterr().out
    assert main(["status", "--json", "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert json.loads(capsys.readouterr().out)["running"] is False


@pytest.mark.parametrize("command", ["leave", "finish", "pause", "resume"])
def test_commands_to_nobody_are_a_sentence(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
    assert capsys.readouterr().err.startswith("peer: no peer is running")


def test_ledger_without_any_run_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--data-dir", str(tmp_path)]) == ExitCode.INPUT
    assert "join one" in capsys.readouterr().err


def test_times_of_a_pause() -> None:
    assert [seconds_of(text) for text in ("45s", "30m", "30", "2h", "1d")] == [45, 1800, 1800, 7200, 86_400]
    for text in ("", "0m", "-3m", "3w", "m"):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds_of(text)


def test_a_cap_has_its_old_name_too() -> None:
    from peer.cli import build_parser

    args = build_parser().parse_args(["join", "--up-limit", "8", "--max-down", "1MB"])
    assert (args.max_up, args.max_down) == (1e6, 1e6)
