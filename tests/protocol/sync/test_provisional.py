"""Provisional records: when they are followed, and when they are given up for the tip before them."""

from __future__ import annotations

import trio

from tests.protocol.chains import a_run, grow, in_run
from tests.protocol.peers import ANN, BOB
from tests.protocol.sync.table import CYN, DAN, FOUR, Table, fork


@in_run(a_run(*FOUR))
async def test_coming_back_to_a_branch_that_was_given_up_needs_no_records_again(table: Table) -> None:
    for replica in (table.ours, table.theirs):
        grow(replica, 1, [ANN], voters=FOUR)
        grow(replica, 2, [ANN], voters=FOUR, absent=[BOB])
    ours, tip = table.ours.history, table.ours.history.tip
    for peer in (BOB, CYN, DAN):
        table.hear(peer.peer_id, round=1, tip=ours.tip_at(1))
    assert table.following.wants_back()
    move = await table.look()
    assert move is not None and move.rounds == 1
    assert await table.following.take(move)
    assert (ours.length, table.ours.state.rounds) == (1, 1)
    asked = table.count_questions(ANN.peer_id)
    for peer in (ANN, CYN, DAN):
        table.hear(peer.peer_id, table.theirs)
    move = await table.look()
    assert move is not None and await table.following.take(move)
    assert ours.tip == tip and table.ours.state.digest() == table.theirs.state.digest()
    assert set(asked) == {"tips"}


@in_run(a_run(*FOUR))
async def test_a_provisional_record_that_its_electors_do_not_stand_on_is_looked_at_again_soon(table: Table) -> None:
    table.share(1, [ANN], voters=FOUR)
    grow(table.theirs, 1, [ANN], voters=FOUR, absent=[BOB])
    for peer in (BOB, CYN, DAN):
        table.hear(peer.peer_id, table.ours)
    await table.found()
    assert table.following.move is None and table.ours.history.length == 1
    await trio.sleep(3)
    for peer in (BOB, CYN, DAN):
        table.hear(peer.peer_id, table.theirs)
    await table.look()
    assert table.following.move is not None


@in_run(a_run(*FOUR))
async def test_nobody_goes_back_from_a_branch_that_others_are_coming_over_to(table: Table) -> None:
    fork(table, 1, {"absent": [BOB]}, {"absent": [BOB, CYN]}, rounds=2)
    await table.look()
    for peer in (BOB, CYN):
        table.hear(peer.peer_id, round=1, tip=table.ours.history.tip_at(1))
    table.hear(DAN.peer_id, table.ours)
    assert table.following.move is None and not table.following.wants_back(), "Ann will come over to Dan"
    table.hear(ANN.peer_id, round=1, tip=table.ours.history.tip_at(1))
    assert table.following.wants_back(), "Ann went back"


@in_run(a_run(*FOUR))
async def test_a_branch_is_followed_with_those_who_are_coming_over_to_it(table: Table) -> None:
    better = table.another("better")
    for replica in (table.ours, table.theirs, better):
        grow(replica, 1, [ANN], voters=FOUR)
    grow(table.theirs, 1, [ANN], voters=FOUR, absent=[BOB, CYN])
    grow(better, 1, [ANN], voters=FOUR, absent=[BOB], salt=1)
    table.serve(DAN.peer_id, better)
    for peer in (BOB, CYN):
        table.hear(peer.peer_id, table.ours)
    table.hear(DAN.peer_id, better)
    table.hear(ANN.peer_id, round=1, tip=bytes(32))
    await table.look()
    assert table.following.move is None, "one is on it, and two are before it"
    await table.found()
    await trio.sleep(3)
    for peer, replica in ((ANN, table.theirs), (BOB, table.ours), (CYN, table.ours), (DAN, better)):
        table.hear(peer.peer_id, replica)
    move = await table.look()
    assert move is not None and move.leader == DAN.peer_id
