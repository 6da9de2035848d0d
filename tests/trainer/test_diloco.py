"""The table of DiLoCo against data-parallel in small: what is compared with what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import diloco
from benchmarks.diloco import Plan
from benchmarks.diloco_bench import Bench, Case, Settings

SMALL = Settings(steps=6, rounds=2, warm_steps=4, sequences=1, evaluation_tokens=1 << 10)


@pytest.fixture(scope="module")
def bench(one_thread: None) -> Bench:
    return Bench(SMALL)


@pytest.mark.slow
def test_one_member_is_one_peer_alone_whatever_h_is(bench: Bench) -> None:
    [alone] = bench.run(Case(0, 1, (6,)))
    for inner_steps in (2, 3, 6):
        assert bench.run(Case(0, 1, (6,), inner_steps, "auto")) == [pytest.approx(alone, rel=1e-3)]


def test_rounds_of_500_steps_in_int8_send_2000_times_less_than_data_parallel_training() -> None:
    plan = Plan(Settings(), [0], [500])
    losses = {case: [1.0] * len(case.steps) for case in plan.cases({})}
    assert plan.row(losses, 4, 500).fewer_bytes == pytest.approx(1967, abs=1)


def test_the_last_line_is_the_table_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Case] = []

    def run(self: Bench, case: Case) -> list[float]:
        ran.append(case)
        return [2.02 if case.outer and case.members == 2 else 2.0 for _ in case.steps]

    monkeypatch.setattr(Bench, "run", run)
    arguments = ["--quick", "--json", "--save", str(tmp_path / "runs")]
    assert diloco.main(arguments) == diloco.main(arguments) == 0
    assert len(ran) == len(set(ran)) == 16
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {(row["members"], row["holds"]) for row in table["rows"]} == {
        ("1", True),
        ("2", False),
        ("4", True),
        ("8", True),
        ("1 to 8 and back", True),
    }
