"""The table of overlapped rounds in small: what is compared with what, and when a result arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import diloco_bench, overlap
from benchmarks.diloco_bench import WAVE, Bench, Settings
from benchmarks.overlap import Case, Losses, Runs, StreamedRun, losses_of, row_of, wanted, with_plain

SMALL = Settings(steps=8, rounds=2, warm_steps=4, sequences=1, evaluation_tokens=1 << 10)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Bench(SMALL)
    torch.set_num_threads(threads)


def test_a_plain_run_is_that_of_the_table_without_overlap(bench: Bench) -> None:
    [loss] = bench.run(diloco_bench.Case(0, 4, (8,), 4, "auto"))
    assert losses_of(bench, Case(0, 4)) == Losses(loss, loss)


def test_another_exchange_of_fragments_and_each_way_to_merge_change_the_loss(bench: Bench) -> None:
    shift = losses_of(bench, Case(0, 4, 2, 1))
    assert shift.ended != shift.flushed
    assert shift != losses_of(bench, Case(0, 4, 2, 1, merge="blend")) != losses_of(bench, Case(0, 4, 2, 0))


def test_a_result_arrives_after_so_many_steps(bench: Bench) -> None:
    run = StreamedRun(bench, Case(0, 8, 2, 2))
    run.hold(0, 1)
    arrives = run._arrival(run._members[0], 2, 0)
    assert [arrives(False) for _ in range(3)] == [False, False, True]
    assert run._arrival(run._members[0], 2, 0)(True)


def test_slow_members_do_half_of_the_steps_and_newcomers_those_that_are_left(bench: Bench) -> None:
    run = StreamedRun(bench, Case(0, 16, 2, 4, slow=1))
    a_step = SMALL.sequences * SMALL.sequence_length
    for round, size, steps in [(0, 2, [4, 8]), (1, 3, [4, 8, 3]), (2, 3, [4, 8, 3]), (3, 3, [4, 8, 8]), (4, 1, [4])]:
        run.hold(round, size)
        assert run._tokens == [each * a_step for each in steps]


def test_a_blended_member_ends_half_way_to_the_result() -> None:
    own, sent, theta = (np.array(values, np.float32) for values in ([3.0, -1.0], [1.0, 0.5], [5.0, 2.0]))
    blended = (own + theta) / 2
    overlap._blend(own, sent, theta)
    np.testing.assert_allclose(theta + (own - sent), blended)


def test_rows_with_delays_beyond_a_round_are_not_possible() -> None:
    rows = wanted([40, 80])
    impossible = {(row.inner_steps, row.fragments, row.delay) for row in rows if not row.is_possible}
    assert impossible == {(40, 4, 20), (40, 8, 20), (80, 8, 20)}
    runs = with_plain(rows, [3, 5])
    assert all(run.is_possible for run in runs) and len(runs) == len(set(runs))
    assert {run.seed for run in runs[: len(runs) // 2]} == {3}
    assert {run.plain for run in runs} <= set(runs)


def test_a_row_is_compared_with_the_plain_run_of_its_members_and_h() -> None:
    row = Case(0, 40, 4, 5, "int4", WAVE)
    assert row.plain == Case(0, 40, 1, 0, "int8", WAVE)
    losses = {row: Losses(2.02, 2.01), row.plain: Losses(2.0, 2.0)}
    losses |= {replace(case, seed=1): Losses(4.0, 4.0) for case in losses}
    line = row_of(row, losses, [0, 1]).as_json()
    assert line["excess_percent"] == pytest.approx(0.5)
    assert line["excess_percent_each_seed"] == pytest.approx([1.0, 0.0])
    assert line["exchanged_once_more_percent"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("case", "bar"),
    [
        (Case(0, 40, 4, 5), 0.5),
        (Case(0, 40, 4, 5, "int4"), 0.6),
        (Case(0, 40, 8, 5), None),
        (Case(0, 40, 4, 5, merge="blend"), None),
        (Case(0, 40, 4, 5, slow=1), None),
    ],
)
def test_four_fragments_with_shift_have_a_bar(case: Case, bar: float | None) -> None:
    assert case.bar == bar


def test_a_saved_run_counts_for_its_own_settings_only(tmp_path: Path) -> None:
    path, case = tmp_path / "runs", Case(0, 40, 4, 5)
    Runs(SMALL, path).add(case, Losses(1.5, 1.25))
    assert Runs(SMALL, path).losses == {case: Losses(1.5, 1.25)}
    assert Runs(Settings(), path).losses == {}


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
