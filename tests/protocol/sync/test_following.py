"""Whom a peer follows: whose claims are looked at, and for how long a peer that showed nothing is not believed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from protocol.events import Event, RolledBack
from protocol.membership.liveness import Membership
from protocol.network.interface import Unreachable
from protocol.node.guard import Guard
from protocol.state.base import Base
from protocol.state.chain import genesis_tip
from protocol.state.outer_state import OuterState
from protocol.state.replica import Replica
from protocol.state.store import Store
from protocol.sync.catch_up import Followed
from protocol.sync.following import DISBELIEF_S, HOPE_S, MAX_DISBELIEF_S, Following
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_heartbeat, a_session, at_once, extended
from tests.simulation.world import simulated_run

TIP = b"\x05" * 32


class Looking:
    """In place of `CatchUp`: what comes of looking at any peer's chain is `outcome`.  looked: at whom."""

    offload = staticmethod(at_once)

    def __init__(self) -> None:
        self.outcome: Followed | bool | Exception = Followed.NOTHING
        self.looked: list[PeerId] = []

    async def follow(self, peer: PeerId) -> Any:
        await trio.lowlevel.checkpoint()
        self.looked.append(peer)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    scout = follow


class Table:
    """We hold a chain of two rounds."""

    def __init__(self, folder: Path) -> None:
        signed = simulated_run()
        self.events: list[Event] = []
        self.replica = Replica.open(signed, Store(folder), OuterState(signed.manifest))
        base = Base(0, 0, genesis_tip(signed.run), None)
        for _ in range(2):
            commit, base = extended(signed, base, ME)
            self.replica.history.append(commit)
        self.membership = Membership(ME.peer_id, trio.current_time(), self.replica.history)
        self.looking = Looking()
        as_catch_up: Any = self.looking
        session = a_session(signed.run, TableNetwork(), self.events)
        self.following = Following(session, Guard(session), self.replica, self.membership, as_catch_up)

    def hear(self, peer: PeerId, round: int, tip: bytes = TIP) -> None:
        known = self.membership.get(peer)
        seq = known.heartbeat.seq + 1 if known else 0
        now = trio.current_time()
        self.membership.on_connected(peer, now)
        self.membership.on_heartbeat(peer, a_heartbeat(round=round, tip=tip, seq=seq), now, peer)


def on_table(folder: Path, check: Callable[[Table], Awaitable[None]]) -> None:
    async def main() -> None:
        table = Table(folder)
        try:
            await check(table)
        finally:
            table.replica.state.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_ahead_are_those_with_more_rounds_or_another_tip_the_longest_first(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        history = table.replica.history
        for rounds, tip in ((0, TIP), (1, history.tip_at(1)), (2, history.tip)):
            table.hear(ANN.peer_id, rounds, tip)
            assert table.following.ahead() == []
        table.hear(ANN.peer_id, 2)
        table.hear(BOB.peer_id, 3)
        assert table.following.ahead() == [BOB.peer_id, ANN.peer_id]
        assert (table.following.rounds_of(BOB.peer_id), table.following.rounds_of(ME.peer_id)) == (3, 0)

    on_table(tmp_path, check)


@pytest.mark.parametrize("outcome", [Followed.NOTHING, Followed.KEPT, Unreachable("gone"), Malformed("odd")])
def test_a_peer_that_shows_nothing_is_not_believed_for_longer_each_time(
    tmp_path: Path, outcome: Followed | Exception
) -> None:
    async def check(table: Table) -> None:
        table.looking.outcome = outcome
        patience = DISBELIEF_S
        for round in range(10, 20):
            table.hear(ANN.peer_id, round, bytes([round]) * 32)
            await table.following.follow()
            table.hear(ANN.peer_id, round, bytes([round + 100]) * 32)
            assert table.following.ahead() == []
            await trio.sleep(patience + 0.001)
            assert table.following.ahead() == [ANN.peer_id]
            patience = min(2 * patience, MAX_DISBELIEF_S)

    on_table(tmp_path, check)


@pytest.mark.parametrize(
    "outcome, judged",
    [(Followed.NOTHING, False), (Followed.KEPT, True), (Unreachable("gone"), False), (Malformed("odd"), True)],
)
def test_a_lost_fork_and_a_malformed_chain_are_not_looked_at_again(
    tmp_path: Path, outcome: Followed | Exception, judged: bool
) -> None:
    async def check(table: Table) -> None:
        table.looking.outcome = outcome
        table.hear(ANN.peer_id, 9)
        await table.following.follow()
        table.hear(BOB.peer_id, 9)
        assert table.following.ahead() == ([] if judged else [BOB.peer_id])

    on_table(tmp_path, check)


@pytest.mark.parametrize("outcome", [Followed.EXTENDED, Followed.SWITCHED])
def test_a_peer_that_shows_its_chain_is_believed_at_once_again(tmp_path: Path, outcome: Followed) -> None:
    async def check(table: Table) -> None:
        table.hear(ANN.peer_id, 9)
        await table.following.follow()
        await trio.sleep(DISBELIEF_S + 1)
        table.looking.outcome = outcome
        await table.following.follow()
        assert table.looking.looked == [ANN.peer_id] * 2 and table.following.ahead() == [ANN.peer_id]

    on_table(tmp_path, check)


def test_scouting_stops_at_the_first_that_has_more(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        for peer, round in ((ANN.peer_id, 8), (BOB.peer_id, 9)):
            table.hear(peer, round)
        table.looking.outcome = True
        assert await table.following.scout() and table.looking.looked == [BOB.peer_id]
        table.looking.outcome = False
        assert not await table.following.scout() and table.following.ahead() == []

    on_table(tmp_path, check)


def test_hope_ends_when_a_claim_was_not_shown_for_long(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        assert not table.following.hopes()
        table.hear(ANN.peer_id, 9)
        waited = 0.0
        while table.following.hopes():
            await table.following.follow()
            await trio.sleep(1.0)
            waited += 1.0
            table.hear(ANN.peer_id, 9)
        assert HOPE_S / 2 < waited < 2 * HOPE_S

    on_table(tmp_path, check)


@pytest.mark.parametrize("waited_s, holders, kept", [(19.0, [], 2), (21.0, [], 0), (21.0, [ANN.peer_id], 2)])
def test_records_whose_results_nobody_has_are_given_up_after_the_eviction_time(
    tmp_path: Path, waited_s: float, holders: list[PeerId], kept: int
) -> None:
    async def check(table: Table) -> None:
        since = trio.current_time()
        await trio.sleep(waited_s)
        for peer in holders:
            table.hear(peer, 1)
        await table.following.give_up_what_is_lost(since)
        assert table.replica.history.length == kept
        assert table.events == ([] if kept else [RolledBack(0, 2, "")])

    on_table(tmp_path, check)
