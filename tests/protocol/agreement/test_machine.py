"""What one machine does with statements that do not fit, and how far others take it."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.agreement.ballot import MAX_ATTEMPT, Ballot, held_mask
from protocol.agreement.events import FinishCompute, Reject, Send, StateHashed, Tick
from protocol.agreement.round_state import MAX_LEAD
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, PrevoteCertificate, Proposal, RecordProposal, ViewChange, Vote
from tests.protocol.agreement.parliament import (
    Parliament,
    leader_and_voter,
)
from tests.protocol.agreement.parliament import settings as round_settings
from tests.protocol.council import signed


@pytest.mark.slow
def test_more_founders_than_a_plan_has_places_commit_round_zero() -> None:
    parliament, places = Parliament(0, joiners=48), round_settings().max_members
    parliament.ready()
    parliament.run(3)
    assert len(parliament.records()) == 1
    assert len(parliament.commits()) == len(parliament.commits()[0].record.members) == places


def test_another_state_digest_is_not_averaged() -> None:
    parliament = Parliament(3)
    odd, *others = parliament.seats
    digest = Hash(b"\x01" * 32)
    parliament.tell(parliament.seats[odd], StateHashed(digest))
    parliament.ready(*others)
    parliament.ready(odd, state_digest=digest)
    parliament.run(60)
    commit = next(seat.committed for seat in parliament.seats.values() if seat.committed)
    assert commit.record.state_digest == ZERO_HASH
    assert odd not in [member.peer for member in commit.record.members]


def test_a_late_elector_is_asked_to_finish_by_who_waits_and_obeys_only_if_a_quorum_does() -> None:
    parliament = Parliament(4)
    late, *others = parliament.seats
    seat = parliament.seats[late]
    finish = Finish(round=parliament.base.round, base=parliament.base.tip)
    for ready, effects in zip(others, ([], [], [FinishCompute()]), strict=True):
        assert parliament.hand_over(ready, seat, finish) == [], "it is not ready itself"
        parliament.ready(ready)
        assert parliament.hand_over(ready, seat, finish) == effects


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("votes", [1, 2])
def test_a_voter_commits_a_record_without_an_elector_that_comes_back_before_the_certificate(
    votes: int, killed: bool
) -> None:
    """The only elector is gone when the members vote, and is heard again when their certificate arrives.

    killed: the voter is killed after its vote, and restarts with its votes on disk.
    """
    parliament = Parliament(1, 3)
    elector, *members = parliament.seats
    parliament.crash(elector)
    parliament.ready(*members)
    parliament.now += round_settings().eviction_s
    for peer in members:
        parliament.tell(parliament.seats[peer], Tick())
    for kind in (ViewChange, Proposal, RecordProposal, Vote):
        parliament.pass_on(kind)
    late = next(to for _, to, body in parliament.queue if isinstance(body, PrevoteCertificate) and to != elector)
    if votes == 1:
        parliament.queue = [each for each in parliament.queue if each[1] != late]
    parliament.pass_on(PrevoteCertificate)
    parliament.pass_on(Vote)
    assert parliament.commits() and parliament.seats[late].committed is None
    parliament.restart(elector)
    if killed:
        parliament.crash(late)
        parliament.restart(late)
    parliament.deliver()
    assert parliament.seats[late].committed is not None


# -- what nobody acts on --------------------------------------------------------------------------------------------------


def test_a_proposal_without_the_view_changes_of_a_quorum_is_rejected() -> None:
    parliament = Parliament(4)
    leader, voter = leader_and_voter(parliament)
    parliament.call()
    [proposal, *_] = [body for _, _, body in parliament.queue if isinstance(body, Proposal)]
    seat = parliament.seats[voter]
    for view_changes in (proposal.view_changes[:2], [proposal.view_changes[0]] * 3, [b"rubbish"] * 3):
        [effect] = parliament.hand_over(leader, seat, proposal.model_copy(update={"view_changes": view_changes}))
        assert isinstance(effect, Reject)
    assert seat.machine.state.plan is None
    parliament.hand_over(leader, seat, proposal)
    assert seat.machine.state.plan == proposal.plan


@pytest.mark.parametrize("lead, refused", [(1, True), (4, False)])
def test_only_the_proposer_of_an_attempt_proposes(lead: int, refused: bool) -> None:
    """The view changes that it shows are those of the attempt in which it is its turn."""
    parliament = Parliament(4)
    leader, voter = leader_and_voter(parliament)
    rival = next(peer for peer in parliament.seats if peer not in (leader, voter))
    parliament.call()
    [proposal, *_] = [body for _, _, body in parliament.queue if isinstance(body, Proposal)]
    [effect] = parliament.hand_over(rival, parliament.seats[voter], proposal)
    assert effect == Reject(rival, "proposal", "it is not its sender's turn to propose")
    later = proposal.model_copy(update={"attempt": lead})
    [effect] = parliament.hand_over(leader, parliament.seats[voter], later)
    assert isinstance(effect, Reject)
    assert (effect.reason == "it is not its sender's turn to propose") is refused


@pytest.mark.parametrize("electors", [1, 3, 4])
def test_view_changes_of_strangers_that_say_ready_move_nobody(electors: int) -> None:
    """Keys are free: many of them are no f + 1, and cannot close a round or run its attempts up."""
    parliament = Parliament(electors, 5)
    peers = list(parliament.seats)
    seat, strangers = parliament.seats[peers[0]], [peer for peer in peers if peer not in parliament.base.electors]
    parliament.ready(*strangers)
    for stranger in strangers:
        view_change = ViewChange(
            round=parliament.base.round,
            base=parliament.base.tip,
            attempt=2**50,
            absent=[],
            held=held_mask(parliament.base.electors, []),
            plan=None,
            lock=None,
            reduced=None,
        )
        effects = parliament.hand_over(stranger, seat, view_change)
        assert any(isinstance(effect, Reject) for effect in effects)
    assert seat.machine.state.attempt == 0
    parliament.ready()
    parliament.run(20)
    assert len(parliament.commits()) == len(peers) and seat.machine.state.attempt < 2**50


@pytest.mark.parametrize(("electors", "ahead", "attempt"), [(4, 16, 0), (4, 10**6, 0), (3, 16, 16), (3, 10**6, MAX_LEAD)])
def test_one_voter_takes_us_ahead_only_where_none_may_lie_and_not_far(electors: int, ahead: int, attempt: int) -> None:
    parliament = Parliament(electors)
    leader, voter = leader_and_voter(parliament)
    parliament.ready()
    [view_change, *_] = parliament.pass_on(ViewChange)
    parliament.hand_over(voter, parliament.seats[leader], view_change.model_copy(update={"attempt": ahead}))
    state = parliament.seats[leader].machine.state
    assert state.attempt == state.kept.attempt == attempt


@pytest.mark.parametrize("changes", [{"round": 6}, {"base": ZERO_HASH}], ids=["another round", "another tip"])
@pytest.mark.parametrize("kind", [ViewChange, Vote])
def test_statements_about_other_rounds_change_nothing(kind: type[Body], changes: dict[str, Any]) -> None:
    parliament = Parliament(4)
    leader, voter = leader_and_voter(parliament)
    parliament.call()
    parliament.pass_on(Proposal)
    parliament.pass_on(RecordProposal)
    sent = [effect.body for effect in parliament.performed if isinstance(effect, Send)]
    template = next(body for body in sent if isinstance(body, kind))
    parliament.queue.clear()
    for peer in parliament.seats:
        parliament.hand_over(peer, parliament.seats[leader], template.model_copy(update=changes))
    assert parliament.queue == []
    for peer in parliament.seats:
        parliament.hand_over(peer, parliament.seats[leader], template)
    assert bool(parliament.queue) == (kind is Vote), "a quorum of first votes makes a proof"


def test_a_commit_whose_certificate_does_not_hold_is_rejected_with_the_reason() -> None:
    parliament = Parliament(3)
    first, second, _ = parliament.seats
    parliament.ready()
    parliament.run(3)
    commit = parliament.commits()[0]
    other = Parliament(3)
    forged = commit.model_copy(
        update={"certificate": commit.certificate.model_copy(update={"votes": commit.certificate.votes[:1]})}
    )
    rejected = other.hand_over(second, other.seats[first], forged)
    assert [type(effect) for effect in rejected] == [Reject] and not other.commits()
    other.hand_over(second, other.seats[first], commit)
    assert other.seats[first].committed == commit


# -- reserved attempts ----------------------------------------------------------------------------------------------------


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
    plan = machine.state.closing.make_plan(parliament.view(honest), ZERO_HASH, present)
    assert plan is not None
    view_change = ViewChange(
        round=parliament.base.round,
        base=parliament.base.tip,
        attempt=ballot.attempt,
        absent=absent,
        held=held_mask(parliament.base.electors, present),
        plan=None,
        lock=None,
        reduced=None,
    )
    view_changes = [signed(peer, view_change) for peer in liars]
    parliament.say(
        ballot.proposer, Proposal(attempt=ballot.attempt, absent=absent, plan=plan, view_changes=view_changes), honest
    )
    parliament.deliver()
    return machine.state.attempt if machine.state.plan == plan else None


def test_two_liars_of_three_that_are_left_take_the_third_ahead_by_little() -> None:
    assert attempt_of_three(0) is not None
    assert attempt_of_three(MAX_LEAD - 4) is not None
    for attempt in (2 * MAX_LEAD, 10**6, MAX_ATTEMPT - 3, MAX_ATTEMPT, MAX_ATTEMPT + 5):
        assert attempt_of_three(attempt) is None
