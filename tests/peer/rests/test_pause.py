"""A pause with its end: told, kept in the data directory, and over when its hour has come."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from peer.control.requests import Controls
from peer.rests.pause import FILE_NAME, MAX_PAUSE_S, TimedPause, keep_pause, kept_pause
from tests.protocol.example_status import status

NOW = 1_700_000_000.0


def test_a_pause_says_when_it_ends() -> None:
    clock = time.strftime("%H:%M", time.localtime(NOW + 1500))
    assert TimedPause(NOW + 1500).end(NOW) == f"until {clock} (in 25 min)"
    assert TimedPause(NOW + 1500).detail(NOW) == f"paused by you until {clock}; `peer resume` goes on before"
    assert TimedPause().end(NOW) == "until `peer resume`"
    assert TimedPause().detail(NOW) == "paused by you; `peer resume` goes on"
    day = time.strftime("%A", time.localtime(NOW + 3 * 86_400))
    assert TimedPause(NOW + 3 * 86_400).end(NOW).startswith(f"until {day} ")


def test_a_pause_is_kept_until_it_is_over_or_taken_back(tmp_path: Path) -> None:
    keep_pause(tmp_path, TimedPause(NOW + 60))
    assert kept_pause(tmp_path, NOW) == TimedPause(NOW + 60)
    assert kept_pause(tmp_path, NOW + 61) is None
    keep_pause(tmp_path, TimedPause())
    assert kept_pause(tmp_path, NOW + 1e9) == TimedPause(math.inf)
    keep_pause(tmp_path, None)
    keep_pause(tmp_path, None)
    assert kept_pause(tmp_path, NOW) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"until": "soon"}', '{"until": NaN}', '{"until": []}', "[" * 2000])
def test_a_damaged_file_is_no_pause(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert kept_pause(tmp_path, NOW) is None


def test_a_clock_that_was_set_back_makes_no_pause_endless(tmp_path: Path) -> None:
    assert TimedPause(NOW + 1e12).left_s(NOW) == MAX_PAUSE_S


class Peer:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.done: list[object] = []

    async def pause(self, pause: TimedPause) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(pause)

    async def resume(self) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append("resumed")

    def notice(self, level: str, text: str) -> None:
        self.done.append(text)

    def status(self) -> Any:
        return status()


def test_a_pause_that_an_earlier_life_left_ends_at_its_hour() -> None:
    peer: Any = Peer()

    async def main() -> None:
        controls = Controls(peer, TimedPause(time.time() + 0.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controls.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert peer.done == ["resumed", "the pause is over"]


def test_the_answer_to_a_pause_says_its_end() -> None:
    peer: Any = Peer()
    answer = trio.run(Controls(peer).commands()["pause"], {"seconds": 1800})
    assert answer["until"].startswith("until ") and answer["until"].endswith("(in 30 min)")
    assert trio.run(Controls(peer).commands()["pause"], {}) == {"until": "until `peer resume`"}
