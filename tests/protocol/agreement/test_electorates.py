"""Electorates of every size: who must vote, what happens when too many are gone, and what their return changes."""

from __future__ import annotations

import pytest

from protocol.agreement.events import StateHashed
from protocol.agreement.machine import RoundMachine
from protocol.chain.electorate import quorum_size
from protocol.chain.records import is_full, quorum_of, verify_commit
from protocol.wire.hashes import ZERO_HASH
from tests.protocol.agreement.parliament import STEPS, Parliament
from tests.protocol.agreement.parliament import settings as round_settings

EVICTION_S = round_settings().eviction_s


@pytest.mark.parametrize("electors", range(8))
def test_a_quorum_of_each_electorate_certifies(electors: int) -> None:
    """None is the electorate of a run that anybody may begin: its first members vote."""
    parliament = Parliament(electors, joiners=3 if electors == 0 else 1)
    parliament.ready()
    parliament.outlives(3)
    for commit in parliament.commits():
        verify_commit(round_settings(), commit, parliament.base)
        assert is_full(commit.certificate) and commit.certificate.attempt == 0
        voters = parliament.base.electors or tuple(parliament.seats)
        assert len(commit.certificate.votes) == quorum_of(parliament.base, voters, [])


@pytest.mark.parametrize("electors", range(2, 8))
def test_as_many_may_be_dead_as_leave_a_quorum(electors: int) -> None:
    parliament = Parliament(electors)
    dead = list(parliament.seats)[: electors - quorum_size(electors)]
    for peer in dead:
        parliament.crash(peer)
    parliament.ready(*[peer for peer in parliament.seats if peer not in dead])
    parliament.outlives(EVICTION_S - 1)
    assert is_full(parliament.commits()[0].certificate), "nobody is taken for absent"


@pytest.mark.parametrize("electors", range(2, 8))
def test_with_one_more_dead_a_provisional_record_is_made_when_they_were_silent_for_long(electors: int) -> None:
    parliament = Parliament(electors)
    dead = list(parliament.seats)[: electors - quorum_size(electors) + 1]
    for peer in dead:
        parliament.crash(peer)
    parliament.ready(*[peer for peer in parliament.seats if peer not in dead])
    parliament.run(EVICTION_S - 1)
    assert not parliament.commits()
    parliament.outlives()
    certificate = parliament.commits()[0].certificate
    assert certificate.absent and set(certificate.absent) <= set(dead)
    fewest = min(count for count in range(len(dead) + 1) if electors - len(dead) >= quorum_size(electors - count))
    assert len(certificate.absent) == fewest
    verify_commit(round_settings(), parliament.commits()[0], parliament.base)


@pytest.mark.parametrize("joiners", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_members_go_on_whenever_the_only_elector_dies(joiners: int, steps: int) -> None:
    """With one joiner left, a plan that the dead one is in has no quorum of members: they make another one."""
    parliament = Parliament(1, joiners=joiners)
    elector, *others = parliament.seats
    parliament.ready()
    for kind in STEPS[:steps]:
        parliament.pass_on(kind)
    parliament.queue.clear()
    parliament.crash(elector)
    parliament.outlives(EVICTION_S + 30)
    assert parliament.commits()[0].certificate.absent == [elector]


def test_whoever_has_the_result_of_a_certified_record_is_waited_for() -> None:
    parliament = Parliament(1, joiners=2)
    elector, joiner, other = parliament.seats
    parliament.starved.add(joiner)
    parliament.ready()
    parliament.run(3)
    parliament.crash(elector)
    parliament.starved.clear()
    parliament.run(100)
    assert parliament.undecided() == [joiner] and len(parliament.records()) == 1
    assert parliament.seats[other].committed is not None


def test_nobody_takes_an_elector_for_absent_that_it_hears() -> None:
    """A liar calls ballots without electors that are alive; whoever hears them votes in none of these."""
    parliament = Parliament(4)
    liar, *others = parliament.seats
    parliament.make_puppet(liar)
    parliament.ready()
    for attempt in range(4):
        for absent in ([others[0]], others[:2], others):
            parliament.say(liar, parliament.roll(attempt, absent=sorted(absent)), *others)
    parliament.run(60)
    assert not parliament.undecided()
    assert all(is_full(commit.certificate) for commit in parliament.commits())


@pytest.mark.parametrize("electors", range(2, 8))
def test_who_returns_finds_its_vote_and_one_full_record_is_made(electors: int) -> None:
    """A provisional record is about to be made when the others return: at one tip there is one full record at most.

    A full record is taken by everybody.  Whoever was called absent and is back takes no provisional one in its round.
    """
    for pause_s in (1, 2, 4):
        parliament = Parliament(electors, versions=True)
        dead = list(parliament.seats)[: electors - quorum_size(electors) + 1]
        parliament.call()
        for peer in dead:
            parliament.crash(peer)
        parliament.run(EVICTION_S + pause_s)
        for peer in dead:
            parliament.restart(peer)
            parliament.ready(peer, life=2)
        parliament.run(120)
        parliament.show_the_record()
        full = {commit.record.encode() for commit in parliament.commits() if is_full(commit.certificate)}
        assert len(full) <= 1 and parliament.commits()
        assert set(parliament.undecided()) <= (set() if full else set(dead))


def test_a_peer_that_has_lost_what_binds_it_says_nothing_as_a_voter() -> None:
    parliament = Parliament(4)
    peer, seat = next(iter(parliament.seats.items()))
    seat.machine = RoundMachine(peer, round_settings(), parliament.base, parliament.now, abstains=True)
    seat.machine.handle(StateHashed(ZERO_HASH), {}, parliament.now)
    parliament.ready()
    parliament.run(20)
    assert len(parliament.records()) == 1 and len(parliament.commits()) == 4
    assert all(vote.peer != peer for commit in parliament.commits() for vote in commit.certificate.votes)
