"""The table of utilisations: its arithmetic, and its last line."""

from __future__ import annotations

import json

import pytest

from benchmarks import utilisation
from benchmarks.utilisation import SETTINGS, Contributed, Row, Setting, busy_share, exchange_s, run_of
from tests.simulation.wire import SMALL_BYTES


def test_waiting_between_two_contributions_is_not_busy() -> None:
    contributions = {0: Contributed(7.0, 9), 1: Contributed(17.0, 8), 2: Contributed(27.0, 6)}
    assert busy_share(contributions, range(1, 3), 1.0) == pytest.approx(14 / 20)


def test_published_utilisations_follow_from_compute_and_exchange() -> None:
    for setting in SETTINGS:
        if setting.published is not None:
            share = setting.compute_s / (setting.compute_s + setting.exchange_s)
            assert share == pytest.approx(setting.published, abs=0.002)


def test_a_billion_parameters_in_int8_take_eight_minutes_at_25_mbit() -> None:
    assert exchange_s(1e9, 25) == pytest.approx(487.5, rel=0.01)


def test_an_overlapped_run_may_train_for_a_whole_round_meanwhile() -> None:
    plain, overlapped = (run_of(overlapped=each).manifest for each in (False, True))
    assert (plain.fragments, plain.rounds.delay, plain.codec) == (1, 0, "int8")
    assert (overlapped.fragments, overlapped.rounds.delay, overlapped.codec) == (4, overlapped.round_steps, "int4")


def test_chunks_wait_for_their_turn_on_a_line() -> None:
    for overlapped in (False, True):
        layouts = run_of(overlapped=overlapped).manifest.layouts
        assert min(layout[0].size for layout in (layouts.contribution, layouts.result)) > SMALL_BYTES


@pytest.mark.parametrize(("share", "status"), [(0.995, 0), (0.985, 1)])
def test_the_last_line_is_the_table_as_json(
    share: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(setting: Setting, *, overlapped: bool) -> Row:
        return Row(setting, overlapped, share if overlapped else 0.8, 10.0, 1.0)

    monkeypatch.setattr(utilisation, "measure", measure)
    assert utilisation.main(["--json"]) == status
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["overlapped"], row["utilisation"]) for row in rows] == [(False, 0.8), (True, share)] * len(SETTINGS)
