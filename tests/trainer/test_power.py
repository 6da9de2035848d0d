"""A GPU's draw, kept below a limit on average by waiting between steps; the GPU and the clock are made up."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.service.test_inbox import inbox, running
from trainer.service.service import LOOK_S, MOST_TIMES, PowerPace, meter_of


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

    def run(self, watts: float, step_s: float, until_s: float) -> PowerPace:
        pace = PowerPace(lambda: self.told, lambda: self.now)
        pace.watts = watts
        while self.now < until_s:
            pace.begin()
            self.pass_(step_s, self.busy)
            self.steps += 1
            pace.keep(self.wait)
        return pace


@pytest.mark.parametrize("step_s", [0.004, 0.3, 4.0])
@pytest.mark.parametrize("every", [0.0, 0.1])
def test_the_average_stays_below_the_limit_and_near_it(step_s: float, every: float) -> None:
    card = Card(busy=300.0, idle=60.0, every=every)
    card.run(200.0, step_s, until_s=600.0)
    assert 190.0 < card.joules / card.now < 202.0


def test_a_limit_that_is_not_reached_costs_nothing() -> None:
    card = Card(busy=150.0, idle=60.0)
    pace = card.run(200.0, 0.3, until_s=60.0)
    assert card.steps == pytest.approx(200, abs=1)
    assert pace.spent == pytest.approx(150.0 * 60.0, rel=0.01), "joules of the steps"


def test_the_energy_of_waiting_is_not_that_of_work() -> None:
    card = Card(busy=300.0, idle=60.0)
    pace = card.run(200.0, 1.0, until_s=100.0)
    assert pace.spent == pytest.approx(300.0 * card.steps)


def test_a_limit_below_the_draw_of_an_idle_card_stops_nothing() -> None:
    card = Card(busy=300.0, idle=60.0)
    card.run(30.0, 1.0, until_s=200.0)
    assert card.steps == pytest.approx(200 / (1 + MOST_TIMES), abs=1)


def test_no_limit_and_no_counter_are_no_wait() -> None:
    for watts, joules in ((0.0, 1e9), (200.0, None)):
        pace = PowerPace(lambda told=joules: told)  # type: ignore[misc]
        pace.watts = watts
        pace.keep(lambda seconds: pytest.fail("it waits"))
        assert pace.measures == (joules is not None)


def test_idle_time_saves_up_one_second_at_most() -> None:
    card = Card(busy=300.0, idle=0.0)
    pace = card.run(200.0, 1.0, until_s=10.0)
    card.wait(1000.0)
    pace.begin()
    card.pass_(10.0, 300.0)
    began = card.now
    pace.keep(card.wait)
    assert card.now - began >= 10.0 * 300.0 / 200.0 - 10.0 - 1.0 - LOOK_S


def test_a_processor_has_no_counter() -> None:
    assert meter_of(torch.device("cpu"))() is None


def test_what_cannot_wait_ends_a_wait() -> None:
    box = inbox("compute", "power")
    job = running(box)
    assert not box.wait(0.0, job)
    box.take({"do": "finish"})
    assert box.wait(60.0, job), "the round is to end"
    box.take({"do": "compute", "id": 9})
    assert box.wait(60.0, None), "there is something to do"
