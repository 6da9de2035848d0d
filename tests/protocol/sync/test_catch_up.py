"""Records taken over from another peer, on a table: its chain is extended, judged, or refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from protocol.content.serving import Serving
from protocol.events import Event, RolledBack
from protocol.network.interface import Unreachable
from protocol.state.base import Base
from protocol.state.chain import genesis_tip
from protocol.state.outer_state import OuterState
from protocol.state.replica import Replica
from protocol.state.store import Store
from protocol.sync.catch_up import CatchUp, Followed
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import Commit
from protocol.wire.questions import CommitsReply, TipsReply
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session, at_once, extended
from tests.simulation.world import simulated_run

Rounds = list[tuple[Identity, int]]
"""Of a chain: the only member of each round and its tokens."""
SHARED: Rounds = [(ANN, 8), (ANN, 8)]


class Table:
    """We hold one chain; Ann serves another."""

    def __init__(self, folder: Path, ours: Rounds, theirs: Rounds) -> None:
        self.signed = simulated_run()
        self.events: list[Event] = []
        self.ours, self.theirs = self._replica(folder / "ours", ours), self._replica(folder / "theirs", theirs)
        self.network = TableNetwork()
        self.network.answers[ANN.peer_id] = Serving(self.theirs, at_once).answer
        session = a_session(self.signed.run, self.network, self.events)
        self.catch_up = CatchUp(session, self.ours, at_once, None)

    def _replica(self, folder: Path, rounds: Rounds) -> Replica:
        replica = Replica.open(self.signed, Store(folder), OuterState(self.signed.manifest))
        base = Base(0, 0, genesis_tip(self.signed.run), None)
        for author, tokens in rounds:
            commit, base = extended(self.signed, base, author, tokens)
            replica.history.append(commit)
        return replica


def on_table(folder: Path, ours: Rounds, theirs: Rounds, check: Callable[[Table], Awaitable[None]]) -> None:
    async def main() -> None:
        table = Table(folder, ours, theirs)
        try:
            await check(table)
        finally:
            for replica in (table.ours, table.theirs):
                replica.state.close()

    trio.run(main)


@pytest.mark.parametrize(
    "ours, theirs, outcome",
    [
        ([], [], Followed.NOTHING),
        (SHARED, SHARED, Followed.NOTHING),
        (SHARED, SHARED[:1], Followed.NOTHING),
        ([], SHARED, Followed.EXTENDED),
        (SHARED, [*SHARED, *[(ANN, 8)] * 200], Followed.EXTENDED),
        ([*SHARED, (ANN, 8)], [*SHARED, (ANN, 9)], Followed.SWITCHED),
        ([*SHARED, (ANN, 9)], [*SHARED, (ANN, 8)], Followed.KEPT),
        ([*SHARED, (ANN, 8)], [*SHARED, (ANN, 4), (ANN, 5)], Followed.SWITCHED),
        ([(BOB, 9)], [(ANN, 8)], Followed.KEPT),
        ([(BOB, 8)] * 80, [(ANN, 9)] * 80, Followed.SWITCHED),
        ([(BOB, 8)] * 100, [(ANN, 9)] * 100, Followed.KEPT),
    ],
    ids=[
        "both at genesis",
        "the same",
        "they are behind",
        "from genesis",
        "far behind",
        "more tokens",
        "fewer tokens",
        "more tokens in more rounds",
        "another first round",
        "another long chain",
        "a final chain",
    ],
)
def test_what_comes_of_following(tmp_path: Path, ours: Rounds, theirs: Rounds, outcome: Followed) -> None:
    async def check(table: Table) -> None:
        before = table.ours.history.tip
        scouted = await table.catch_up.scout(ANN.peer_id)
        assert table.ours.history.tip == before, "scouting takes nothing over"
        assert await table.catch_up.follow(ANN.peer_id) is outcome
        took = outcome in (Followed.EXTENDED, Followed.SWITCHED)
        assert scouted is took
        assert table.ours.history.tip == (table.theirs.history.tip if took else before)
        assert any(isinstance(event, RolledBack) for event in table.events) is (outcome is Followed.SWITCHED)

    on_table(tmp_path, ours, theirs, check)


def test_what_was_taken_over_is_on_disk(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        await table.catch_up.follow(ANN.peer_id)
        reopened = Replica.open(table.signed, Store(tmp_path / "ours"), table.ours.state)
        assert reopened.history.tip == table.theirs.history.tip

    on_table(tmp_path, [], SHARED, check)


def forged(commit: Commit) -> Commit:
    """With a vote that nobody gave."""
    vote = commit.certificate.votes[0].model_copy(update={"signature": bytes(64)})
    return commit.model_copy(update={"certificate": commit.certificate.model_copy(update={"votes": [vote]})})


def inflated(commit: Commit) -> Commit:
    """With more tokens than were certified."""
    member = commit.record.members[0].model_copy(update={"tokens": 9})
    return commit.model_copy(update={"record": commit.record.model_copy(update={"members": [member]})})


@pytest.mark.parametrize("changed", [forged, inflated])
def test_records_without_a_certificate_are_refused(tmp_path: Path, changed: Callable[[Commit], Commit]) -> None:
    async def check(table: Table) -> None:
        serving = Serving(table.theirs, at_once)

        async def answer(kind: str, data: bytes) -> bytes:
            if kind == "commits":
                return CommitsReply(commits=[changed(table.theirs.history.commit_at(0)).encode()]).encode()
            return await serving.answer(kind, data)

        table.network.answers[ANN.peer_id] = answer
        for look in (table.catch_up.follow, table.catch_up.scout):
            with pytest.raises(Malformed):
                await look(ANN.peer_id)
        assert table.ours.history.length == 0

    on_table(tmp_path, [], SHARED, check)


@pytest.mark.parametrize("tips", [[], [Hash(b"\x01" * 32)]], ids=["none", "another genesis"])
def test_a_chain_that_begins_elsewhere_is_refused(tmp_path: Path, tips: list[Hash]) -> None:
    async def check(table: Table) -> None:
        async def answer(kind: str, data: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            return TipsReply(length=7, tips=list(tips)).encode()

        table.network.answers[ANN.peer_id] = answer
        with pytest.raises(Malformed, match="another genesis"):
            await table.catch_up.follow(ANN.peer_id)

    on_table(tmp_path, SHARED, SHARED, check)


def test_records_that_were_announced_and_are_not_there_are_refused(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        serving = Serving(table.theirs, at_once)

        async def answer(kind: str, data: bytes) -> bytes:
            return CommitsReply(commits=[]).encode() if kind == "commits" else await serving.answer(kind, data)

        table.network.answers[ANN.peer_id] = answer
        with pytest.raises(Malformed, match="without the records it announced"):
            await table.catch_up.follow(ANN.peer_id)

    on_table(tmp_path, [], SHARED, check)


def test_a_peer_that_is_gone_is_a_network_error(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        with pytest.raises(Unreachable):
            await table.catch_up.follow(BOB.peer_id)

    on_table(tmp_path, [], SHARED, check)


def test_results_that_nobody_has_stop_the_replay_where_it_is(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        await table.catch_up.restore()
        assert table.ours.state.rounds == 0
        for sources in ([], [BOB.peer_id], [ANN.peer_id], [ME.peer_id]):
            assert not await table.catch_up.replay(sources)
        assert table.ours.state.rounds == 0

    on_table(tmp_path, SHARED, SHARED, check)
