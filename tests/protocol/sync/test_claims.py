"""Whose claims are looked at, in which order, at what cost, and for how long a peer that showed nothing is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.sync.remote_chains import (
    BYTES_PER_MINUTE,
    CHECKS_PER_MINUTE,
    DISBELIEF_S,
    HOPE_S,
    MAX_DISBELIEF_S,
    Budget,
)
from protocol.wire.identity import Identity
from tests.protocol.chains import grow
from tests.protocol.peers import ANN, BOB, ME
from tests.protocol.sync.table import Table, on_table

TIP = b"\x05" * 32
CYN, DAN = (Identity.from_seed(bytes([number]) * 32) for number in (4, 5))


def test_ahead_are_those_with_more_rounds_or_another_tip(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        history = table.ours.history
        grow(table.ours, 2, [ANN, BOB], voters=[ANN])
        for rounds, tip in ((0, TIP), (1, history.tip_at(1)), (2, history.tip)):
            table.hear(ANN.peer_id, round=rounds, tip=tip)
            assert table.claims.ahead(known=True) == []
        table.hear(ANN.peer_id, round=2, tip=TIP)
        table.hear(BOB.peer_id, round=3, tip=TIP)
        assert table.claims.ahead(known=True) == [BOB.peer_id, ANN.peer_id], "the longest first"
        assert (table.claims.rounds_of(BOB.peer_id), table.claims.rounds_of(ME.peer_id)) == (3, 0)

    on_table(tmp_path, check)


def test_strangers_stand_apart_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        grow(table.ours, 1, [ANN], voters=[ANN])
        table.hear(CYN.peer_id, round=5, tip=TIP)
        assert table.claims.ahead(known=False) == [CYN.peer_id]
        for peer in (DAN, BOB, ANN):
            table.hear(peer.peer_id, round=10**6, tip=TIP)
            assert table.claims.ahead(known=False)[0] == CYN.peer_id
        assert table.claims.ahead(known=True) == [ANN.peer_id]
        assert table.claims.sources() == [ANN.peer_id]
        assert table.claims.sources(DAN.peer_id) == [DAN.peer_id, ANN.peer_id]

    on_table(tmp_path, check)


def test_a_peer_that_shows_nothing_is_not_believed_for_longer_each_time(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        patience = DISBELIEF_S
        for round in range(10, 20):
            table.hear(ANN.peer_id, round=round, tip=bytes([round]) * 32)
            table.claims.disbelieve(ANN.peer_id)
            table.hear(ANN.peer_id, round=round, tip=bytes([round + 100]) * 32)
            assert table.claims.ahead(known=True) == []
            await trio.sleep(patience + 0.001)
            table.hear(ANN.peer_id, round=round, tip=bytes([round + 100]) * 32)
            assert table.claims.ahead(known=True) == [ANN.peer_id]
            patience = min(2 * patience, MAX_DISBELIEF_S)

    on_table(tmp_path, check)


def test_who_was_only_postponed_is_disbelieved_for_as_long_as_before(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        table.hear(ANN.peer_id, round=9, tip=TIP)
        table.claims.disbelieve(ANN.peer_id)
        table.claims.postpone(ANN.peer_id)
        table.claims.disbelieve(ANN.peer_id)
        await trio.sleep(2 * DISBELIEF_S - 1)
        table.hear(ANN.peer_id, round=9, tip=TIP)
        assert table.claims.ahead(known=True) == []
        await trio.sleep(2)
        table.hear(ANN.peer_id, round=9, tip=TIP)
        assert table.claims.ahead(known=True) == [ANN.peer_id]

    on_table(tmp_path, check)


def test_a_newcomer_hopes_for_so_long_whoever_claims(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        assert not table.claims.hopes()
        waited = 0.0
        for number in range(1000):
            fresh = Identity.from_seed(number.to_bytes(32, "big"))
            table.hear(fresh.peer_id, round=9, tip=number.to_bytes(32, "big"))
            if not table.claims.hopes():
                break
            await trio.sleep(1.0)
            waited += 1.0
        assert HOPE_S - 1 < waited < HOPE_S + 2

    on_table(tmp_path, check)


def test_strangers_make_nobody_wait_that_has_a_record(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        grow(table.ours, 1, [ANN], voters=[ANN])
        table.hear(CYN.peer_id, round=9, tip=TIP)
        assert table.claims.ahead(known=False) and not table.following.is_promising(0.0, was_away=False)
        table.hear(ANN.peer_id, round=9, tip=TIP)
        assert table.following.is_promising(0.0, was_away=False) and not table.following.is_promising(60.0, was_away=False)

    on_table(tmp_path, check)


@pytest.mark.parametrize("size_bytes, checks", [(BYTES_PER_MINUTE // 40, 0), (0, CHECKS_PER_MINUTE // 40)])
def test_strangers_may_spend_a_tenth_and_the_purse_fills_in_a_minute(size_bytes: int, checks: int) -> None:
    budget = Budget(100.0)
    spent = 0
    while budget.allows(100.0, known=False):
        budget.pay(100.0, size_bytes, checks)
        spent += 1
    assert spent == 4 and budget.allows(100.0, known=True)
    while budget.allows(100.0, known=True):
        budget.pay(100.0, size_bytes, checks)
        spent += 1
    assert spent == 40
    assert budget.allows(101.0, known=True) and not budget.allows(150.0, known=False)
    assert budget.allows(155.0, known=False)


def test_what_led_somewhere_costs_nothing() -> None:
    budget = Budget(0.0)
    for _ in range(100):
        budget.pay(0.0, BYTES_PER_MINUTE // 4, CHECKS_PER_MINUTE // 4)
        budget.pay(0.0, -BYTES_PER_MINUTE // 4, -CHECKS_PER_MINUTE // 4)
    assert budget.allows(0.0, known=False)


def test_a_peer_that_was_away_trains_for_no_round_that_is_long_over(tmp_path: Path) -> None:
    """Whether or not the one that says so is believed; but a stranger, or who has been here all the time, delays nothing."""

    async def check(table: Table) -> None:
        grow(table.ours, 3, [ANN, BOB], voters=[ANN])
        for peer, rounds, is_waiting in ((CYN, 99, False), (ANN, 5, False), (BOB, 6, True)):
            table.hear(peer.peer_id, round=rounds, tip=TIP)
            table.claims.disbelieve(peer.peer_id)
            assert table.following.is_promising(59.0, was_away=True) is is_waiting
        assert not table.following.is_promising(59.0, was_away=False)
        assert not table.following.is_promising(61.0, was_away=True)

    on_table(tmp_path, check)
