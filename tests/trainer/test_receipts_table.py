"""The table of receipts in small: honest members are alike to their auditors, cheats are not, and finished runs are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import receipts
from benchmarks.adapters import Texts
from benchmarks.receipts_runs import Bench, Case, Outcome, run

TINY = Case(rows=2, steps=4, warm=2, members=3, rounds=1)


@pytest.fixture(scope="module")
def bench(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    texts = tmp_path_factory.mktemp("texts")
    for number in range(40):
        lines = [f"def function_{number}_{line}(value: int) -> int:\n    return value * {line}\n" for line in range(40)]
        (texts / f"{number}.py").write_text("\n\n".join(lines))
    return Bench(tmp_path_factory.mktemp("bench"), Texts(texts, ".py"))


def mean(outcome: Outcome, *, honest: bool) -> float:
    return float(np.nanmean([each.rows for each in outcome.contributions if each.honest is honest]))


@pytest.mark.parametrize("change", [{}, {"fragments": 2, "delay": 1}])
def test_honest_members_are_alike_to_their_auditors(bench: Bench, change: dict[str, Any]) -> None:
    outcome = run(bench, replace(TINY, **change))
    assert mean(outcome, honest=True) > 0.9
    assert {each.round for each in outcome.contributions} == ({1} if "fragments" not in change else {2, 3})


@pytest.mark.slow
@pytest.mark.parametrize("cheat", ["zeros", "copy", "stale", "own data"])
def test_cheats_that_compute_no_leased_row_are_not(bench: Bench, cheat: str) -> None:
    outcome = run(bench, replace(TINY, cheat=cheat, hostile=1))
    assert mean(outcome, honest=True) > 0.9 > mean(outcome, honest=False) + 0.1


def test_the_last_line_is_the_table_as_json(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Case] = []

    def small(_: Bench, case: Case) -> Outcome:
        ran.append(case)
        return run(bench, replace(TINY, cheat=case.cheat, hostile=case.hostile))

    monkeypatch.setattr(receipts, "run", small)
    monkeypatch.setattr(receipts, "DRAWS", 50)
    monkeypatch.setattr(receipts, "SCORE_DRAWS", 5)
    arguments = ["--groups", "base,cheats", "--cheats", "zeros", "--json", "--save", str(tmp_path / "runs")]
    assert receipts.main(arguments) == receipts.main(arguments) == 0
    assert len(ran) == 2, "finished runs are kept"
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not any(table["false"].values()) and [row["case"]["cheat"] for row in table["rows"]] == ["", "zeros"]
    assert table["rows"][1]["cheats"]["mean"]["found"] == 1
