"""The wealth of the betting test: honest peers stay below the alarm, cheats that alternate do not, and restarts keep it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from protocol.disk import Disk
from protocol.formats.bets import BETS, total_growth
from protocol.rollouts.betting import ALARM, MOST_KEPT, SUSPICIOUS, Wealth, WealthFile
from protocol.rollouts.trust import FADES, TrustScores
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId

ANN, BOB = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(2))
RATE, TOKENS = 0.01, 1000
"""Rate of an honest peer's exchanges at the bound, where the test has least to spare, and tokens of a batch."""


def growth(exchanged: int, stake: float = 1.0) -> tuple[float, ...]:
    """The growth of a batch with so many exchanges, the same for each bet."""
    won, lost = math.log1p(stake * (1 - RATE)), math.log1p(-stake * RATE)
    return (exchanged * won + (TOKENS - exchanged) * lost,) * BETS


def checks_until_alarm(batches: list[int]) -> int | None:
    """The check that sets a peer aside which exchanges so many tokens in each batch."""
    wealth = Wealth()
    for number, exchanged in enumerate(batches, start=1):
        wealth = wealth.after(growth(exchanged))
        if wealth.reason:
            return number
    return None


def test_honest_peers_seldom_reach_a_wealth_however_often_we_look() -> None:
    """Ville: of 100 peers exactly at the bound at most 10 may ever reach 10 in the mean; a fixed seed stays below."""
    random, reached = np.random.default_rng(1), 0
    for _ in range(100):
        wealth, most = Wealth(), -math.inf
        for exchanged in random.binomial(TOKENS, RATE, size=20):
            wealth = wealth.after(growth(int(exchanged)))
            most = max(most, wealth.log)
        reached += most >= math.log(10)
    assert reached <= 10


@pytest.mark.parametrize(
    ("batches", "alarm"),
    [([20] * 20, 3), ([0] * 50 + [20] * 20, 55), ([0, 30] * 20, 4), ([0, 0, 0, 40] * 20, 4), ([10] * 500, None)],
)
def test_cheats_are_found_though_they_were_honest_before_or_in_between(batches: list[int], alarm: int | None) -> None:
    assert checks_until_alarm(batches) == alarm


def test_the_reason_names_the_deviation_that_grew_most() -> None:
    kinds = (["shortfalls"] * 5) + (["exchanged tokens"] * 4) + (["differences of mantissas"] * 4)
    for bet, kind in enumerate(kinds):
        wealth = Wealth().after(tuple(20.0 * (place == bet) for place in range(BETS)))
        assert wealth.reason == f"its {kind} in 1 checked batches add up to more than rounding explains"


def test_growth_that_is_not_a_finite_number_for_each_bet_is_refused() -> None:
    for wrong in [(math.nan,) * BETS, (math.inf,) * BETS, (0.0,) * (BETS - 1)]:
        with pytest.raises(AssertionError):
            Wealth().after(wrong)
    assert total_growth([(), (1.0, 2.0), (0.5, -4.0)]) == (1.5, -2.0) and total_growth([()]) == ()
    huge = Wealth().after((-1e300,) * BETS).after((1e300,) * BETS)
    assert huge.reason and math.isfinite(huge.log)


# -- in trust, and across restarts ----------------------------------------------------------------------------------------


def growing(log: float) -> tuple[float, ...]:
    """The growth with which a first check leads to this logarithm of the wealth."""
    return (log + math.log(2),) * BETS


def test_suspicion_has_everything_of_a_peer_checked() -> None:
    trust = TrustScores()
    trust.right(ANN)
    assert not trust.bet(ANN, growing(math.log(SUSPICIOUS) - 0.1)) and trust.chance(ANN) == FADES
    assert not trust.bet(ANN, growing(math.log(SUSPICIOUS))) and trust.chance(ANN) == 1.0
    assert trust.chance(BOB) == 1.0 and trust.wealth.keys() == {ANN}


def test_wealth_and_alarms_outlive_a_restart(tmp_path: Path) -> None:
    before, file = TrustScores(), WealthFile(Disk(durable=False), tmp_path / "wealth")
    assert before.bet(ANN, growing(math.log(ALARM) + 0.1)) and not before.bet(BOB, growing(1.0))
    file.save(before.wealth)
    after = TrustScores()
    after.recall(file.load())
    assert after.wealth == before.wealth and not after.aside(ANN)
    assert after.bet(ANN, growing(0.01)) and not after.bet(BOB, growing(0.01)), "its next check tells it to the user again"


def test_the_file_keeps_the_highest_wealth_of_so_many_peers(tmp_path: Path) -> None:
    file = WealthFile(Disk(durable=False), tmp_path / "wealth")
    many = {PeerId(f"peer {number}"): Wealth().after(growing(0.001 * number - 0.01)) for number in range(MOST_KEPT + 20)}
    file.save(many)
    assert file.load() == dict([*many.items()][-MOST_KEPT:])
    file.save(dict([*many.items()][:5]))
    assert file.load() == {}, "peers without gain"


def test_a_damaged_file_counts_as_absent_and_one_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wealth"
    file = WealthFile(Disk(durable=False), path)
    assert file.load() == {}
    file.save({ANN: Wealth().after(growing(3.0))})
    path.write_bytes(path.read_bytes()[:-1])
    assert file.load() == {} and not path.exists()
    for data in (b"\x90", b"\x81\xa1a\x92\x01\x02", b"\x81\xa1a\x92\x00\xcb" + bytes(8)):
        path.write_bytes(chunk_hash(data) + data)
        with pytest.raises(ValueError, match="form|map"):
            file.load()
