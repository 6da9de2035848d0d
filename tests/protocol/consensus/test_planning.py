"""With whom a round is made: tables of who is chosen, whose token still admits, and who averages chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.consensus.patience import STRANGERS, Stalls
from protocol.consensus.planning import TRIED, choose_members, plan_with, within_uses
from protocol.run.admission import make_proof
from protocol.run.tokens import bearer_token
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Member
from tests.protocol.consensus.examples import BASE, RUN, SETTINGS, STATE
from tests.protocol.members import a_member

KEYS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(10, 24)]
ELECTORS, VETERANS, NEWCOMERS = KEYS[:4], KEYS[4:6], KEYS[6:]
TENURED = [*ELECTORS, *VETERANS]
HERE = replace(BASE, electors=tuple(ELECTORS), contributors=tuple(TENURED), known=frozenset(TENURED))
"""A round with four electors, whose last record had two more members."""


def on_probation(*peers: PeerId) -> Stalls:
    """These have stalled the round before."""
    stalls = Stalls()
    for peer in peers:
        stalls.lost_with(peer, HERE.round - 1)
    return stalls


def out(*peers: PeerId) -> Stalls:
    """These have stalled twice, and do not count."""
    stalls = Stalls()
    for peer in peers:
        for round in (HERE.round - 3, HERE.round - 1):
            stalls.lost_with(peer, round)
    return stalls


def chosen(stalls: Stalls, ready: Sequence[PeerId], held: Sequence[PeerId] = (), least: int = 1) -> list[PeerId]:
    return choose_members(HERE, stalls, ready, held, least)


def test_electors_come_before_members_of_the_last_record_and_those_before_newcomers() -> None:
    order = chosen(Stalls(), [*NEWCOMERS, *VETERANS, *ELECTORS])
    assert (set(order[:4]), set(order[4:6]), set(order[6:])) == (set(ELECTORS), set(VETERANS), set(NEWCOMERS))


def test_those_that_the_rolls_demand_come_first_whether_or_not_they_are_ready() -> None:
    order = chosen(Stalls(), [*NEWCOMERS, *VETERANS, *ELECTORS[:3]], [ELECTORS[3], ELECTORS[2]])
    assert (set(order[:2]), set(order[2:4]), set(order[4:6])) == (set(ELECTORS[2:]), set(ELECTORS[:2]), set(VETERANS))


def test_the_tip_draws_the_order_of_newcomers() -> None:
    orders = {
        tuple(choose_members(replace(HERE, tip=Hash(bytes([draw]) * 32)), Stalls(), NEWCOMERS, [], 1)) for draw in range(8)
    }
    assert len(orders) == 8 and chosen(Stalls(), NEWCOMERS) == chosen(Stalls(), NEWCOMERS[::-1])


@pytest.mark.parametrize("late", [ELECTORS[0], VETERANS[0]])
def test_who_is_out_is_no_member_unless_it_is_demanded(late: PeerId) -> None:
    assert set(chosen(out(late), TENURED)) == set(TENURED) - {late}
    assert chosen(out(late), TENURED, [late])[0] == late
    assert set(chosen(on_probation(late), TENURED)) == set(TENURED), "on probation it counts"


@pytest.mark.parametrize(
    ("stalls", "tenured", "tried"),
    [
        (Stalls(), 4, 8),
        (on_probation(STRANGERS), 6, 6 // TRIED),
        (on_probation(STRANGERS), 1, 1),
        (on_probation(STRANGERS), 0, 1),
        (out(STRANGERS), 6, 0),
    ],
    ids=["all", "on probation a quarter of the others", "but one", "of whom there need be none", "none that are out"],
)
def test_newcomers_are_tried(stalls: Stalls, tenured: int, tried: int) -> None:
    everybody = chosen(Stalls(), [*TENURED[:tenured], *NEWCOMERS])
    assert chosen(stalls, [*TENURED[:tenured], *NEWCOMERS]) == everybody[: tenured + tried], "the first that the tip draws"


@pytest.mark.parametrize(("least", "members"), [(4, 4), (5, 14)])
def test_where_too_few_count_all_are_taken(least: int, members: int) -> None:
    stalls = out(STRANGERS, *VETERANS)
    assert len(chosen(stalls, [*TENURED, *NEWCOMERS], least=least)) == members


# -- tokens ---------------------------------------------------------------------------------------------------------------


def test_a_token_admits_as_many_newcomers_as_it_may_and_members_need_none() -> None:
    organiser, key = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
    token = bearer_token(organiser, RUN, key, expires=1, uses=2)
    places: dict[PeerId, Member] = {peer: a_member(peer) for peer in VETERANS}
    for number, peer in enumerate(NEWCOMERS):
        proof = make_proof(token, RUN, peer, key) if number != 1 else b"let me in"
        places[peer] = a_member(peer).model_copy(update={"admission": proof})
    admitted = [member.peer for member in within_uses(HERE, places)]
    assert admitted == [*VETERANS, NEWCOMERS[0], NEWCOMERS[2]]


# -- owners ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "stalls", "owners"),
    [
        ([*TENURED, *NEWCOMERS], Stalls(), TENURED),
        (TENURED, on_probation(ELECTORS[0]), TENURED[1:]),
        (TENURED, out(ELECTORS[0]), TENURED[1:]),
        ([*TENURED, *NEWCOMERS], on_probation(*TENURED), TENURED),
        (NEWCOMERS, on_probation(STRANGERS), NEWCOMERS),
    ],
    ids=[
        "no newcomer",
        "none on probation",
        "none that is out",
        "all but newcomers, if all are",
        "newcomers among themselves",
    ],
)
def test_chunks_are_owned_by_members_that_keep_nobody_waiting(
    members: list[PeerId], stalls: Stalls, owners: list[PeerId]
) -> None:
    plan = plan_with(replace(SETTINGS, chunks=70), HERE, stalls, [a_member(peer) for peer in members[::-1]], {}, STATE)
    assert [member.peer for member in plan.members] == sorted(members) and len(plan.owners) == 70
    assert {plan.members[owner].peer for owner in plan.owners} == set(owners)
    assert (plan.round, plan.base, plan.state_digest) == (HERE.round, HERE.tip, STATE)


def test_a_member_with_more_bandwidth_owns_more_chunks() -> None:
    bandwidths = {ELECTORS[0]: 4e6, **dict.fromkeys(ELECTORS[1:], 1e6)}
    plan = plan_with(SETTINGS, HERE, Stalls(), [a_member(peer) for peer in ELECTORS], bandwidths, STATE)
    assert {plan.members[owner].peer for owner in plan.owners} == {ELECTORS[0]}
