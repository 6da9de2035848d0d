"""How much each source is asked for, and which first."""

from __future__ import annotations

from math import inf
from random import Random

from protocol.blobs.download import (
    BUSY_S,
    DEADLINE_TIMES,
    FAST_WINDOW,
    FIRST_WINDOW,
    LATE_S,
    LEAST_DEADLINE_S,
    MOST_BUSY_S,
    MOST_DEADLINE_S,
    MOST_IN_WINDOW,
    MOST_REST_S,
    PAUSE_S,
    REST_S,
    SOON_S,
    Sources,
)
from tests.protocol.blobs.peers import PEERS

ANN, BOB, CYN = PEERS[:3]


class NoChance(Random):
    """Never explores."""

    def random(self) -> float:
        return 0.5


def some_sources(*peers: str) -> Sources:
    sources = Sources(NoChance())
    for peer in PEERS[:3] if not peers else [known for known in PEERS if known in peers]:
        sources.add(peer)
    return sources


def test_the_window_grows_by_one_and_is_halved() -> None:
    sources = some_sources()
    assert sources.window(ANN) == FIRST_WINDOW
    for _ in range(100):
        sources.brought(ANN, 1000, SOON_S / 2)
    assert sources.window(ANN) == MOST_IN_WINDOW
    sources.brought(ANN, 1000, (SOON_S + LATE_S) / 2)
    assert sources.window(ANN) == MOST_IN_WINDOW
    sources.brought(ANN, 1000, LATE_S + 1)
    assert sources.window(ANN) == MOST_IN_WINDOW - 1
    sources.failed(ANN, 0.0)
    assert sources.window(ANN) == (MOST_IN_WINDOW - 1) // 2
    for _ in range(10):
        sources.failed(ANN, 0.0)
    assert sources.window(ANN) == 1


def test_the_best_come_first_and_a_failure_lowers_both_its_parts() -> None:
    sources = some_sources()
    for peer, rate in ((ANN, 100.0), (BOB, 300.0), (CYN, 200.0)):
        sources.brought(peer, int(rate), 1.0)
    assert sources.awake(0.0) == [BOB, CYN, ANN]
    sources.failed(BOB, 0.0)
    assert sources.awake(0.0) == [CYN, BOB, ANN], "300 x 0.7 x 0.7 < 200"


def test_a_new_source_counts_as_the_best_until_it_is_known() -> None:
    sources = some_sources()
    sources.brought(ANN, 100, 1.0)
    sources.brought(BOB, 300, 1.0)
    sources.brought(BOB, 300, 1.0)
    sources.failed(BOB, 0.0)
    assert sources.awake(0.0)[0] == CYN


def test_chance_decides_now_and_then() -> None:
    sources = Sources(Random(1))
    for number, peer in enumerate(PEERS[:3]):
        sources.add(peer)
        sources.brought(peer, 1000 * (number + 1), 1.0)
    firsts = [sources.awake(0.0)[0] for _ in range(600)]
    assert 0 < sum(first != CYN for first in firsts) < 60


def test_who_fails_twice_rests_twice_as_long_each_time_and_heals() -> None:
    sources, now, rests = some_sources(), 0.0, list[float]()
    for _ in range(8):
        sources.failed(ANN, now)
        assert ANN in sources.awake(now), "once may be chance"
        sources.failed(ANN, now)
        assert ANN not in sources.awake(now)
        rests.append(_rest(sources, now))
        now += rests[-1]
        assert ANN in sources.awake(now)
    assert rests == [min(REST_S * 2**number, MOST_REST_S) for number in range(8)]
    sources.brought(ANN, 1000, 0.5)
    sources.failed(ANN, now)
    sources.failed(ANN, now)
    assert _rest(sources, now) == REST_S


def _rest(sources: Sources, now: float) -> float:
    """How long Ann rests: the others never do."""
    step = 0.5
    return next(step * count for count in range(1, 1000) if ANN in sources.awake(now + step * count))


def test_a_busy_source_is_asked_again_soon_and_is_not_blamed() -> None:
    sources = some_sources()
    sources.brought(ANN, 1000, 0.1)
    for _ in range(10):
        sources.busy(ANN, 0.0)
        assert ANN not in sources.awake(0.0)
        assert ANN in sources.awake(1.5 * MOST_BUSY_S)
    assert sources.awake(1.5 * MOST_BUSY_S)[0] == ANN, "its score is what it was"
    assert BUSY_S <= MOST_BUSY_S < REST_S


def test_deadlines_follow_the_measured_rate_within_bounds() -> None:
    sources = some_sources()
    sources.brought(ANN, 1000, 1.0)
    sources.asked(ANN, 3000, 0.0)
    assert sources.deadline(ANN, 5.0) == 5.0 + DEADLINE_TIMES * 3.0
    sources.asked(ANN, 10**9, 0.0)
    assert sources.deadline(ANN, 5.0) == 5.0 + MOST_DEADLINE_S
    sources.settled(ANN, 10**9 + 3000)
    assert sources.deadline(ANN, 5.0) == 5.0 + LEAST_DEADLINE_S


def test_a_large_chunk_of_an_unknown_source_has_longer() -> None:
    sources = some_sources()
    sources.asked(ANN, 1000, 0.0)
    sources.asked(BOB, 8 << 20, 0.0)
    assert LEAST_DEADLINE_S < sources.deadline(ANN, 0.0) < sources.deadline(BOB, 0.0) == MOST_DEADLINE_S


def test_the_rate_is_that_of_all_it_owed_since_it_was_asked() -> None:
    one_by_one, at_once = some_sources(), some_sources()
    for number in range(1, 4):
        one_by_one.brought(ANN, 1000 * number, float(number))
        at_once.brought(ANN, 3000, 3.0)
    assert one_by_one.due_s(ANN, 5000) == at_once.due_s(ANN, 5000) == 5.0


def test_wrong_bytes_bar_for_good() -> None:
    sources = some_sources()
    sources.bar(ANN)
    sources.add(ANN)
    assert ANN not in sources and ANN not in sources.awake(inf) and sources.barred == {ANN}


def test_a_source_on_a_fast_line_is_asked_for_several_chunks_together() -> None:
    sources = some_sources()
    sources.asked(ANN, 1000, 10.0)
    assert ANN in sources.awake(10.0), "its window is small"
    while sources.window(ANN) < FAST_WINDOW:
        sources.brought(ANN, 1000, 0.01)
    assert ANN not in sources.awake(10.0 + PAUSE_S / 2)
    assert ANN in sources.awake(10.1)
    sources.settled(ANN, 1000)
    assert ANN in sources.awake(10.0 + PAUSE_S / 2), "it has nothing to send"
