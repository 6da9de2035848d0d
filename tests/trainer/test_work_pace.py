"""A GPU's draw, and its share of the time, kept below a limit by waiting between steps; GPU and clock are made up."""

from __future__ import annotations

import pytest
import torch

from peer.trainer_process.process import SILENCE_DEADLINE_S
from tests.trainer.service.test_inbox import inbox, running
from trainer.service.service import LOOK_S, MOST_REST_S, WorkPace, meter_of


class Card:
    """Draws `busy` watts in a step, `idle` otherwise; its counter is brought up to date every `every` seconds."""

    def __init__(self, busy: float, idle: float, every: float = 0.0) -> None:
        self.busy, self.idle, self.every = busy, idle, every
        self.now = self.joules = self.told = self.told_at = 0.0
        self.steps = 0

    def pass_(self, seconds: float, watts: float) -> None:
        self.now += seconds
        self.joules += seconds * watts
        if self.now - self.told_at >= self.every:
            self.told, self.told_at = self.joules, self.now

    def wait(self, seconds: float) -> bool:
        self.pass_(seconds, self.idle)
        return False

    def run(self, watts: float, step_s: float, until_s: float, load: float = 1.0) -> WorkPace:
        pace = WorkPace(lambda: self.told, lambda: self.now)
        pace.watts, pace.load = watts, load
        while self.now < until_s:
            pace.begin()
            self.pass_(step_s, self.busy)
            self.steps += 1
            pace.keep(self.wait)
        return pace


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.004, 4.0])
@pytest.mark.parametrize(
    ("watts", "load", "every", "share"),
    [
        (200.0, 1.0, 0.0, 140 / 240),
        (200.0, 1.0, 0.1, 140 / 240),
        (0.0, 0.1, 0.0, 0.1),
        (200.0, 0.9, 0.0, 140 / 240),
    ],
    ids=["power", "a slow counter", "load", "power first"],
)
def test_the_stricter_limit_gives_the_work_its_share_of_the_time(
    watts: float, load: float, every: float, share: float, step_s: float
) -> None:
    card = Card(busy=300.0, idle=60.0, every=every)
    pace = card.run(watts, step_s, until_s=600.0, load=load)
    worked = card.steps * step_s
    assert worked / card.now == pytest.approx(share, rel=0.05)
    assert pace.rested == pytest.approx(card.now - worked, abs=1e-6)
    assert every or pace.spent == pytest.approx(300.0 * worked), "the energy of waits is not that of work"
    assert not 60.0 < watts < 300.0 or card.joules / card.now < 1.01 * watts


def test_no_limit_and_no_counter_are_no_wait() -> None:
    for watts, joules in ((0.0, 1e9), (200.0, None)):
        pace = WorkPace(lambda told=joules: told)  # type: ignore[misc]
        pace.watts = watts
        pace.keep(lambda seconds: pytest.fail("it waits"))
        assert pace.measures == (joules is not None)
    assert meter_of(torch.device("cpu"))() is None, "a processor has no counter"


def test_what_cannot_wait_ends_a_wait() -> None:
    box = inbox("compute", "pace")
    job = running(box)
    assert not box.wait(0.0, job)
    box.take({"do": "finish"})
    assert box.wait(60.0, job), "the round is to end"
    box.take({"do": "compute", "id": 9})
    assert box.wait(60.0, None), "there is something to do"


def test_a_wait_ends_at_once_when_the_limit_is_lifted_or_a_command_comes() -> None:
    card = Card(busy=300.0, idle=60.0)
    pace = WorkPace(lambda: None, lambda: card.now)
    for at, lifts in ((3.0, True), (5.0, False)):
        pace.load = 0.1
        pace.begin()
        card.pass_(100.0, 300.0)
        end = card.now

        def wait(seconds: float, end: float = end, at: float = at, lifts: bool = lifts) -> bool:
            card.wait(seconds)
            if lifts and card.now - end >= at:
                pace.load = 1.0
            return not lifts and card.now - end >= at

        pace.keep(wait)
        assert at <= card.now - end <= at + LOOK_S


def test_no_wait_is_so_long_that_the_peer_takes_the_trainer_for_hung() -> None:
    card = Card(busy=300.0, idle=60.0)
    card.run(0.0, 1000.0, until_s=1000.0, load=0.1)
    assert card.now == pytest.approx(1000.0 + MOST_REST_S, abs=LOOK_S) and MOST_REST_S < SILENCE_DEADLINE_S


def test_the_rate_that_is_told_includes_the_waits_to_come() -> None:
    card = Card(busy=300.0, idle=60.0)
    pace = WorkPace(lambda: None, lambda: card.now)
    pace.load = 0.25
    assert pace.slowed(2.0) == 8.0, "before the first wait"
    pace.begin()
    card.pass_(2.0, 300.0)
    pace.keep(card.wait)
    assert pace.slowed(2.0) == pytest.approx(8.0) and pace.slowed(4.0) == 16.0
    pace.load = 1.0
    assert pace.slowed(4.0) == pytest.approx(10.0), "the waits so far"
