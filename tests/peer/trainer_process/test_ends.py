"""When a trainer process that keeps ending is given up: not over what strangers made."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from peer.trainer_process.process import MAX_FAILURES, TrainerProcess, TrainerSettings
from protocol.chain.outer_state import SharedRegion
from protocol.events.events import Event, TrainerStopped


class Ending(TrainerProcess):
    """Ends as soon as it was started, `over` the bytes of a stranger or not."""

    over = False
    lives = 0

    async def _one_life(self) -> str:
        self._at_risk = self.over
        self.lives += 1
        await trio.lowlevel.checkpoint()
        return "it ended"


def lives_of(over_strangers: bool, tmp_path: Path) -> tuple[int, list[str]]:
    """In a day: how often it was started, and what was said last."""
    told: list[str] = []

    def take(event: Event) -> None:
        assert isinstance(event, TrainerStopped)
        told.append(event.reason)

    theta = SharedRegion(4096)
    process = Ending(TrainerSettings({}, 4096, tmp_path / "log"), theta, take)
    process.over = over_strangers

    async def main() -> None:
        with trio.move_on_after(86_400):
            await process.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    theta.close()
    return process.lives, told


def test_a_process_that_ends_by_itself_is_given_up(tmp_path: Path) -> None:
    lives, told = lives_of(False, tmp_path)
    assert lives == MAX_FAILURES and "in a row" in told[-1]


def test_strangers_whose_bytes_end_it_do_not_end_the_peer_and_wait_longer_each_time(tmp_path: Path) -> None:
    lives, told = lives_of(True, tmp_path)
    assert MAX_FAILURES < lives <= 86_400 / 60 + 10 and not any("in a row" in each for each in told)
