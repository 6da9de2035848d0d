"""The live view: what a person sees at 80x24, with strange names and without anything yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.console.live import MIN_HEIGHT, MIN_WIDTH, View, render
from peer.control.client import Stamped
from peer.drawing import bar, columns, sparkline
from peer.formatting import short
from protocol import events as ev
from tests.protocol.example_status import ME, NEIGHBOUR, OTHER, status


def view_of(*happened: ev.Event, **changes: Any) -> View:
    view = View()
    view.update(status(**changes))
    for event in happened:
        view.apply(Stamped(0.0, 0.0, event))
    return view


def test_an_evaluation_is_shown_beside_training_and_alone_as_a_bar() -> None:
    beside = view_of(
        ev.EvalLoss(11, 2.4, OTHER),
        ev.ComputeProgress(12, 11, 20, 2.31, 3200.0, 9.0),
        ev.EvalProgress(12, 4, 10),
        eval_percent=40,
    )
    text = "\n".join(render(beside, 140, 24))
    assert "training" in text and "11/20" in text
    assert f"held out 2.400 after 11, measuring 40 %  by kitchen ({short(OTHER)})" in text
    alone = view_of(ev.PhaseChanged("seeding", "", "measuring the held-out loss"), ev.EvalProgress(12, 4, 10))
    assert "4/10" in "\n".join(render(alone, 80, 24))
    alone.apply(Stamped(0.0, 0.0, ev.EvalLoss(12, 2.3, ME)))
    assert "4/10" not in "\n".join(render(alone, 80, 24))


def test_everything_that_matters_fits_80_by_24() -> None:
    view = view_of(
        ev.RoundCommitted(10, "aa" * 32, [ME, OTHER], 40960, 4.5, True),
        ev.RoundCommitted(11, "bb" * 32, [ME, OTHER], 40960, 2.5, True),
        ev.EvalLoss(11, 2.4, OTHER),
        ev.ComputeProgress(12, 11, 20, 2.31, 3200.0, 9.0),
    )
    lines = render(view, 80, 24, clock="12:00:00")
    assert len(lines) == 24 and all(columns(line) <= 80 for line in lines)
    text = "\n".join(lines)
    for wanted in (
        "demo",
        "round 12",
        "computing",
        "2 peers",
        "11/20",
        "█",
        "4.500 to 2.500",
        "held out 2.400",
        "3.1 MB",
        "trainer 1234",
        "kitchen",
        "attic (me)",
        "round 11 committed",
        "Ctrl-C",
    ):
        assert wanted in text, wanted


def test_the_reason_for_waiting_is_shown_in_full() -> None:
    detail = "waiting for 2 more peers (1 of 3)"
    lines = render(view_of(phase="starting", why_idle="waiting for peers", why_detail=detail), 80, 24)
    assert any(detail in line for line in lines)


def test_each_wait_has_its_bar() -> None:
    waits = [
        (ev.ExchangeProgress(12, 3, 8, [OTHER]), ["exchanging", "3/8", "waiting for kitchen"]),
        (ev.SyncProgress(5, 9), ["fetching records", "5/9"]),
        (ev.ComputeProgress(12, 1, 20, float("nan"), 0.0, 9.0), ["training", "1/20", "loss -"]),
    ]
    for event, wanted in waits:
        text = "\n".join(render(view_of(event), 80, 24))
        assert all(word in text for word in wanted), text


def test_what_is_fetched_is_shown_with_its_map_until_it_has_ended() -> None:
    first = ev.TransferProgress("checkpoint", 12, "ab", 3, 10, 900, "#+........", 100.0, 4, 7.0)
    other = ev.TransferProgress("patch", 3, "cd", 1, 4, 400, "#...", 50.0, 1, None)
    text = "\n".join(render(view_of(first, other), 80, 24))
    assert "coming  version 3, patch: 1/4 chunks, 50 B/s from 1 peer  (and 1 more)" in text and "        #...\n" in text
    text = "\n".join(render(view_of(first, other, ev.TransferEnded("patch", 3, "cd", 300, 9.0, True)), 80, 24))
    assert "coming  checkpoint after 12 rounds: 3/10 chunks, 100 B/s from 4 peers, 7 s to go" in text
    assert "        #+........\n" in text and "version 3" not in text, "the end is for the log"


def test_a_round_without_a_step_shows_the_last_rate_and_the_time_to_its_end() -> None:
    fresh = view_of(ev.PhaseChanged("computing", "", ""), steps=0, tokens_per_s=3200.0, round_left_s=130.0)
    text = "\n".join(render(fresh, 80, 24))
    assert "0/20" in text and "3.2 k tokens/s" in text and "2 min to go" in text
    later = "\n".join(render(view_of(ev.ComputeProgress(12, 11, 20, 2.3, 3200.0, 61.0)), 100, 24))
    assert "11/20" in later and "61 s to go" in later


def test_nothing_known_yet_still_renders() -> None:
    lines = render(View(), 80, 24)
    assert len(lines) == 24 and "starting" in lines[0]


@pytest.mark.parametrize("size", [(1, 1), (40, 10), (79, 23), (200, 60)])
def test_any_size_renders_within_itself(size: tuple[int, int]) -> None:
    swarm = [replace(NEIGHBOUR, peer=OTHER[:-2] + f"{n:02}", name=f"peer {n}") for n in range(40)]
    view = view_of(*[ev.Notice("info", "x" * 500)] * 30, swarm=swarm, peers=40)
    lines = render(view, *size)
    width, height = max(size[0], MIN_WIDTH), max(size[1], MIN_HEIGHT)
    assert len(lines) == height and all(columns(line) <= width for line in lines)


def test_without_unicode_only_ascii_is_drawn() -> None:
    view = view_of(ev.ComputeProgress(12, 11, 20, 2.31, 3200.0, 9.0), ev.RoundCommitted(11, "bb" * 32, [ME], 1, 2.5, False))
    for line in render(view, 80, 24, unicode=False):
        assert line.isascii(), line


def test_a_strangers_name_cannot_move_the_cursor_or_break_the_table() -> None:
    names = ["\x1b[2J\x1b[1;1Hevil\n\u202egnol", "広" * 40]
    swarm = [replace(NEIGHBOUR, name=name) for name in names]
    view = view_of(ev.PeerJoined(OTHER, "\x1b[31mred\r\n"), swarm=swarm)
    lines = render(view, 80, 24)
    assert all(line.isprintable() and columns(line) <= 80 for line in lines)


def test_small_drawings() -> None:
    assert bar(5, 10, 10) == "█████░░░░░" and bar(0, 0, 4) == "░░░░" and bar(9, 3, 4, unicode=False) == "####"
    assert sparkline([1, 2, 3], 3) == "▁▅█" and sparkline([], 5) == "" and sparkline([2, 2], 5) == "▁▁"
    assert sparkline([1, float("nan"), 3], 3) == "▁ █"
