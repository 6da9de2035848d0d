"""With whom a round is made: tables of who is chosen, whose token still admits, and who averages chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.agreement.ballot import most_chunks
from protocol.agreement.policy import TRIED, choose_members, plan_with
from protocol.allreduce.lateness import STRANGERS, ExclusionBackoff
from protocol.chain.electorate import quorum_size, tolerated
from protocol.wire.identity import Identity, PeerId
from tests.protocol.council import BASE, SETTINGS, STATE
from tests.protocol.members import a_member
from tests.protocol.tables import cases

KEYS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(10, 24)]
ELECTORS, VETERANS, NEWCOMERS = KEYS[:4], KEYS[4:6], KEYS[6:]
TENURED = [*ELECTORS, *VETERANS]
HERE = replace(BASE, electors=tuple(ELECTORS), contributors=tuple(TENURED), known=frozenset(TENURED))
"""A round with four electors, whose last record had two more members."""


def on_probation(*peers: PeerId) -> ExclusionBackoff:
    """These have stalled the round before."""
    stalls = ExclusionBackoff()
    for peer in peers:
        stalls.lost_with(peer, HERE.round - 1)
    return stalls


def out(*peers: PeerId) -> ExclusionBackoff:
    """These have stalled twice, and do not count."""
    stalls = ExclusionBackoff()
    for peer in peers:
        for round in (HERE.round - 3, HERE.round - 1):
            stalls.lost_with(peer, round)
    return stalls


def chosen(stalls: ExclusionBackoff, ready: Sequence[PeerId], held: Sequence[PeerId] = ()) -> list[PeerId]:
    return choose_members(HERE, stalls, ready, held)


def test_those_that_the_view_changes_demand_come_first_whether_or_not_they_are_ready() -> None:
    order = chosen(ExclusionBackoff(), [*NEWCOMERS, *VETERANS, *ELECTORS[:3]], [ELECTORS[3], ELECTORS[2]])
    assert (set(order[:2]), set(order[2:4]), set(order[4:6])) == (set(ELECTORS[2:]), set(ELECTORS[:2]), set(VETERANS))


@pytest.mark.parametrize(
    ("stalls", "tenured", "tried"),
    [
        (ExclusionBackoff(), 4, 8),
        (on_probation(STRANGERS), 6, 6 // TRIED),
        (on_probation(STRANGERS), 1, 1),
        (on_probation(STRANGERS), 0, 8),
        (out(STRANGERS), 6, 0),
    ],
    ids=["all", "on probation a quarter of the others", "but one", "all, where there are no others", "none that are out"],
)
def test_newcomers_are_tried(stalls: ExclusionBackoff, tenured: int, tried: int) -> None:
    everybody = chosen(ExclusionBackoff(), [*TENURED[:tenured], *NEWCOMERS])
    assert chosen(stalls, [*TENURED[:tenured], *NEWCOMERS]) == everybody[: tenured + tried], "the first that the tip draws"


# -- owners ---------------------------------------------------------------------------------------------------------------


@cases(
    "members, stalls, owners",
    {
        "no newcomer": ([*TENURED, *NEWCOMERS], ExclusionBackoff(), TENURED),
        "none on probation": (TENURED, on_probation(ELECTORS[0]), TENURED[1:]),
        "none that is out": (TENURED, out(ELECTORS[0]), TENURED[1:]),
        "all but newcomers, if all are": ([*TENURED, *NEWCOMERS], on_probation(*TENURED), TENURED),
        "newcomers among themselves": (NEWCOMERS, on_probation(STRANGERS), NEWCOMERS),
    },
)
def test_chunks_are_owned_by_members_that_keep_nobody_waiting(
    members: list[PeerId], stalls: ExclusionBackoff, owners: list[PeerId]
) -> None:
    plan = plan_with(replace(SETTINGS, chunks=70), HERE, stalls, [a_member(peer) for peer in members[::-1]], {}, STATE)
    assert [member.peer for member in plan.members] == sorted(members) and len(plan.owners) == 70
    assert {plan.members[owner].peer for owner in plan.owners} == set(owners)
    assert (plan.round, plan.base, plan.state_digest) == (HERE.round, HERE.tip, STATE)


def test_a_member_with_more_bandwidth_owns_more_chunks_but_not_much_more() -> None:
    settings, bandwidths = replace(SETTINGS, chunks=100), {ELECTORS[0]: 4e6, **dict.fromkeys(ELECTORS[1:], 1e6)}
    plan = plan_with(settings, HERE, ExclusionBackoff(), [a_member(peer) for peer in ELECTORS], bandwidths, STATE)
    counts = Counter(plan.members[owner].peer for owner in plan.owners)
    assert counts[ELECTORS[0]] == most_chunks(100, 4, 4) == 38 and sum(counts.values()) == 100


@pytest.mark.parametrize("electors", range(4, 65))
def test_the_liars_that_the_electors_bear_own_less_than_half(electors: int) -> None:
    for chunks in (1000, 4096):
        for members in range(quorum_size(electors), electors + 1):
            assert tolerated(electors) * most_chunks(chunks, electors, members) < chunks / 2 + electors
            assert members * most_chunks(chunks, electors, members) >= chunks, "all chunks have an owner"
