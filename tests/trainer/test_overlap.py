"""The table of overlapped rounds in small: what is compared with what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import diloco_bench, overlap
from benchmarks.diloco_bench import Bench, Settings
from benchmarks.overlap import Case, Losses, losses_of

SMALL = Settings(steps=8, rounds=2, warm_steps=4, sequences=1, evaluation_tokens=1 << 10)


@pytest.fixture(scope="module")
def bench(one_thread: None) -> Bench:
    return Bench(SMALL)


@pytest.mark.slow
def test_a_plain_run_is_that_of_the_table_without_overlap(bench: Bench) -> None:
    [loss] = bench.run(diloco_bench.Case(0, 4, (8,), 4, "auto"))
    assert losses_of(bench, Case(0, 4)) == Losses(loss, loss)


def test_the_last_line_is_the_table_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Case] = []

    def run(bench: Bench, case: Case) -> Losses:
        ran.append(case)
        return Losses(2.02 if (case.fragments, case.codec) == (4, "int8") else 2.0, 2.0)

    monkeypatch.setattr(overlap, "losses_of", run)
    arguments = ["--seeds", "0", "--inner-steps", "40", "--json", "--save", str(tmp_path / "runs")]
    assert overlap.main(arguments) == overlap.main(arguments) == 1
    assert len(ran) == len(set(ran))
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    held = {(row["codec"], row["holds"]) for row in table["rows"] if row["bar_percent"] is not None}
    assert held == {("int8", False), ("int4", True)} and not table["holds"]
