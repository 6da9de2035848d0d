"""Whose claims are looked at, in which order and at what cost, and for how long a peer that showed nothing waits."""

from __future__ import annotations

import pytest
import trio

from protocol.sync import remote_chains
from protocol.sync.remote_chains import (
    BYTES_PER_MINUTE,
    CHECKS_PER_MINUTE,
    DISBELIEF_S,
    HOPE_S,
    MAX_DISBELIEF_S,
    MAX_UNANSWERED_S,
    Budget,
)
from protocol.transport.interface import Unreachable
from protocol.wire.identity import Identity
from tests.protocol.chains import grow
from tests.protocol.peers import ANN, BOB, ME, Answer
from tests.protocol.sync.table import CYN, DAN, EVE, FOUR, Table

TIP = b"\x05" * 32


async def test_ahead_are_those_with_more_rounds_or_another_tip(table: Table) -> None:
    history = table.ours.history
    grow(table.ours, 2, [ANN, BOB], voters=[ANN])
    for rounds, tip in ((0, TIP), (1, history.tip_at(1)), (2, history.tip)):
        table.hear(ANN.peer_id, round=rounds, tip=tip)
        assert table.claims.ahead(known=True) == []
    table.hear(ANN.peer_id, round=2, tip=TIP)
    table.hear(BOB.peer_id, round=3, tip=TIP)
    assert table.claims.ahead(known=True) == [BOB.peer_id, ANN.peer_id], "the longest first"
    assert (table.claims.rounds_of(BOB.peer_id), table.claims.rounds_of(ME.peer_id)) == (3, 0)


async def test_strangers_stand_apart_in_the_order_in_which_they_came(table: Table) -> None:
    grow(table.ours, 1, [ANN], voters=[ANN])
    table.hear(CYN.peer_id, round=5, tip=TIP)
    assert table.claims.ahead(known=False) == [CYN.peer_id]
    for peer in (DAN, BOB, ANN):
        table.hear(peer.peer_id, round=10**6, tip=TIP)
        assert table.claims.ahead(known=False)[0] == CYN.peer_id
    assert table.claims.ahead(known=True) == [ANN.peer_id]
    assert table.claims.sources() == [ANN.peer_id]
    assert table.claims.sources(DAN.peer_id) == [DAN.peer_id, ANN.peer_id]


@pytest.mark.slow
async def test_a_peer_that_shows_nothing_is_not_believed_for_longer_each_time(table: Table) -> None:
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


async def test_who_was_only_postponed_is_disbelieved_for_as_long_as_before(table: Table) -> None:
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


async def test_a_newcomer_hopes_for_so_long_whoever_claims(table: Table) -> None:
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


async def test_strangers_make_nobody_wait_that_has_a_record(table: Table) -> None:
    grow(table.ours, 1, [ANN], voters=[ANN])
    table.hear(CYN.peer_id, round=9, tip=TIP)
    assert table.claims.ahead(known=False) and not table.following.is_promising(0.0, was_away=False)
    table.hear(ANN.peer_id, round=9, tip=TIP)
    assert table.following.is_promising(0.0, was_away=False) and not table.following.is_promising(60.0, was_away=False)


@pytest.mark.parametrize("size_bytes, checks", [(BYTES_PER_MINUTE // 40, 0), (0, CHECKS_PER_MINUTE // 40)])
def test_strangers_may_spend_a_tenth_and_the_purse_fills_in_a_minute(size_bytes: int, checks: int) -> None:
    budget = Budget()
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
    budget = Budget()
    for _ in range(100):
        budget.pay(0.0, BYTES_PER_MINUTE // 4, CHECKS_PER_MINUTE // 4)
        budget.pay(0.0, -BYTES_PER_MINUTE // 4, -CHECKS_PER_MINUTE // 4)
    assert budget.allows(0.0, known=False)


async def test_a_peer_that_was_away_trains_for_no_round_that_is_long_over(table: Table) -> None:
    """Whether or not the one that says so is believed; but a stranger, or who has been here all the time, delays nothing."""
    grow(table.ours, 3, [ANN, BOB], voters=[ANN])
    for peer, rounds, is_waiting in ((CYN, 99, False), (ANN, 5, False), (BOB, 6, True)):
        table.hear(peer.peer_id, round=rounds, tip=TIP)
        table.claims.disbelieve(peer.peer_id)
        assert table.following.is_promising(59.0, was_away=True) is is_waiting
    assert not table.following.is_promising(59.0, was_away=False)
    assert not table.following.is_promising(61.0, was_away=True)


async def test_strangers_wait_after_one_of_them_showed_a_false_state(table: Table) -> None:
    for peer in (BOB, CYN):
        table.hear(peer.peer_id, round=5, tip=b"\x05" * 32)
    table.claims.false_state(BOB.peer_id)
    assert table.claims.ahead(known=False) == []
    assert ME.peer_id not in table.claims.sources()


BUSY_S = 700.0


def busy(answer: Answer, kinds: tuple[str, ...]) -> Answer:
    """Answer no question of these kinds for `BUSY_S`."""

    async def answer_later(kind: str, data: bytes) -> bytes:
        if kind in kinds and trio.current_time() < BUSY_S:
            raise Unreachable("no answer in time")
        return await answer(kind, data)

    return answer_later


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "shared"), [(("tips", "commits"), 0), (("blob", "want", "leaves", "have"), 2)])
async def test_a_peer_is_followed_within_a_minute_after_it_was_too_busy_to_answer(
    table: Table, kinds: tuple[str, ...], shared: int
) -> None:
    """As a newcomer, for whom everybody is a stranger, and as a member; without records, or without their results."""
    table.share(shared, [ANN], voters=FOUR)
    grow(table.theirs, 3, [ANN], voters=FOUR)
    table.network.answers[ANN.peer_id] = busy(table.network.answers[ANN.peer_id], kinds)
    while table.following.move is None and trio.current_time() < 2 * BUSY_S:
        await table.found()
        await trio.sleep(1.0)
    assert table.following.move is not None
    assert BUSY_S < trio.current_time() < BUSY_S + MAX_UNANSWERED_S + 10


TURN_S, ASKED_S = 24.0, 10.0
"""Seconds between two answers of a peer that 64 strangers ask all the time, and the seconds that we wait for one."""


def crowded(answer: Answer) -> Answer:
    """Answer a question about records once in `TURN_S`."""
    next_turn = 0.0

    async def answer_in_turn(kind: str, data: bytes) -> bytes:
        nonlocal next_turn
        if kind == "commits":
            wait_s = next_turn - trio.current_time()
            await trio.sleep(max(0.0, min(wait_s, ASKED_S)))
            if wait_s > ASKED_S:
                raise Unreachable("no answer in time")
            next_turn = trio.current_time() + TURN_S
        return await answer(kind, data)

    return answer_in_turn


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0, 2])
async def test_a_peer_that_strangers_keep_busy_is_asked_again_as_soon_as_it_may_answer(
    table: Table, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that were verified before a question was not answered show that the peer told the truth."""
    monkeypatch.setattr(remote_chains, "MAX_COMMITS", 1)
    missing = 20
    table.share(shared, [ANN], voters=FOUR)
    grow(table.theirs, missing, [ANN], voters=FOUR)
    table.network.answers[ANN.peer_id] = crowded(table.network.answers[ANN.peer_id])
    while table.following.move is None and trio.current_time() < 10_000:
        await table.found()
        await trio.sleep(1.0)
    assert table.following.move is not None and table.following.move.rounds == shared + missing
    assert trio.current_time() < missing * (TURN_S + DISBELIEF_S + ASKED_S)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
async def test_silent_claimants_take_turns_with_whoever_was_disbelieved_longest_ago(table: Table, known: bool) -> None:
    grow(table.ours, int(known), [BOB, CYN, DAN, EVE], voters=FOUR)
    turns: list[str] = []
    for _ in range(400):
        for place, liar in enumerate((CYN, DAN, EVE, BOB)):
            table.hear(liar.peer_id, round=99 - place, tip=b"\x05" * 32)
        ahead = table.claims.ahead(known=known)[:2]
        for peer in ahead:
            turns.append(peer)
            await trio.sleep(10)  # it does not answer
            table.claims.disbelieve(peer, is_unanswered=True)
        await trio.sleep(1)
    assert turns.count(BOB.peer_id) >= len(turns) // 5, "the honest one claims the least, and came last"
