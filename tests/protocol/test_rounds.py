"""Round negotiation as a pure state machine: agreement under loss, crashes and rivals; progress with a majority."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.chain import verify_commit
from protocol.hashes import ZERO_HASH
from protocol.messages import Finish, Ready
from protocol.round_terms import FinishCompute, Send
from tests.protocol.parliament import Parliament
from tests.protocol.parliament import settings as round_settings


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
    for seat in parliament.seats.values():
        parliament.perform(seat, seat.machine.tick(parliament.view(seat.me), 0.5))
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
    machine = parliament.seats[first].machine
    other = machine.readys[second].model_copy(update={"tokens": 999_999})
    assert isinstance(other, Ready) and not machine.on_ready(second, other)
    assert machine.readys[second].tokens == 1000


def test_another_state_digest_is_not_averaged() -> None:
    parliament = Parliament(3)
    odd = list(parliament.seats)[0]
    parliament.ready()
    for seat in parliament.seats.values():
        statement = seat.machine.readys[odd].model_copy(update={"state_digest": b"\x01" * 32})
        seat.machine.readys[odd] = statement
    parliament.seats[odd].machine.state_digest = b"\x01" * 32  # type: ignore[assignment]
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
                        parliament.seats[peer].machine.on_ready(other, statement)
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
