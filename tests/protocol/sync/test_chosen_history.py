"""The record that an invitation names: a newcomer takes no other history, and a person can choose one of two."""

from __future__ import annotations

import pytest

from protocol.chain.store import Store
from protocol.events.events import Dropped, Notice
from protocol.run.invitation import Anchor
from protocol.wire.hashes import Hash
from tests.protocol.chains import a_run, grow, in_run
from tests.protocol.peers import ANN, BOB
from tests.protocol.sync.table import CYN, DAN, FOUR, Table, fork


@pytest.mark.parametrize(("rounds", "is_theirs", "taken"), [(2, True, 3), (2, False, 0), (3, False, 0), (4, True, 0)])
async def test_a_newcomer_takes_the_history_to_which_it_is_invited(
    table: Table, rounds: int, is_theirs: bool, taken: int
) -> None:
    """Their chain has three records; the invitation names one that is in it, is another one, or comes after them."""
    other = table.another("other")
    grow(other, 4, [ANN], voters=FOUR, salt=1)
    grow(table.theirs, 3, [ANN], voters=FOUR)
    history = table.theirs.history if is_theirs and rounds <= 3 else other.history
    table.invite(Anchor(rounds=rounds, tip=history.tip_at(rounds)))
    move = await table.found()
    assert (move.rounds if move is not None else 0) == taken
    assert taken or table.claims.ahead(known=False) == [], "its claimant is not looked at again at once"
    dropped = [event.reason for event in table.of(Dropped)]
    another = "a history without the record that our invitation names"
    assert dropped == ([another] if not is_theirs else []), "who is only behind is not accused"


@pytest.mark.parametrize(("ours", "rounds"), [(1, 2), (4, 2), (4, 3)])
@in_run(a_run(*FOUR))
async def test_provisional_records_yield_to_the_history_of_the_invitation(table: Table, ours: int, rounds: int) -> None:
    """Ours has as many rounds or more, and more signers; theirs goes through the record that the invitation names."""
    fork(table, 1, {"absent": [DAN]}, {"absent": [BOB, CYN]}, rounds=ours)
    grow(table.theirs, 2, [ANN], voters=FOUR, absent=[BOB, CYN], salt=1)
    table.invite(Anchor(rounds=rounds, tip=table.theirs.history.tip_at(rounds)))
    move = await table.found()
    assert move is not None and move.rounds >= rounds and await table.following.take(move)
    for peer in (BOB, CYN, DAN):
        table.hear(peer.peer_id, round=1, tip=table.ours.history.tip_at(1))
    assert table.ours.history.tip == table.theirs.history.tip_at(move.rounds)
    back = table.choice.back_to()
    assert back is None or back >= rounds, "what was chosen is not given up again"
    assert Store(table.ours.store.root).chosen() == table.chains.anchor, "and not after a restart"


@pytest.mark.parametrize("rounds", [2, 4])
@in_run(a_run(*FOUR))
async def test_final_records_are_not_given_up_for_a_history_that_a_person_chose(table: Table, rounds: int) -> None:
    fork(table, 1, {}, {"absent": [BOB]}, rounds=1)
    grow(table.theirs, 2, [ANN], voters=FOUR, absent=[BOB], salt=1)
    table.invite(Anchor(rounds=rounds, tip=table.theirs.history.tip_at(rounds)))
    await table.found()
    assert table.ours.history.final == 2 and table.following.move is None
    [notice] = [notice for notice in table.of(Notice) if notice.level == "warning"]
    assert "2 rounds here are final" in notice.text


async def test_a_history_without_the_record_of_the_invitation_is_not_followed_from_beyond_it(table: Table) -> None:
    table.share(3, [ANN], voters=FOUR)
    grow(table.theirs, 1, [ANN], voters=FOUR)
    table.invite(Anchor(rounds=2, tip=Hash(bytes(32))))
    await table.found()
    assert table.following.move is None
