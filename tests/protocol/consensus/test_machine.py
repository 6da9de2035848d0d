"""Round negotiation as a pure state machine: agreement under loss, crashes and rivals; progress with a majority."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.consensus.effects import FinishCompute, Persist, Reject, RoundEffect, Send
from protocol.consensus.events import AverageDisproved, StateHashed
from protocol.consensus.policy import ClosingPolicy
from protocol.state.chain import record_hash, verify_commit
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, Motion, Promise, Proposal, Refusal
from tests.protocol.consensus.parliament import Parliament
from tests.protocol.consensus.parliament import settings as round_settings


def test_all_ready_commits_one_record_everywhere() -> None:
    parliament = Parliament(4)
    parliament.ready()
    parliament.run(3)
    assert len(parliament.commits()) == 4
    assert len(parliament.records()) == 1
    for commit in parliament.commits():
        verify_commit(round_settings(), commit, parliament.base)


def test_founders_without_a_previous_record_commit_round_zero() -> None:
    parliament = Parliament(0, joiners=3)
    parliament.ready()
    parliament.run(3)
    assert len(parliament.commits()) == 3 and len(parliament.records()) == 1


def test_a_joiner_contributes_at_once_and_does_not_vote() -> None:
    parliament = Parliament(2, joiners=1)
    joiner = list(parliament.seats)[2]
    parliament.ready()
    parliament.run(3)
    commit = parliament.commits()[0]
    assert joiner in [member.peer for member in commit.record.members]
    assert joiner not in [vote.peer for vote in commit.certificate.votes]
    assert parliament.seats[joiner].committed is not None


def test_a_late_trainer_is_asked_to_finish_after_the_grace_time_and_then_left_out() -> None:
    parliament = Parliament(3)
    *early, late = parliament.seats
    parliament.ready(*early)
    parliament.run(3)
    assert not parliament.commits(), "the grace time has not passed"
    asked = parliament.performed = []
    parliament.run(3)
    assert any(isinstance(effect, Send) and isinstance(effect.body, Finish) and effect.to == (late,) for effect in asked)
    assert any(isinstance(effect, FinishCompute) for effect in asked)
    parliament.run(10)
    assert len(parliament.records()) == 1
    assert late not in [member.peer for member in parliament.commits()[0].record.members]


def test_who_is_about_to_arrive_is_waited_for_and_no_longer_than_the_grace_time() -> None:
    parliament = Parliament(2, joiners=1)
    *there, coming = parliament.seats
    parliament.near.add(coming)
    parliament.ready(*there)
    parliament.run(3)
    assert not parliament.commits(), "the grace time has not passed"
    parliament.run(3)
    assert [member.peer for member in parliament.commits()[0].record.members] == sorted(there)


def test_who_arrives_within_the_grace_time_is_in_the_round() -> None:
    parliament = Parliament(2, joiners=1)
    *there, coming = parliament.seats
    parliament.near.add(coming)
    parliament.ready(*there)
    parliament.run(3)
    parliament.near.clear()
    parliament.ready(coming)
    parliament.run(3)
    assert coming in [member.peer for member in parliament.commits()[0].record.members]


def test_members_that_assembled_different_chunks_commit_the_proposers_version() -> None:
    parliament = Parliament(5, versions=True)
    parliament.ready()
    parliament.run(5)
    assert len(parliament.commits()) == 5 and len(parliament.records()) == 1


def test_a_minority_does_not_commit_before_the_eviction_time_and_does_after() -> None:
    parliament = Parliament(4)
    first, *others = parliament.seats
    parliament.ready(first)
    for peer in others:
        parliament.crash(peer)
    parliament.run(15)
    assert not parliament.commits()
    parliament.run(30)
    commit = parliament.seats[first].committed
    assert commit is not None and sorted(commit.certificate.evicted) == sorted(others)


def test_proposer_dies_after_the_promises_and_the_next_one_finishes_the_round() -> None:
    parliament = Parliament(4)
    parliament.ready()
    proposer = next(sender for sender, _, _ in parliament.queue)
    for sender, to, body in list(parliament.queue):
        parliament.queue.remove((sender, to, body))
        parliament.hand_over(sender, parliament.seats[to], body)
    parliament.crash(proposer)
    parliament.run(40)
    survivors = [seat for seat in parliament.seats.values() if seat.me != proposer]
    assert all(seat.committed for seat in survivors) and len(parliament.records()) == 1


def test_a_contradicting_ready_of_the_same_incarnation_is_refused() -> None:
    parliament = Parliament(2)
    first, second = parliament.seats
    parliament.ready()
    seat = parliament.seats[first]
    parliament.hand_over(second, seat, seat.machine.readys[second].model_copy(update={"tokens": 999}))
    assert seat.machine.readys[second].tokens == 1000


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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.3]))
def test_agreement_and_progress_with_a_majority_under_loss_crashes_and_restarts(
    seed: int, electors: int, joiners: int, loss: float
) -> None:
    """No two peers commit different records; with a majority of the electors alive at the end, one is committed."""
    parliament = Parliament(electors, joiners, seed=seed, loss=loss, versions=True)
    parliament.ready()
    peers = list(parliament.seats)
    for _ in range(12):
        parliament.run(parliament.random.choice([0.5, 1.0, 3.0]))
        peer = parliament.random.choice(peers)
        down = [p for p in peers[:electors] if not parliament.seats[p].alive]
        if not parliament.seats[peer].alive:
            parliament.restart(peer)
            parliament.ready(peer)
            for other in peers:
                if parliament.seats[other].alive and other != peer:
                    statement = parliament.seats[other].machine.readys.get(other)
                    if statement is not None:
                        parliament.hand_over(other, parliament.seats[peer], statement)
        elif len(down) + 1 <= (electors - 1) // 2:
            parliament.crash(peer)
        assert len(parliament.records()) <= 1
    parliament.loss = 0.0
    parliament.run(120)
    assert len(parliament.records()) == 1
    commit = parliament.commits()[0]
    for seat in parliament.seats.values():
        if seat.alive and seat.committed is None:  # it decided without this one: the record is fetched and believed
            parliament.hand_over(commit.record.proposer, seat, commit)  # type: ignore[arg-type]
            assert seat.committed is not None


def closing(parliament: Parliament, me: PeerId) -> ClosingPolicy:
    """The policy of `me`, who has heard every READY."""
    policy = ClosingPolicy(me, round_settings(), parliament.base)
    for peer, ready in parliament.seats[me].machine.readys.items():
        assert policy.add(peer, ready)
    return policy


def promises(parliament: Parliament) -> None:
    """Ready, proposed, promised; motions and votes are not delivered yet."""
    parliament.ready()
    for kinds in ((Proposal,), (Promise,)):
        for sender, to, body in list(parliament.queue):
            if isinstance(body, kinds):
                parliament.queue.remove((sender, to, body))
                parliament.hand_over(sender, parliament.seats[to], body)


def test_a_record_proven_false_after_one_vote_is_made_anew_without_the_liar() -> None:
    parliament = Parliament(4)
    promises(parliament)
    motions = [(sender, to, body) for sender, to, body in parliament.queue if isinstance(body, Motion)]
    sender, to, motion = motions[0]
    parliament.queue.clear()
    parliament.hand_over(sender, parliament.seats[to], motion)  # one vote is given, and lost
    parliament.queue.clear()
    liar = next(peer for peer in parliament.seats if peer not in (sender, to))
    for seat in parliament.seats.values():
        if seat.me != liar:
            parliament.tell(seat, AverageDisproved(liar, 0, motion.index[0].hash))
    parliament.crash(liar)
    parliament.lie = motion.index[0].hash
    parliament.run(40)
    honest = [seat for seat in parliament.seats.values() if seat.me != liar]
    assert all(seat.committed for seat in honest) and len(parliament.records()) == 1
    record = honest[0].committed.record  # type: ignore[union-attr]
    assert liar not in [member.peer for member in record.members]


def test_nobody_follows_a_plan_that_leaves_most_out() -> None:
    parliament = Parliament(4)
    parliament.ready()
    first, *others = parliament.seats
    parliament.queue.clear()
    plan = closing(parliament, first).make_plan({first: parliament.view(first)[first]})
    assert plan is not None and [member.peer for member in plan.members] == [first]
    for attempt in range(3):
        for peer in others:
            effects = parliament.hand_over(first, parliament.seats[peer], Proposal(attempt=attempt, plan=plan, evicted=[]))
            assert not any(isinstance(effect, Persist) for effect in effects), "no promise"
            assert any(isinstance(effect, Reject) for effect in effects), "and it says why"


def test_a_plan_whose_contributions_were_lost_with_their_makers_is_made_anew() -> None:
    """Two of three are killed after they promised, and come back with other contributions.  The third has averaged the
    plan alone; they do not stand by that, and nobody can average the plan any more."""
    parliament = Parliament(3)
    promises(parliament)
    proposer, motion = next((sender, body) for sender, _, body in parliament.queue if isinstance(body, Motion))
    parliament.queue.clear()
    others = [peer for peer in parliament.seats if peer != proposer]
    for peer in others:
        parliament.crash(peer)
        parliament.restart(peer)
    parliament.ready(proposer)
    parliament.ready(*others, life=2)
    parliament.refused.add(motion.record.result_root)
    parliament.run(60)
    assert len(parliament.commits()) == 3 and len(parliament.records()) == 1
    record = parliament.commits()[0].record
    roots = {peer: seat.machine.readys[peer].root for peer, seat in parliament.seats.items()}
    assert {member.peer: member.root for member in record.members} == roots


def test_a_rival_does_not_take_over_while_the_proposer_works() -> None:
    parliament = Parliament(4)
    promises(parliament)
    proposer = next(sender for sender, _, body in parliament.queue if isinstance(body, Motion))
    machine = next(seat.machine for seat in parliament.seats.values() if seat.me != proposer)
    plan, view = machine.plan, parliament.view(machine.me)
    assert plan is not None
    rival = next(
        peer
        for peer in parliament.seats
        if peer not in (proposer, machine.me, closing(parliament, machine.me).proposer(view, 9))
    )

    def proposes(attempt: int) -> list[RoundEffect]:
        return parliament.hand_over(rival, parliament.seats[machine.me], Proposal(attempt=attempt, plan=plan, evicted=[]))

    assert proposes(9) == [Reject(rival, "proposal", "the proposer that we promised is at work")]
    parliament.now += 60
    assert proposes(10_000) == [Reject(rival, "proposal", "attempt 10000 is too far ahead of attempt 0")]
    assert any(isinstance(effect, Persist) for effect in proposes(9))


def test_refusals_begin_the_next_attempt() -> None:
    parliament = Parliament(3)
    promises(parliament)
    proposer, motion = next((sender, body) for sender, _, body in parliament.queue if isinstance(body, Motion))
    machine = parliament.seats[proposer].machine
    before = machine.attempt
    for peer in parliament.seats:
        if peer != proposer:
            refused = Refusal(
                round=machine.base.round,
                base=machine.base.tip,
                attempt=before,
                proposer=proposer,
                record_hash=record_hash(motion.record),
            )
            parliament.hand_over(peer, parliament.seats[proposer], refused)
    assert machine.attempt == before + 1


def test_a_ready_member_that_the_proposer_did_not_hear_protests_and_is_in_the_record() -> None:
    """Its READY, sent in answer to a plan without it, is delivered like any other statement."""
    parliament = Parliament(2)
    proposer, unheard = sorted(parliament.seats, key=lambda peer: peer != first_proposer(parliament))
    parliament.ready(proposer)
    statement = parliament.seats[proposer].machine.readys[proposer].model_copy(update={"root": chunk_hash(unheard.encode())})
    parliament.hand_over(unheard, parliament.seats[unheard], statement)
    parliament.run(60)
    assert len(parliament.records()) == 1
    assert unheard in [member.peer for member in parliament.commits()[0].record.members]


def first_proposer(parliament: Parliament) -> PeerId:
    """Whose turn it is in attempt 0 when everybody is ready."""
    everybody = Parliament(len(parliament.seats))
    everybody.ready()
    return next(sender for sender, _, _ in everybody.queue)


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
