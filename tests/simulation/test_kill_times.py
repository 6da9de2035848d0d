"""A death in the middle of an exchange: the survivors commit the same round in time, and with all they have."""

from __future__ import annotations

import pytest

from tests.simulation.kill_times import BAR, EXCHANGE_S, kill_at
from tests.tiers import first_fast

UNDISTURBED_S = 70.0
DEATHS = [("owner", 50.0), ("proposer", 5.0)]


@pytest.mark.slow
def test_an_undisturbed_exchange_takes_about_what_the_links_take() -> None:
    outcome = kill_at("owner", None)
    assert outcome.failure is None and outcome.lost == 0
    assert EXCHANGE_S <= outcome.seconds <= UNDISTURBED_S


@pytest.mark.parametrize(("victim", "at_s"), first_fast(DEATHS, 0))
def test_a_death_costs_at_most_half_an_exchange_and_no_live_contribution(victim: str, at_s: float) -> None:
    outcome = kill_at(victim, at_s)
    assert outcome.failure is None and outcome.lost == 0
    assert outcome.seconds <= BAR * UNDISTURBED_S + outcome.noticed_s
