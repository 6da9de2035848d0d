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
    Download,
    Source,
)
from tests.protocol.blobs.peers import PEERS, even

ANN, BOB, CYN = PEERS[:3]


class NoChance(Random):
    """Never explores."""

    def random(self) -> float:
        return 0.5


def some_sources(random: Random | None = None) -> Download:
    """A download of one chunk, which the three have, and which Ann was asked for."""
    download = Download(even(1), 0, b"seed")
    download._random = random or NoChance()
    for peer in PEERS[:3]:
        download.has(peer, 1, 0.0)
    return download


def in_order(download: Download) -> list[str]:
    return download._in_order([*download.sources])


def test_the_window_grows_by_one_and_is_halved() -> None:
    source = Source()
    assert source.window == FIRST_WINDOW
    for _ in range(100):
        source.brought(1000, SOON_S / 2)
    assert source.window == MOST_IN_WINDOW
    source.brought(1000, (SOON_S + LATE_S) / 2)
    assert source.window == MOST_IN_WINDOW
    source.brought(1000, LATE_S + 1)
    assert source.window == MOST_IN_WINDOW - 1
    source.failed(0.0)
    assert source.window == (MOST_IN_WINDOW - 1) // 2
    for _ in range(10):
        source.failed(0.0)
    assert source.window == 1


def test_the_best_come_first_and_a_failure_lowers_both_its_parts() -> None:
    download = some_sources()
    for peer, rate in ((ANN, 100.0), (BOB, 300.0), (CYN, 200.0)):
        download.sources[peer].brought(int(rate), 1.0)
    assert in_order(download) == [BOB, CYN, ANN]
    download.sources[BOB].failed(0.0)
    assert in_order(download) == [CYN, BOB, ANN], "300 x 0.7 x 0.7 < 200"


def test_a_new_source_counts_as_the_best_until_it_is_known() -> None:
    download = some_sources()
    download.sources[ANN].brought(100, 1.0)
    download.sources[BOB].brought(300, 1.0)
    download.sources[BOB].brought(300, 1.0)
    download.sources[BOB].failed(0.0)
    assert in_order(download)[0] == CYN


def test_chance_decides_now_and_then() -> None:
    download = some_sources(Random(1))
    for number, peer in enumerate(PEERS[:3]):
        download.sources[peer].brought(1000 * (number + 1), 1.0)
    firsts = [in_order(download)[0] for _ in range(600)]
    assert 0 < sum(first != CYN for first in firsts) < 60


def test_who_fails_twice_rests_twice_as_long_each_time_and_heals() -> None:
    source, now, rests = Source(), 0.0, list[float]()
    for _ in range(8):
        source.failed(now)
        assert source.may_be_asked(now), "once may be chance"
        source.failed(now)
        assert not source.may_be_asked(now)
        rests.append(source.rests_until - now)
        now += rests[-1]
        assert source.may_be_asked(now)
    assert rests == [min(REST_S * 2**number, MOST_REST_S) for number in range(8)]
    source.brought(1000, 0.5)
    source.failed(now)
    source.failed(now)
    assert source.rests_until - now == REST_S


def test_a_busy_source_is_asked_again_soon_and_is_not_blamed() -> None:
    download = some_sources()
    ann = download.sources[ANN]
    ann.brought(1000, 0.1)
    success, rate = ann.success, ann.rate
    for now in range(0, 100, 10):
        if not ann.debts:
            ann.owe(0, 1000, now)
            download._asked.setdefault(0, []).append(ANN)
            download.owed_bytes += 1000
        download.busy(ANN, (0,), now)
        assert not ann.may_be_asked(now) and ann.may_be_asked(now + 1.5 * MOST_BUSY_S)
    assert (ann.success, ann.rate) == (success, rate), "its score is what it was"
    assert BUSY_S <= MOST_BUSY_S < REST_S


def test_deadlines_follow_the_measured_rate_within_bounds() -> None:
    source = Source()
    source.brought(1000, 1.0)
    source.owe(0, 3000, 5.0)
    assert source.debts[0].overdue_at == 5.0 + DEADLINE_TIMES * 3.0
    source.owe(1, 10**9, 5.0)
    assert source.debts[1].overdue_at == 5.0 + MOST_DEADLINE_S
    quick = Source()
    quick.brought(10**6, 1.0)
    quick.owe(0, 1000, 5.0)
    assert quick.debts[0].overdue_at == 5.0 + LEAST_DEADLINE_S


def test_a_large_chunk_of_an_unknown_source_has_longer() -> None:
    small, large = Source(), Source()
    small.owe(0, 1000, 0.0)
    large.owe(0, 8 << 20, 0.0)
    assert LEAST_DEADLINE_S < small.debts[0].overdue_at < large.debts[0].overdue_at == MOST_DEADLINE_S


def test_the_rate_is_that_of_all_it_owed_since_it_was_asked() -> None:
    one_by_one, at_once = Source(), Source()
    for number in range(1, 4):
        one_by_one.brought(1000 * number, float(number))
        at_once.brought(3000, 3.0)
    assert one_by_one.due_s(5000) == at_once.due_s(5000) == 5.0


def test_wrong_bytes_bar_for_good() -> None:
    download = some_sources()
    download.wrong(ANN, 0.0)
    download.has(ANN, 1, inf)
    assert ANN not in download.sources and download.barred == {ANN}


def test_a_source_on_a_fast_line_is_asked_for_several_chunks_together() -> None:
    source = Source()
    source.owe(0, 1000, 10.0)
    assert source.may_be_asked(10.0), "its window is small"
    while source.window < FAST_WINDOW:
        source.brought(1000, 0.01)
    assert not source.may_be_asked(10.0 + PAUSE_S / 2)
    assert source.may_be_asked(10.1)
    source.owed_bytes -= 1000
    assert source.may_be_asked(10.0 + PAUSE_S / 2), "it has nothing to send"
