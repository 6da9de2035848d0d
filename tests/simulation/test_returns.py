"""Peers that were away come back: nobody loses more than the round that was running.

The slow tests are a sample of the short cells of `tests.simulation.returns`; the command plays all of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.returns import LENGTHS, Absence, Cell, Entry, Outcome, cells, play

HALF_A_MINUTE_S, TEN_MINUTES_S, NIGHT_S = LENGTHS


def misses_no_bar(cell: Cell) -> None:
    """Play a cell; it fails with a sentence for each bar that is missed."""
    outcome = play(cell)
    assert outcome.missed() == [], f"{cell}: {outcome}"


@pytest.mark.slow
def test_founder_asleep_ten_minutes_others_lose_no_round() -> None:
    misses_no_bar(Cell(Entry.INVITE, 3, "the founder", Absence.ASLEEP, TEN_MINUTES_S))


@pytest.mark.slow
def test_founder_of_an_open_run_asleep_half_a_minute_others_lose_no_round() -> None:
    misses_no_bar(Cell(Entry.OPEN, 3, "the founder", Absence.ASLEEP, HALF_A_MINUTE_S))


def test_founder_killed_half_a_minute_others_lose_no_round() -> None:
    misses_no_bar(Cell(Entry.INVITE, 3, "the founder", Absence.KILLED, HALF_A_MINUTE_S))


@pytest.mark.slow
def test_founder_without_its_disk_half_a_minute_others_lose_no_round() -> None:
    misses_no_bar(Cell(Entry.INVITE, 3, "the founder", Absence.LOST_DISK, HALF_A_MINUTE_S))


@pytest.mark.slow
def test_founder_cut_off_half_a_minute_others_lose_no_round() -> None:
    misses_no_bar(Cell(Entry.INVITE, 4, "the founder", Absence.CUT_OFF, HALF_A_MINUTE_S))


@pytest.mark.slow
def test_one_of_two_friends_suspended_half_a_minute_other_loses_no_round() -> None:
    misses_no_bar(Cell(Entry.INVITE, 2, "another", Absence.SUSPENDED, HALF_A_MINUTE_S))


@pytest.mark.slow
def test_half_of_a_run_of_anyone_cut_off_half_a_minute_one_part_loses_no_round() -> None:
    misses_no_bar(Cell(Entry.ANYONE, 4, "exactly half", Absence.CUT_OFF, HALF_A_MINUTE_S))


EVERY = 60
"""Of so many short cells one is a slow test."""
SHORT = [cell for cell in cells() if cell.away_s == HALF_A_MINUTE_S or (cell.away_s == TEN_MINUTES_S and cell.peers <= 4)]


@pytest.mark.slow
@pytest.mark.parametrize("cell", SHORT[::EVERY], ids=str)
def test_nobody_loses_more_than_the_running_round(cell: Cell) -> None:
    misses_no_bar(cell)


SLEPT = Cell(Entry.INVITE, 3, "the founder", Absence.ASLEEP, TEN_MINUTES_S)
KEPT = Outcome(SLEPT, meanwhile=9, lost_by_most=0, lost_by_rest=0, back_s=8.0)
"""Outcome without a missed bar."""


def test_lost_rounds_and_standstill_miss_bars() -> None:
    assert KEPT.missed() == []
    assert replace(KEPT, lost_by_most=3).missed() == ["the majority of the work lost 3 rounds"]
    assert replace(KEPT, lost_by_rest=1).missed() == ["those that returned lost 1 rounds"]
    assert replace(KEPT, meanwhile=0).missed() == ["those that stayed made no round"]
    assert replace(KEPT, flaws=("round 7 is final as two records",)).missed() == ["round 7 is final as two records"]


def test_of_two_parts_that_went_on_the_smaller_may_lose_its_rounds() -> None:
    parted = replace(KEPT, cell=replace(SLEPT, absence=Absence.CUT_OFF), lost_by_rest=5)
    assert parted.missed() == []
    assert replace(parted, lost_by_most=5).missed() == ["the majority of the work lost 5 rounds"]


def test_founder_of_an_open_run_that_was_cut_off_decides() -> None:
    parted = replace(SLEPT, entry=Entry.OPEN, absence=Absence.CUT_OFF)
    assert replace(KEPT, cell=parted, lost_by_most=5).missed() == []


def test_table_has_all_absences_that_make_sense() -> None:
    table = list(cells())
    assert len(set(map(str, table))) == len(table)
    assert {(cell.entry, cell.absence, cell.away_s) for cell in table} == {
        (entry, absence, away_s) for entry in Entry for absence in Absence for away_s in LENGTHS
    }
    assert {cell.who for cell in table if cell.peers == 2} == {"the founder", "another"}
    assert all(0 < len(cell.absent) < cell.peers for cell in table)
    assert {len(cell.absent) for cell in table if cell.who == "exactly half"} == {2, 4}
