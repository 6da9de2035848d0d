"""Every panel, drawn from what a real peer told while it joined and trained; `--snapshot-update` draws them anew."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest
from textual.pilot import Pilot

from tests.protocol.example_status import COMPUTER, GIVEN, status
from tests.tui.recording import Recorded, read
from tui.app import PANELS, ROLLOUTS, SAMPLES, PeerApp
from tui.feed import PeerFound

RECORDED = Path(__file__).parent / "recorded"
NEWCOMER, STREAMED = RECORDED / "newcomer.jsonl", RECORDED / "streamed.jsonl"
ORGANISER = RECORDED / "organiser.jsonl"
"""Founder of a run with an `[about]` and three sources, whose mixture changes once."""
SAMPLED = RECORDED / "samples.jsonl"
"""Newcomer to a run with two prompts."""
ROLES = ("trainer", "writer", "validator")
"""Peers of a run with rollouts (`tests.tui.rollout_swarm`); another one cheated there."""
OWNED = status(
    computer=COMPUTER,
    contribution=GIVEN,
    next_rest="from Monday 08:00, while somebody uses this computer",
    limits={"max_up": "20Mbit", "max_disk": "50GB"},
    device="cuda:0, bf16",
    mfu=0.34,
    busy_share=0.92,
    joules_per_token=0.093,
)
"""A volunteer's peer, with everything that the panel Me tells; no recording has a GPU."""
SIZES = [(80, 24), (120, 40), (200, 60)]
IN_EACH_SIZE_SLOWLY = pytest.mark.parametrize(
    "size",
    [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
"""The fast tier draws the smallest terminal, where least fits."""


class Compare(Protocol):
    """pytest-textual-snapshot's fixture."""

    def __call__(self, app: PeerApp, *, terminal_size: tuple[int, int], run_before: Any) -> bool: ...


def drawn(keys: Iterable[str]) -> Any:
    async def prepare(pilot: Pilot[None]) -> None:
        view = pilot.app
        assert isinstance(view, PeerApp)
        view.take()
        await pilot.press(*keys)
        await pilot.pause()

    return prepare


def watched(lines: int | None = None, recording: Path = NEWCOMER) -> PeerApp:
    """A view of a peer after the first `lines` of its recording, while it still runs."""
    told = read(recording)
    return PeerApp(Recorded(told[: lines or len(told)]))


@pytest.mark.slow
@IN_EACH_SIZE_SLOWLY
@pytest.mark.parametrize(
    "key, title", [(key, title) for key, title, _ in PANELS if key not in (ROLLOUTS, SAMPLES)], ids=lambda text: text.lower()
)
def test_a_panel_alone(snap_compare: Compare, key: str, title: str, size: tuple[int, int]) -> None:
    assert snap_compare(watched(recording=ORGANISER), terminal_size=size, run_before=drawn(key))


@IN_EACH_SIZE_SLOWLY
def test_the_details_of_another_peer(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(watched(recording=ORGANISER), terminal_size=size, run_before=drawn(("2", "down")))


def test_a_light_terminal(snap_compare: Compare) -> None:
    assert snap_compare(watched(recording=ORGANISER), terminal_size=(120, 40), run_before=drawn("t"))


def test_the_beginning_of_a_newcomer(snap_compare: Compare) -> None:
    assert snap_compare(watched(16), terminal_size=(80, 24), run_before=drawn(""))


@IN_EACH_SIZE_SLOWLY
def test_a_run_that_says_what_it_is_for(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(watched(recording=ORGANISER), terminal_size=size, run_before=drawn(""))


@IN_EACH_SIZE_SLOWLY
@pytest.mark.parametrize("keys", ["", SAMPLES], ids=["together", "samples"])
def test_a_run_with_prompts(snap_compare: Compare, keys: str, size: tuple[int, int]) -> None:
    assert snap_compare(watched(recording=SAMPLED), terminal_size=size, run_before=drawn(keys))


@pytest.mark.parametrize("lines", [81, 117], ids=["ahead", "waiting"])
def test_a_run_with_fragments(snap_compare: Compare, lines: int) -> None:
    """The peer trains for the next round, and waits once it has used up the delay."""
    assert snap_compare(watched(lines, STREAMED), terminal_size=(120, 40), run_before=drawn(""))


@IN_EACH_SIZE_SLOWLY
def test_the_owner_of_a_gpu(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(PeerApp(Recorded([PeerFound(), OWNED])), terminal_size=size, run_before=drawn("6"))


def test_the_help(snap_compare: Compare) -> None:
    assert snap_compare(watched(), terminal_size=(80, 24), run_before=drawn("?"))


def of_rollouts(role: str, *, unicode: bool = True) -> PeerApp:
    """A view of a peer of a run with rollouts, at the end of its recording."""
    return PeerApp(Recorded(read(RECORDED / f"rl_{role}.jsonl")), unicode=unicode)


@IN_EACH_SIZE_SLOWLY
@pytest.mark.parametrize("role", ROLES)
def test_a_run_with_rollouts(snap_compare: Compare, role: str, size: tuple[int, int]) -> None:
    assert snap_compare(of_rollouts(role), terminal_size=size, run_before=drawn(""))


@IN_EACH_SIZE_SLOWLY
@pytest.mark.parametrize("role", ROLES)
def test_the_rollouts_alone(snap_compare: Compare, role: str, size: tuple[int, int]) -> None:
    assert snap_compare(of_rollouts(role), terminal_size=size, run_before=drawn(ROLLOUTS))


def test_rollouts_on_a_terminal_with_plain_characters(snap_compare: Compare) -> None:
    assert snap_compare(of_rollouts("trainer", unicode=False), terminal_size=(80, 24), run_before=drawn(ROLLOUTS))
