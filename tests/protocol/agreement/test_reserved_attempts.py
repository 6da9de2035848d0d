"""Attempts that no ballot has, and attempts far ahead: a quorum of those that are left may be liars."""

from __future__ import annotations

import pytest

from protocol.agreement.ballot import MAX_ATTEMPT, Ballot, held_mask
from protocol.agreement.round_state import MAX_LEAD
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import PeerId
from protocol.wire.messages import Proposal, ViewChange
from tests.protocol.agreement.parliament import Parliament
from tests.protocol.council import BASE, signed


def attempt_of_three(attempt: int) -> int | None:
    """Four of seven electors are gone, and two of the others propose a plan in this attempt, or up to two later, when it is
    their turn.  The attempt that the third one has entered then; None when it refuses."""
    parliament = Parliament(7, seed=3)
    honest, *others = parliament.seats
    while True:
        for liars in [(one, other) for one in others for other in others if one < other]:
            absent = sorted(set(parliament.seats) - {honest, *liars})
            ballot = Ballot(parliament.base, attempt, tuple(absent))
            if ballot.proposer in liars:
                return _propose(parliament, honest, liars, ballot)
        attempt += 1


def _propose(parliament: Parliament, honest: PeerId, liars: tuple[PeerId, PeerId], ballot: Ballot) -> int | None:
    absent, present = list[str](ballot.absent), [honest, *liars]
    for peer in liars:
        parliament.make_puppet(peer)
    for peer in ballot.absent:
        parliament.crash(peer)
    parliament.now = 60.0
    parliament.ready(*present)
    machine = parliament.seats[honest].machine
    plan = machine._state.closing.make_plan(parliament.view(honest), ZERO_HASH, present)
    assert plan is not None
    roll = ViewChange(
        round=parliament.base.round,
        base=parliament.base.tip,
        attempt=ballot.attempt,
        absent=absent,
        held=held_mask(parliament.base.electors, present),
        plan=None,
        lock=None,
        reduced=None,
    )
    rolls = [signed(peer, roll) for peer in liars]
    parliament.say(ballot.proposer, Proposal(attempt=ballot.attempt, absent=absent, plan=plan, rolls=rolls), honest)
    parliament.deliver()
    return machine.attempt if machine.plan == plan else None


def test_two_liars_of_three_that_are_left_take_the_third_ahead_by_little() -> None:
    assert attempt_of_three(0) is not None
    assert attempt_of_three(MAX_LEAD - 4) is not None
    for attempt in (2 * MAX_LEAD, 10**6, MAX_ATTEMPT - 3, MAX_ATTEMPT, MAX_ATTEMPT + 5):
        assert attempt_of_three(attempt) is None


@pytest.mark.parametrize(("attempt", "sound"), [(0, True), (MAX_ATTEMPT - 1, True), (MAX_ATTEMPT, False), (1 << 53, False)])
def test_no_ballot_is_held_beyond_the_last_attempt(attempt: int, sound: bool) -> None:
    assert Ballot(BASE, attempt).is_sound is sound
