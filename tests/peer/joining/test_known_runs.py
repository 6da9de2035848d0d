"""The runs that a data directory keeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from peer.cli import main
from peer.commands.runs import describe
from peer.errors import ExitCode
from peer.joining.known_runs import KnownRun, known_runs
from peer.joining.run_source import store_manifest
from peer.paths import run_dir
from protocol.run.manifest import demo_manifest
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN


def test_runs_are_listed_the_last_one_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--data-dir", str(tmp_path)]) == ExitCode.OK
    assert "`peer join` joins the demo run" in capsys.readouterr().out
    old, new = a_run(ANN), demo_manifest()
    for signed, at in ((old, 1000.0), (new, 2000.0)):
        store_manifest(signed, tmp_path)
        records = run_dir(tmp_path, signed.run) / "records"
        records.mkdir()
        for round in range(3):
            (records / f"{round:08}").write_bytes(bytes(10))
        (records / "00000001.corrupt").write_bytes(bytes(5))
        for path in run_dir(tmp_path, signed.run).rglob("*"):
            os.utime(path, (at, at))
    damaged = tmp_path / "runs" / ("ab" * 32)
    damaged.mkdir()
    (damaged / "manifest").write_bytes(b"torn")
    os.utime(damaged / "manifest", (500.0, 500.0))
    found = known_runs(tmp_path)
    assert [(each.name, each.rounds, each.last, each.running) for each in found] == [
        (new.manifest.name, 3, 2000.0, False),
        (old.manifest.name, 3, 1000.0, False),
        ("", 0, 500.0, False),
    ]
    assert found[0].disk_bytes == 35 + len(new.raw) and found[2].problem and not found[0].problem
    assert main(["runs", "--json", "--data-dir", str(tmp_path)]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in told["runs"]] == [new.run.hex(), old.run.hex(), "ab" * 32]


def test_a_person_sees_which_one_runs_and_which_is_damaged() -> None:
    lines = describe(
        [
            KnownRun("cd" * 32, "demo", 12, 3_000_000, 0.0, running=True),
            KnownRun("ab" * 32, "", 0, 10, 0.0, running=False, problem="torn"),
        ]
    )
    assert lines[1].split() == ["cdcdcdcdcdcd", "demo", "12", "3.0", "MB", "running"]
    assert "(damaged manifest)" in lines[2]
