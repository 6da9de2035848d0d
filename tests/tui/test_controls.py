"""The dialog of the settings that a running peer takes at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from peer.settings.file import gather
from tests.tui.recording import Recorded, read
from tests.tui.test_keys import asked, ready, view_of, with_textual
from tests.tui.test_snapshots import NEWCOMER, Compare
from tui.app import PeerApp
from tui.widgets import ControlsDialog


class Answering(Recorded):
    """A source with a peer's settings behind it."""

    def __init__(self, source: Recorded) -> None:
        super().__init__(source.told)
        self.live = gather({"max_up": 5e6}, {"PEER_CONFIG": "/home/ada/peer.toml", "PEER_SCHEDULE": "mon-fri"})

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        super().ask(command, **fields)
        if command == "set":
            self.live.change(fields["name"], fields["value"])
        month = {"month": "2026-11", "bytes": 12_300_000_000}
        return {"month": month, "written": str(self.live.path), **self.live.as_map()}


def answering() -> tuple[PeerApp, Answering]:
    source = Answering(view_of()[1])
    return PeerApp(source), source


def rows(view: PeerApp) -> list[str]:
    options = view.screen.query_one(OptionList)
    return [str(options.get_option_at_index(place).prompt) for place in range(options.option_count)]


def text_of(view: PeerApp, name: str) -> str:
    return str(view.screen.query_one(f"#{name}", Static).render())


async def opened(pilot: Pilot[None]) -> None:
    await ready(pilot)
    await pilot.press("c")
    await asked(pilot)


@with_textual
async def test_it_shows_what_may_change_with_its_value_and_source() -> None:
    view, _ = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        assert isinstance(view.screen, ControlsDialog)
        found = {row.split()[0]: row.split()[1:] for row in rows(view)}
        assert found["max_up"] == ["40Mbit", "--max-up"] and found["max_down"] == ["-", "default"]
        assert found["schedule"] == ["mon-fri", "PEER_SCHEDULE"] and "port" not in found
        assert "12.3 GB moved this month" in text_of(view, "title") and "CPU threads" in text_of(view, "meaning")
        await pilot.press("down")
        assert "limit on the total upload rate" in text_of(view, "meaning")


@with_textual
async def test_enter_lets_a_value_be_typed_and_sets_it() -> None:
    view, source = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("down", "enter")
        assert view.screen.query_one(Input).value == "40Mbit" and view.screen.query_one(Input).has_focus
        await pilot.press(*"20Mbit", "enter")  # in place of what was there
        await asked(pilot)
        assert source.asked[1:] == [("set", {"name": "max_up", "value": "20Mbit", "keep": True})]
        assert "max_up              20Mbit" in rows(view)[1] and "changed while running" in rows(view)[1]
        assert "written to /home/ada/peer.toml" in text_of(view, "said")
        assert view.screen.query_one(OptionList).has_focus and view.screen.query_one(OptionList).highlighted == 1
        await pilot.press("enter", "backspace", "enter")
        await asked(pilot)
        assert source.asked[2:] == [("set", {"name": "max_up", "value": None, "keep": True})]
        assert rows(view)[1].split() == ["max_up", "-", "default"]


@with_textual
async def test_one_escape_leaves_the_value_as_it_is_and_the_dialog() -> None:
    view, source = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("enter", *"cqp")
        assert view.screen.query_one(Input).value == "cqp", "keys of the interface are letters here"
        await pilot.press("escape")
        assert not isinstance(view.screen, ControlsDialog) and [command for command, _ in source.asked] == ["settings"]


@pytest.mark.parametrize("key", ["c", "q"])
@with_textual
async def test_it_is_closed_by_the_key_that_opened_it_and_by_q(key: str) -> None:
    view, _ = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press(key)
        assert not isinstance(view.screen, ControlsDialog) and view.is_running


@with_textual
async def test_a_value_that_is_refused_stays_to_be_mended() -> None:
    view, source = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        source.refusal = "threads: many is not a count; give a whole number from 1"
        await pilot.press("enter", *"many", "enter")
        await asked(pilot)
        assert "many is not a count" in text_of(view, "said") and view.screen.query_one(Input).has_focus


@with_textual
async def test_until_the_peer_answers_the_dialog_says_that_it_was_asked() -> None:
    view, source = answering()
    answers = threading.Event()
    answer, source.ask = source.ask, lambda command, **fields: answer(command, **fields) if answers.wait(30) else {}  # type: ignore[method-assign]
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("c")
        assert text_of(view, "said") == "asking the peer …"
        answers.set()
        await asked(pilot)
        assert text_of(view, "said") == "" and rows(view)


@with_textual
async def test_every_help_is_whole_without_the_one_before_it() -> None:
    view, source = answering()
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        for row in rows(view):
            assert "same form" not in text_of(view, "meaning"), row
            await pilot.press("down")


@pytest.mark.slow
@with_textual
async def test_a_peer_that_does_not_answer_is_told() -> None:
    view, _ = view_of(refusal="no peer runs here")
    async with view.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        assert rows(view) == [] and "no peer runs here" in text_of(view, "said")
        await pilot.press("enter", "escape")
        assert not isinstance(view.screen, ControlsDialog)


@pytest.mark.slow
def test_how_it_looks(snap_compare: Compare) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("down", "enter")
        await pilot.pause()

    assert snap_compare(PeerApp(Answering(Recorded(read(NEWCOMER)))), terminal_size=(80, 24), run_before=prepare)
