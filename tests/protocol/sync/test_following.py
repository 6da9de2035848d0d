"""Following: a move is there only when the other branch is verified, wins, and its state is on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from protocol.chain.history import Branch, History
from protocol.chain.results import CheckpointName
from protocol.chain.store import Store
from protocol.disk import Disk
from protocol.events.events import RolledBack, SecondHistory
from protocol.sync.catch_up import WrongState
from protocol.sync.remote_chains import CHECKS_PER_MINUTE, STRANGERS_SHARE
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.questions import CommitsReply
from tests.protocol.chains import a_run, grow, in_run, next_commit, store_result
from tests.protocol.peers import ANN, BOB
from tests.protocol.sync.table import CYN, DAN, EVE, FOUR, Table, fork

ANYONES = a_run()


async def test_a_chain_that_is_further_is_taken_with_its_state(table: Table) -> None:
    grow(table.theirs, 3, [ANN], voters=FOUR)
    await table.found()
    assert table.ours.history.length == 0, "looking changes nothing"
    move = table.following.move
    assert move is not None and (move.rounds, move.leader) == (3, ANN.peer_id)
    assert await table.following.take(move)
    assert table.ours.history.tip == table.theirs.history.tip
    assert table.ours.state.digest() == table.theirs.state.digest() and not table.of(RolledBack)
    assert History(table.ours.rounds, Store(table.ours.store.root)).tip == table.theirs.history.tip


async def test_nothing_is_looked_at_while_records_change_their_places(table: Table) -> None:
    """The branch that is being taken over grows: what was added to its files now would be lost with them."""
    grow(table.theirs, 2, [ANN], voters=FOUR)
    await table.found()
    move, take = table.following.move, table.catch_up.take
    assert move is not None

    async def take_slowly(branch: Branch, rounds: int, leader: PeerId) -> bool:
        grow(table.theirs, 1, [ANN], voters=FOUR)
        await table.found()
        return await take(branch, rounds, leader)

    with patch.object(table.catch_up, "take", take_slowly):
        assert await table.following.take(move)
    assert table.ours.history.length == 2 and table.following.move is None
    move = await table.look()
    assert move is not None and await table.following.take(move)
    assert table.ours.history.tip == table.theirs.history.tip


async def test_a_chain_whose_state_nobody_has_is_not_taken(table: Table) -> None:
    grow(table.theirs, 3, [ANN], voters=FOUR, with_results=False)
    await table.found()
    assert table.following.move is None and table.ours.history.length == 0
    assert table.claims.ahead(known=True) == [], "its claimant is not looked at again at once"


async def test_as_much_of_a_chain_is_taken_as_there_is_state(table: Table) -> None:
    grow(table.theirs, 2, [ANN], voters=FOUR)
    grow(table.theirs, 2, [ANN], voters=FOUR, with_results=False)
    move = await table.found()
    assert move is not None and move.rounds == 2
    assert await table.following.take(move)
    assert (table.ours.history.length, table.ours.state.rounds) == (2, 2)


async def test_a_checkpoint_serves_where_results_are_gone(table: Table) -> None:
    theirs = table.theirs
    grow(theirs, 2, [ANN], voters=FOUR, with_results=False)
    theirs.store.checkpoints.write(CheckpointName(2, theirs.history.tip), theirs.state.leaves(), theirs.state.view)
    grow(theirs, 2, [ANN], voters=FOUR)
    table.hear(ANN.peer_id, theirs)
    move = await table.look()
    assert move is not None and move.rounds == 4
    assert await table.following.take(move)
    assert table.ours.state.digest() == theirs.state.digest()


@pytest.mark.parametrize(
    "ours, theirs, wins",
    [
        ({"absent": [BOB]}, {}, True),
        ({}, {"absent": [BOB]}, False),
        ({"absent": [BOB, CYN]}, {"absent": [DAN]}, True),
    ],
    ids=["full beats provisional", "provisional does not beat full", "more signers"],
)
@in_run(a_run(*FOUR))
async def test_who_wins_a_fork(table: Table, ours: dict[str, Any], theirs: dict[str, Any], wins: bool) -> None:
    fork(table, 1, ours, theirs, rounds=1)
    before, state = table.ours.history.tip, table.ours.state.digest()
    move = await table.look()
    assert (move is not None) is wins
    assert (table.ours.history.tip, table.ours.state.digest()) == (before, state)
    if move is None:
        assert table.claims.ahead(known=True) == [], "a lost fork is not looked at again at once"
        return
    assert await table.following.take(move)
    assert table.ours.history.tip == table.theirs.history.tip
    assert table.ours.state.digest() == table.theirs.state.digest()
    assert table.of(RolledBack) == [RolledBack(1, 1, ANN.peer_id)]


@in_run(a_run(*FOUR))
async def test_each_peer_is_asked_for_its_own_certificate_of_a_record(table: Table) -> None:
    full = table.another("full")
    fork(table, 0, {"absent": [BOB]}, {"absent": [BOB, CYN]}, rounds=1)
    grow(full, 1, [ANN], voters=FOUR, salt=1)
    assert full.history.tip == table.theirs.history.tip and full.history.final == 1
    await table.look()
    assert table.following.move is None, "what Ann shows loses"
    table.serve(DAN.peer_id, full)
    table.hear(DAN.peer_id, full)
    move = await table.look()
    assert move is not None and move.leader == DAN.peer_id
    assert await table.following.take(move)
    assert table.ours.history.commit_at(0) == full.history.commit_at(0) and table.ours.history.final == 1


async def test_a_claim_with_which_nothing_is_shown_says_nothing_about_others(table: Table) -> None:
    grow(table.theirs, 1, [ANN], voters=FOUR)
    table.serve(BOB.peer_id, table.ours)
    for peer in (ANN, BOB):
        table.hear(peer.peer_id, table.theirs)
    await table.following.look(known=False)
    assert table.claims.ahead(known=False) == [] and table.claims.ahead(known=True) == [ANN.peer_id]


@pytest.mark.slow
@in_run(a_run(*FOUR))
async def test_a_second_full_record_is_an_alarm_once_and_changes_nothing(table: Table) -> None:
    fork(table, 1, {}, {})
    before = table.ours.history.tip
    for peer in (ANN, BOB):
        table.serve(peer.peer_id, table.theirs)
        table.hear(peer.peer_id, table.theirs)
        await table.look()
        await trio.sleep(1000)
    table.hear(ANN.peer_id, table.theirs, tip=b"\x09" * 32)
    await table.look()
    assert table.following.move is None and table.ours.history.tip == before
    [alarm] = table.of(SecondHistory)
    assert (alarm.round, alarm.ours, alarm.theirs) == (
        1,
        table.ours.history.tip_at(2).hex(),
        table.theirs.history.tip_at(2).hex(),
    )
    assert (alarm.shown_by, alarm.signers) == (ANN.peer_id, sorted(each.peer_id for each in FOUR))


@pytest.mark.slow
@in_run(a_run())
async def test_what_one_stranger_has_shown_is_not_lost_to_another(table: Table) -> None:
    """The purse is empty after some records of the honest one; then a fresh key comes, and shows records without results."""
    grow(table.theirs, 200, [CYN], voters=[CYN])
    grow(table.another("false"), 2, [DAN], voters=[DAN], salt=1, with_results=False)
    table.serve(EVE.peer_id, table.theirs)
    asked = table.count_questions(EVE.peer_id)
    for number in range(40, 60):
        table.budget.pay(trio.current_time(), 0, int(CHECKS_PER_MINUTE * STRANGERS_SHARE) - 50)
        table.hear(EVE.peer_id, table.theirs)
        await table.look()
        liar = Identity.from_seed(bytes([number]) * 32).peer_id
        table.serve(liar, table.others[0])
        table.hear(liar, round=500, tip=table.others[0].history.tip)
        if table.following.move is not None:
            break
        await trio.sleep(1.5)
        await table.look()
        await trio.sleep(60)
    assert table.following.move is not None and asked.count("commits") == 5, "no record is fetched twice"


@in_run(a_run(*FOUR))
async def test_a_state_that_is_not_what_its_records_say_gives_our_chain_back(table: Table) -> None:
    theirs = table.theirs
    fork(table, 1, {"absent": [BOB]}, {}, rounds=1)
    commit, result = next_commit(theirs, [ANN], voters=FOUR, state_digest=Hash(b"\x07" * 32))
    store_result(theirs, commit, result)
    theirs.history.append(commit)
    table.hear(ANN.peer_id, theirs)
    before, state = table.ours.history.tip, table.ours.state.digest()
    move = await table.look()
    assert move is not None
    with pytest.raises(WrongState):
        await table.following.take(move)
    await table.catch_up.restore()
    assert (table.ours.history.tip, table.ours.state.digest()) == (before, state)
    assert History(table.ours.rounds, Store(table.ours.store.root)).tip == before
    assert table.following.move is None and table.claims.ahead(known=True) == []


async def test_a_move_is_judged_again_when_our_chain_has_changed(table: Table) -> None:
    table.share(1, [ANN], voters=FOUR)
    grow(table.theirs, 3, [ANN], voters=FOUR)
    await table.found()
    commit, result = next_commit(table.ours, [ANN], voters=FOUR)
    assert commit == table.theirs.history.commit_at(1)
    table.ours.history.append(commit)
    table.ours.state.apply(memoryview(result), 0, table.ours.manifest.outer_step(0, [8], memoryview(result)))
    move = table.following.move
    assert move is not None and (move.rounds, move.branch.common) == (4, 2)
    assert await table.following.take(move)
    assert table.ours.state.digest() == table.theirs.state.digest()
    assert table.following.move is None


@in_run(a_run(*FOUR))
async def test_nobody_looks_for_records_that_change_their_places(table: Table) -> None:
    """A watch asks ten times a second whether to go back or over, while another thread exchanges branches."""
    fork(table, 1, {"absent": [BOB, CYN]}, {"absent": [DAN]}, rounds=1)
    await table.look()
    move, looked = table.following.move, list[bool]()
    assert move is not None

    def moving(disk: Disk, source: Path, target: Path) -> None:
        moved(disk, source, target)
        if source.parent.name == "records":
            table.following._move = replace(move, tip=Hash(bytes(32)))  # what a look that ends just now has found
            looked.append(table.following.wants_back() or table.following.move is not None)

    moved = Disk.move
    with patch.object(Disk, "move", moving):
        assert await table.following.take(move)
    assert looked and not any(looked) and table.ours.state.digest() == table.theirs.state.digest()
    assert table.following.move is None


# -- two beginnings -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "signed, rounds, with_results, may_win",
    [(ANYONES, 3, True, True), (ANYONES, 3, False, False), (ANYONES, 100, True, False), (a_run(ANN, EVE), 3, True, False)],
    ids=["young", "without its state", "old", "named founders"],
)
async def test_another_beginning_wins_only_against_a_young_run_of_anybody_and_with_its_state(
    table: Table, rounds: int, with_results: bool, may_win: bool
) -> None:
    grow(table.ours, rounds, [ANN], voters=[ANN, EVE])
    grow(table.theirs, 3, [EVE], voters=[ANN, EVE], salt=1, with_results=with_results)
    lower = table.theirs.history.tip_at(1) < table.ours.history.tip_at(1)
    before, state = table.ours.history.tip, table.ours.state.digest()
    move = await table.found()
    assert (move is not None) is (may_win and lower)
    assert (table.ours.history.tip, table.ours.state.digest()) == (before, state)


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["votes", "tokens", "none"])
async def test_records_without_a_certificate_are_refused(table: Table, what: str) -> None:
    grow(table.theirs, 2, [ANN], voters=FOUR)
    commit = table.theirs.history.commit_at(0)
    vote = commit.certificate.votes[0].model_copy(update={"signature": bytes(64)})
    member = commit.record.members[0].model_copy(update={"tokens": 9})
    changed = {
        "votes": [commit.model_copy(update={"certificate": commit.certificate.model_copy(update={"votes": [vote]})})],
        "tokens": [commit.model_copy(update={"record": commit.record.model_copy(update={"members": [member]})})],
        "none": [],
    }[what]
    answer = table.network.answers[ANN.peer_id]

    async def lie(kind: str, data: bytes) -> bytes:
        if kind == "commits":
            return CommitsReply(commits=[each.encode() for each in changed]).encode()
        return await answer(kind, data)

    table.network.answers[ANN.peer_id] = lie
    await table.found()
    assert table.following.move is None and table.ours.history.length == 0
    assert table.claims.ahead(known=True) == []
