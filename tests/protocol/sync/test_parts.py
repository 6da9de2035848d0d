"""Parts of a run went on without each other, or one slept: whose rounds stay, and when provisional ones are given up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.agreement.ballot import blank
from protocol.chain.store import Store
from protocol.run.manifest import Admission, SignedManifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import Certificate, Lock, Provenance, Signature
from tests.protocol.chains import a_run, grow, in_run, next_commit
from tests.protocol.peers import ANN, BOB, ME
from tests.protocol.sync.table import CYN, DAN, EVE, FOUR, Table, fork

FIVE = (*FOUR, EVE)


def invited(*founders: Identity) -> SignedManifest:
    """A run to which peers are admitted by a list."""
    return a_run(*founders, admission=Admission.ALLOWLIST, allowlist=sorted(each.peer_id for each in (*FIVE, ME)))


def part(table: Table, ours: Sequence[Identity], theirs: Sequence[Identity], everybody: Sequence[Identity]) -> None:
    """Everybody makes three rounds together, then each part two of its own without the other."""
    table.share(3, everybody, voters=everybody)
    for replica, part, others in ((table.ours, ours, theirs), (table.theirs, theirs, ours)):
        electors = replica.base.electors
        absent = [each for each in others if each.peer_id in electors]
        grow(replica, 2, part, voters=part, absent=absent, salt=len(part))
    table.hear(ANN.peer_id, table.theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "wins"),
    [((BOB, CYN), (ANN, DAN, EVE), True), ((BOB, CYN, DAN), (ANN, EVE), False), ((BOB,), (ANN, CYN, DAN, EVE), True)],
)
@in_run(invited(BOB))
async def test_the_part_with_most_of_the_recent_work_wins(
    table: Table, ours: Sequence[Identity], theirs: Sequence[Identity], wins: bool
) -> None:
    """The founder, Bob, is in our part each time."""
    part(table, ours, theirs, FIVE)
    await table.look()
    assert (table.following.move is not None) is wins
    assert wins or table.claims.ahead(known=True) == [], "its claimant is not looked at again at once"


@pytest.mark.parametrize("is_final", [False, True])
@in_run(invited(ME))
async def test_a_lock_on_another_record_keeps_an_elector_until_the_branch_is_final(table: Table, is_final: bool) -> None:
    three = (ME, ANN, BOB)
    table.share(3, three, voters=three)
    locked, _ = next_commit(table.ours, three, voters=three, salt=7)
    base, votes = table.ours.base, table.ours.store.votes
    proof = Certificate(attempt=0, absent=[], votes=[Signature(peer=ME.peer_id, signature=bytes(64))])
    chunks = len(locked.index)
    provenance = Provenance(owners=bytes(chunks), signers=bytes(chunks), signatures=[bytes(64)] * chunks)
    lock = Lock(record=locked.record, index=locked.index, provenance=provenance, proof=proof)
    votes.save(base.round, base.tip, blank(base).model_copy(update={"lock": lock}).encode())
    grow(table.theirs, 1, [ANN], voters=[ANN], absent=[ME, BOB], salt=1)
    if is_final:
        grow(table.theirs, 1, [ANN, BOB], voters=[ANN, BOB], salt=1)
    await table.found()
    assert (table.following.move is not None) is is_final


@pytest.mark.parametrize("salt", range(1, 5))
@in_run(invited(ME))
async def test_a_final_branch_wins_over_a_provisional_one_whatever_their_ranks(table: Table, salt: int) -> None:
    """Two of three took part in both branches, so the hashes decide between their first records."""
    three = (ME, ANN, BOB)
    table.share(3, three, voters=three)
    grow(table.ours, 1, [ME], voters=[ME], absent=[ANN, BOB])
    grow(table.ours, 1, [ME, BOB], voters=[ME], absent=[ANN, BOB])
    grow(table.theirs, 1, [ANN], voters=[ANN], absent=[ME, BOB], salt=salt)
    grow(table.theirs, 1, [ANN, BOB], voters=[ANN, BOB], salt=salt)
    move = await table.found()
    assert move is not None and move.rounds == 5


@pytest.mark.parametrize("is_confirmed", [False, True])
@in_run(invited(ME))
async def test_an_elector_that_confirmed_a_record_moves_to_no_better_provisional_one(
    table: Table, is_confirmed: bool
) -> None:
    """Two of three took part in their branch, and one in ours."""
    three = (ME, ANN, BOB)
    table.share(3, three, voters=three)
    grow(table.ours, 1, [ME], voters=[ME], absent=[ANN, BOB])
    grow(table.theirs, 1, [ANN], voters=[ANN], absent=[ME, BOB], salt=1)
    grow(table.theirs, 1, [ANN, BOB], voters=[ANN], absent=[ME, BOB], salt=1)
    history, votes = table.ours.history, table.ours.store.votes
    if is_confirmed:
        votes.confirm([(3, history.tip_at(3), history.tip_at(4))])
    await table.found()
    assert (table.following.move is None) is is_confirmed


def test_confirmed_records_are_there_after_a_restart_and_hold_their_record(tmp_path: Path) -> None:
    votes = Store(tmp_path).votes
    records = [(round, Hash(bytes([round]) * 32), Hash(bytes([round + 1]) * 32)) for round in range(3)]
    votes.confirm(records[:2])
    votes.confirm(records)
    again = Store(tmp_path).votes
    assert again.confirmed() == frozenset(records) and not again.has_lost_confirmed
    again.drop_before(2)
    assert Store(tmp_path).votes.confirmed() == frozenset(records), "one of them may still bind us"
    path = tmp_path / "votes" / "confirmed"
    path.write_bytes(path.read_bytes()[:-1])
    assert Store(tmp_path).votes.has_lost_confirmed


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
async def test_nobody_goes_back_from_a_branch_that_others_are_coming_over_to(table: Table) -> None:
    fork(table, 1, {"absent": [BOB]}, {"absent": [BOB, CYN]}, rounds=2)
    await table.look()
    for peer in (BOB, CYN):
        table.hear(peer.peer_id, round=1, tip=table.ours.history.tip_at(1))
    table.hear(DAN.peer_id, table.ours)
    assert table.following.move is None and not table.following.wants_back(), "Ann will come over to Dan"
    table.hear(ANN.peer_id, round=1, tip=table.ours.history.tip_at(1))
    assert table.following.wants_back(), "Ann went back"
