"""Whose claims about the chain are looked at, after some were false."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.sync import remote_chains
from protocol.sync.remote_chains import DISBELIEF_S, MAX_DISBELIEF_S, MAX_UNANSWERED_S
from protocol.transport.interface import Unreachable
from tests.protocol.chains import grow
from tests.protocol.peers import ANN, BOB, ME, Answer
from tests.protocol.sync.table import CYN, DAN, EVE, FOUR, Table, on_table


def test_a_peer_that_is_gone_is_not_believed_for_a_while(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        table.hear(BOB.peer_id, round=5, tip=b"\x05" * 32)
        await table.look()
        assert table.claims.ahead(known=False) == []
        await trio.sleep(DISBELIEF_S + 0.1)
        assert table.claims.ahead(known=False) == [BOB.peer_id]

    on_table(tmp_path, check)


def test_strangers_wait_after_one_of_them_showed_a_false_state(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        for peer in (BOB, CYN):
            table.hear(peer.peer_id, round=5, tip=b"\x05" * 32)
        table.claims.false_state(BOB.peer_id)
        assert table.claims.ahead(known=False) == []
        assert ME.peer_id not in table.claims.sources()

    on_table(tmp_path, check)


BUSY_S = 700.0


def busy(answer: Answer, kinds: tuple[str, ...]) -> Answer:
    """Answer no question of these kinds for `BUSY_S`."""

    async def answer_later(kind: str, data: bytes) -> bytes:
        if kind in kinds and trio.current_time() < BUSY_S:
            raise Unreachable("no answer in time")
        return await answer(kind, data)

    return answer_later


@pytest.mark.parametrize("kinds", [("tips", "commits"), ("blob", "want", "leaves", "have")])
@pytest.mark.parametrize("shared", [0, 2])
def test_a_peer_is_followed_within_a_minute_after_it_was_too_busy_to_answer(
    tmp_path: Path, kinds: tuple[str, ...], shared: int
) -> None:
    """As a newcomer, for whom everybody is a stranger, and as a member; without records, or without their results."""

    async def check(table: Table) -> None:
        for replica in (table.ours, table.theirs):
            grow(replica, shared, [ANN], voters=FOUR)
        grow(table.theirs, 3, [ANN], voters=FOUR)
        table.network.answers[ANN.peer_id] = busy(table.network.answers[ANN.peer_id], kinds)
        while table.following.move is None and trio.current_time() < 2 * BUSY_S:
            table.hear(ANN.peer_id, table.theirs)
            await table.look()
            await trio.sleep(1.0)
        assert table.following.move is not None
        assert BUSY_S < trio.current_time() < BUSY_S + MAX_UNANSWERED_S + 10

    on_table(tmp_path, check)


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


@pytest.mark.parametrize("shared", [0, 2])
def test_a_peer_that_strangers_keep_busy_is_asked_again_as_soon_as_it_may_answer(
    tmp_path: Path, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that were verified before a question was not answered show that the peer told the truth."""
    monkeypatch.setattr(remote_chains, "MAX_COMMITS", 1)
    missing = 20

    async def check(table: Table) -> None:
        for replica in (table.ours, table.theirs):
            grow(replica, shared, [ANN], voters=FOUR)
        grow(table.theirs, missing, [ANN], voters=FOUR)
        table.network.answers[ANN.peer_id] = crowded(table.network.answers[ANN.peer_id])
        while table.following.move is None and trio.current_time() < 10_000:
            table.hear(ANN.peer_id, table.theirs)
            await table.look()
            await trio.sleep(1.0)
        assert table.following.move is not None and table.following.move.rounds == shared + missing
        assert trio.current_time() < missing * (TURN_S + DISBELIEF_S + ASKED_S)

    on_table(tmp_path, check)


def test_a_peer_that_has_lied_is_not_looked_at_sooner_because_it_then_says_nothing(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        for _ in range(10):
            table.claims.disbelieve(BOB.peer_id)
        table.claims.disbelieve(BOB.peer_id, is_unanswered=True)
        table.hear(BOB.peer_id, round=5, tip=b"\x05" * 32)
        assert table.claims.ahead(known=False) == []
        await trio.sleep(MAX_DISBELIEF_S - 1)
        table.hear(BOB.peer_id, round=5, tip=b"\x05" * 32)
        assert table.claims.ahead(known=False) == []

    on_table(tmp_path, check)


@pytest.mark.parametrize("known", [True, False])
def test_silent_claimants_take_turns_with_whoever_was_disbelieved_longest_ago(tmp_path: Path, known: bool) -> None:
    async def check(table: Table) -> None:
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

    on_table(tmp_path, check)
