"""A small terminal hides nothing: what a large one shows is at most two keys away."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from tests.tui.recording import Recorded, read
from tests.tui.test_keys import with_textual
from tests.tui.test_snapshots import ORGANISER, OWNED, SAMPLED, of_rollouts
from tui.app import PANELS, ROLLOUTS, SAMPLES, PeerApp
from tui.feed import PeerFound
from tui.widgets import Panel

pytestmark = pytest.mark.slow

SECOND_KEYS = ("", "pagedown", "down", "s", "l", "z", "u")
"""Keys after the digit of a panel."""
TABLES = [(key, title) for key, title, _ in PANELS if title != "Log"]
"""Panels with labels; the log only scrolls."""
IN_DETAILS = {"2": {"DISTANCE", "TOKENS"}, "3": {"MEMBERS"}}
"""Columns of wide tables, whose content a small terminal shows elsewhere: in the details of a peer, or in the log."""


def view_of(key: str) -> PeerApp:
    if key == ROLLOUTS:
        return of_rollouts("trainer")
    if key == "6":
        return PeerApp(Recorded([PeerFound(), OWNED]))
    return PeerApp(Recorded(read(SAMPLED if key == SAMPLES else ORGANISER)))


def panel_of(view: PeerApp) -> Panel:
    (panel,) = [panel for panel in view.query(Panel) if panel.display]
    return panel


def labels(panel: Panel) -> set[str]:
    """The words with which its rows begin, and those of its heads; not its numbers and times, which scroll."""
    starts = {words[0] for row in panel.text.splitlines() if (words := row.split())}
    heads = {word for row in panel.text.splitlines() for word in row.split() if word.isupper() and len(word) > 3}
    return {word for word in starts | heads if word.isalpha()}


async def seen(key: str, size: tuple[int, int], *more: str) -> set[str]:
    view = view_of(key)
    async with view.run_test(size=size) as pilot:
        await settle(pilot, view)
        await pilot.press(key, *more)
        return labels(panel_of(view))


async def settle(pilot: Pilot[None], view: PeerApp) -> None:
    view.take()
    await pilot.pause()


@pytest.mark.parametrize(("key", "title"), TABLES, ids=lambda text: text.lower())
@with_textual
async def test_what_a_large_terminal_shows_is_two_keys_away_in_a_small_one(key: str, title: str) -> None:
    wanted = await seen(key, (200, 60))
    assert wanted
    hidden = wanted - IN_DETAILS.get(key, set())
    for second in SECOND_KEYS:
        if hidden:
            hidden -= await seen(key, (80, 24), *filter(None, [second]))
    assert not hidden


@with_textual
async def test_every_panel_is_one_key_away_in_every_size() -> None:
    for size in ((80, 24), (120, 40), (200, 60)):
        for panels, view in (
            ([each for each in PANELS if each[0] != ROLLOUTS], view_of(SAMPLES)),
            ([each for each in PANELS if each[0] == ROLLOUTS], view_of(ROLLOUTS)),
        ):
            async with view.run_test(size=size) as pilot:
                await settle(pilot, view)
                for key, title, _ in panels:
                    await pilot.press(key)
                    assert panel_of(view).id == title.lower()
