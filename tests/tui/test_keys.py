"""What each key does: to the view, and what it asks of the peer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from peer.control.client import Stamped
from protocol.events import events as ev
from protocol.events.status import PeerStatus, SwarmPeer
from tests.protocol.example_status import OTHER, status
from tests.tiers import crossed
from tests.tui.recording import Recorded
from tui.app import PANELS, ROLLOUTS, SAMPLES, PeerApp
from tui.feed import PeerFound, Stopped, Told
from tui.widgets import KEYS, OF_A_VIEW, OF_OWN, Confirm, Help, Panel

Test = Callable[..., Coroutine[Any, Any, None]]


def with_textual(test: Test) -> Callable[..., None]:
    """Runs a test in the event loop that Textual needs."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def view_of(*told: Told, refusal: str = "", **changes: object) -> tuple[PeerApp, Recorded]:
    source = Recorded([PeerFound(), status(**changes), *told], refusal)
    return PeerApp(source), source


async def ready(pilot: Pilot[None]) -> None:
    view = pilot.app
    assert isinstance(view, PeerApp)
    view.take()
    await pilot.pause()


async def asked(pilot: Pilot[None]) -> None:
    """Until the thread that asks the peer has its answer."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def shown(view: PeerApp) -> list[str]:
    return [str(panel.id) for panel in view.query(Panel) if panel.display]


@pytest.mark.slow
@with_textual
async def test_the_number_of_a_panel_shows_it_alone_and_once_more_all() -> None:
    view, _ = view_of()
    async with view.run_test(size=(120, 40)) as pilot:
        together = shown(view)
        assert len(together) == len(PANELS) - 2, "there are no rollouts and no samples"
        for key, title, _ in PANELS:
            if key in (ROLLOUTS, SAMPLES):
                continue
            await pilot.press(key)
            assert shown(view) == [title.lower()]
            await pilot.press(key)
            assert shown(view) == together
        for keys in (("6", "0"), ("6", "escape"), (ROLLOUTS,)):
            await pilot.press(*keys)
            assert shown(view) == together


@with_textual
async def test_a_small_terminal_shows_one_panel_and_names_the_others() -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        assert shown(view) == ["training"]
        assert _tabs(view) == "1 Training  2 Swarm  3 Round  4 Transfers  5 Log  6 Me  7 Run"
        await pilot.press("tab")
        assert shown(view) == ["swarm"]
        await pilot.press("shift+tab", "shift+tab")
        assert shown(view) == ["run"]
        await pilot.press("question_mark", "tab", "escape")
        assert shown(view) == ["run"], "keys of the panels do nothing below a dialog"
        await pilot.press("tab")
        assert shown(view) == ["training"]
        source.told = [Stamped(1.0, 1.0, ev.RolloutsCounted(3, 0.5, 2, 90, {OTHER: 90}, 0, []))]
        await ready(pilot)
        assert len(_tabs(view)) <= 78 and _tabs(view).endswith("  8 Rollouts")


@with_textual
async def test_a_resize_arranges_the_panels_anew() -> None:
    view, _ = view_of()
    async with view.run_test(size=(120, 40)) as pilot:
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert len(shown(view)) == 1
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        assert len(shown(view)) == len(PANELS) - 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({"invitation": "mh1abc", "invite_command": ""}, "mh1abc"),
        ({"invitation": "", "invite_command": "peer run invite 0123 PEER_ID"}, "peer run invite 0123 PEER_ID"),
        ({"invitation": "mh1\x1b]52;c;x\x07abc"}, "mh1]52;c;xabc"),
        ({}, ""),
    ],
)
@with_textual
async def test_i_copies_the_invitation_or_the_command_that_makes_one(changes: dict[str, Any], copied: str) -> None:
    view, _ = view_of(**changes)
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("i")
        assert view.clipboard == copied
        (notice,) = view._notifications
        assert notice.message.startswith("copied for pasting" if copied else "there is no invitation to copy")


@pytest.mark.parametrize(
    "event", [ev.RolloutPeerSetAside(OTHER, "wrong computation"), ev.ValidatorSetAside(OTHER, "it lied")]
)
@with_textual
async def test_who_is_set_aside_is_an_alarm_until_it_was_seen(event: ev.Event) -> None:
    view, _ = view_of(Stamped(1.0, 1.0, event))
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        assert [line.level for line in view.picture.alarms] == ["warning"]
        rollouts = next(panel for panel in view.query(Panel) if panel.id == "rollouts")
        await pilot.press(ROLLOUTS)
        assert "! set aside:" in rollouts.text
        await pilot.press("a")
        assert not view.picture.alarms and "! set aside:" in rollouts.text, "the panel goes on saying it"


@pytest.mark.parametrize(
    "keys, question",
    [
        (("p", *"yes"), ("pause", {})),
        (("P", *"yes"), ("pause", {"seconds": 3600})),
        (("f", *"yes"), ("finish", {})),
        (("x", *"yes"), ("leave", {})),
    ],
)
@with_textual
async def test_keys_that_ask_something_of_the_peer(keys: tuple[str, ...], question: tuple[str, dict[str, object]]) -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*keys)
        await asked(pilot)
        assert source.asked == [question]


@with_textual
async def test_p_resumes_a_peer_that_was_paused() -> None:
    view, source = view_of(phase="paused", why_idle="paused", why_detail="paused by you")
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("p")
        await asked(pilot)
        assert source.asked == [("resume", {})]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "no"), crossed(["x", "f", "p", "P"], ["n", "escape", "q", "enter", "x", "Y", "yn"]))
@with_textual
async def test_nothing_is_stopped_or_paused_without_a_yes(key: str, no: str) -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(key)
        assert isinstance(view.screen, Confirm)
        await pilot.press(*(no if no.startswith("y") else [no]))
        await asked(pilot)
        assert source.asked == [] and not isinstance(view.screen, Confirm)
        assert view.is_running


@pytest.mark.slow
@pytest.mark.parametrize("words", ["peer status", "ps aux | grep peer", "python pytest.py", "xyz fy py ey"])
@with_textual
async def test_words_typed_for_another_program_ask_nothing_of_the_peer(words: str) -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*(NAMES.get(each, each) for each in words))
        await asked(pilot)
        assert [command for command, _ in source.asked if command not in ("settings", "ledger")] == []


NAMES = {" ": "space", "|": "vertical_line"}
"""Textual's names of keys that are no letters."""


@with_textual
async def test_a_refusal_is_told_and_the_view_goes_on() -> None:
    view, _ = view_of(refusal="the peer is still fetching the run's manifest")
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("p", *"yes")
        await asked(pilot)
        assert [notice.message for notice in view._notifications] == ["the peer is still fetching the run's manifest"]


@with_textual
async def test_the_help_names_every_key_and_closes() -> None:
    view, _ = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        assert isinstance(view.screen, Help)
        await pilot.press("escape")
        assert not isinstance(view.screen, Help)
    for key in ("1 to 9", "Tab ", "i ", "z ", "u ", "s ", "l ", "p ", "P ", "c ", "f ", "x ", "a ", "t ", "q "):
        assert key in KEYS + OF_A_VIEW + OF_OWN


@with_textual
async def test_z_and_u_change_what_the_curves_show() -> None:
    rounds = (ev.RoundCommitted(number, "aa", [OTHER], 100, 3.0 - number, True) for number in range(3))
    view, _ = view_of(*(Stamped(float(number), float(number), each) for number, each in enumerate(rounds)))
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        panel = next(panel for panel in view.query(Panel) if panel.id == "training")
        captions = [panel.text.splitlines()[2]]
        for key in "zzzuu":
            await pilot.press(key)
            captions.append(panel.text.splitlines()[2])
        shown = ["the whole run", "the last day", "the last hour", "the whole run", "by time", "by tokens read"]
        assert all(text in caption for text, caption in zip(shown, captions, strict=True))


@with_textual
async def test_s_orders_the_swarm_and_arrows_choose_a_peer_of_it() -> None:
    others = [replace(_other(number), name=f"peer{number:03}") for number in range(200)]
    view, _ = view_of(swarm=others)
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("2")
        panel = view._panel("2")
        assert panel.look.chosen == status().peer and "peer000" in panel.text.splitlines()[2]
        await pilot.press("down", "pagedown")
        assert panel.look.chosen == others[10].peer and others[10].peer in panel.text
        await pilot.press("pagedown", "pagedown")
        assert panel.look.chosen == others[30].peer and any(row.startswith("peer030") for row in panel.text.splitlines())
        await pilot.press("s")
        assert panel.look.chosen == others[30].peer and "171 of 201" in panel.text, "the choice stays, the fastest are first"
        await pilot.press("up")
        assert panel.look.chosen == others[31].peer
        await pilot.press("home")
        assert panel.look.chosen == status().peer and "peer199" in panel.text.splitlines()[2]


@pytest.mark.slow
@with_textual
async def test_a_slash_finds_peers_by_a_part_of_their_names() -> None:
    others = [replace(_other(number), name=f"peer{number:03}") for number in range(200)]
    view, _ = view_of(swarm=others)
    async with view.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        await pilot.press("slash", *"EER19", "enter")
        panel = view._panel("2")
        assert shown(view) == ["swarm"] and "1 of 11, with 'EER19'" in panel.text
        assert [row[:7] for row in panel.text.splitlines()[2:12]] == [f"peer{number}" for number in range(190, 200)]
        await pilot.press("slash", "escape")
        assert panel.look.search == "EER19"
        await pilot.press("slash", *["backspace"] * 5, "enter")
        assert "1 of 201, by name;" in panel.text


@with_textual
async def test_the_log_is_filtered_and_scrolled() -> None:
    notices = [Stamped(0.0, 0.0, ev.Notice("info", f"note {number}")) for number in range(100)]
    view, _ = view_of(*notices, Stamped(0.0, 0.0, ev.Notice("warning", "take care")))
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("5")
        panel = next(panel for panel in view.query(Panel) if panel.id == "log")
        assert "take care" in panel.text.splitlines()[-1]
        await pilot.press("up")
        assert "note 99" in panel.text.splitlines()[-1]
        await pilot.press("down", "l")
        assert panel.text.splitlines() == ["00:00:00 ! take care"]


@with_textual
async def test_an_alarm_stays_until_it_is_acknowledged() -> None:
    view, _ = view_of(Stamped(0.0, 0.0, ev.PeerEjected(OTHER, "two votes in one ballot", "ab" * 32)))
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        assert "excluded for good" in _head(view)
        view.picture.apply(Stamped(1.0, 1.0, ev.Notice("info", "later")))
        view._draw()
        assert "excluded for good" in _head(view)
        await pilot.press("a")
        assert "excluded for good" not in _head(view)


@with_textual
async def test_a_peer_that_stops_is_told_and_found_again() -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        source.told = [Stopped("the peer is gone")]
        await ready(pilot)
        assert "the peer stopped: the peer is gone" in _head(view)
        source.told = [PeerFound(), status(round=13)]
        await ready(pilot)
        assert "stopped" not in _head(view) and "round 13" in _head(view)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
@with_textual
async def test_closing_the_view_asks_nothing_of_the_peer(key: str) -> None:
    view, source = view_of()
    async with view.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(key)
    assert source.closed and source.asked == []


def _tabs(view: PeerApp) -> str:
    from textual.widgets import Static

    return str(view.query_one("#tabs", Static).render())


def _head(view: PeerApp) -> str:
    from textual.widgets import Static

    return str(view.query_one("#head", Static).render())


def _other(number: int) -> SwarmPeer:
    known: PeerStatus = status()
    return replace(known.swarm[0], peer=f"{OTHER[:-3]}{number:03}", tokens_per_s=float(number))
