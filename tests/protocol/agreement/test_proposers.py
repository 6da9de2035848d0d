"""Electors and proposers that die, come back, fall silent, or lie: the others come to one record."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from protocol.agreement.ballot import Ballot
from protocol.agreement.events import Reject, RoundEffect, Send, StateHashed, Tick
from protocol.agreement.machine import RoundMachine
from protocol.agreement.policy import RESEND_S
from protocol.agreement.round_state import TIMEOUT_S
from protocol.allreduce.assignment import plan_hash
from protocol.chain.electorate import quorum_size
from protocol.chain.records import index_root, is_full, record_hash, verify_commit
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Lock,
    PrevoteCertificate,
    Proposal,
    RecordProposal,
    Report,
    Signature,
    ViewChange,
    Vote,
)
from tests.protocol.agreement.lying_proposer import LyingProposer
from tests.protocol.agreement.parliament import (
    STEPS,
    Parliament,
    first_proposer,
    leader_and_voter,
    put_to_the_vote,
)
from tests.protocol.agreement.parliament import settings as round_settings
from tests.protocol.council import CHUNKS, base_of, peers, signed

# -- electors -------------------------------------------------------------------------------------------------------------

EVICTION_S = round_settings().eviction_s


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
            parliament.say(liar, parliament.view_change(attempt, absent=sorted(absent)), *others)
    parliament.run(60)
    assert not parliament.undecided()
    assert all(is_full(commit.certificate) for commit in parliament.commits())


def test_a_peer_that_has_lost_what_binds_it_says_nothing_as_a_voter() -> None:
    parliament = Parliament(4)
    peer, seat = next(iter(parliament.seats.items()))
    seat.machine = RoundMachine(peer, round_settings(), parliament.base, parliament.now, abstains=True)
    seat.machine.handle(StateHashed(ZERO_HASH), {}, parliament.now)
    parliament.ready()
    parliament.run(20)
    assert len(parliament.records()) == 1 and len(parliament.commits()) == 4
    assert all(vote.peer != peer for commit in parliament.commits() for vote in commit.certificate.votes)


# -- whose turn it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("electors", [1, 4, 7])
def test_each_elector_begins_one_round_of_as_many_as_there_are_whatever_the_tips(electors: int) -> None:
    """A tip that somebody has chosen makes nobody the proposer."""
    base = base_of(peers(electors))
    for first in (0, 5):
        rounds = [replace(base, round=first + later) for later in range(electors)]
        assert sorted(Ballot(each, 0).proposer for each in rounds) == [*base.electors]
    for attempt in range(2 * electors):
        leaders = {Ballot(replace(base, tip=Hash(bytes([tip]) * 32)), attempt).proposer for tip in range(64)}
        assert len(leaders) == 1
    assert sorted(Ballot(base, attempt).proposer for attempt in range(electors)) == [*base.electors]


# -- proposers that die ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [False, True], ids=["for good", "and comes back"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_the_proposer_dies_after_any_step_and_the_others_finish_the_round(steps: int, seed: int, returns: bool) -> None:
    """Of its last words some arrive.  It comes back with what it kept and without its contribution."""
    parliament, luck = Parliament(4, seed=seed, versions=True), Random(seed)
    leader = first_proposer(parliament)
    parliament.ready()
    for kind in STEPS[:steps]:
        assert parliament.pass_on(kind)
    parliament.crash(leader)
    parliament.queue = [each for each in parliament.queue if each[0] != leader or luck.random() < 0.5]
    parliament.run(2)
    if returns:
        parliament.restart(leader)
        parliament.ready(leader, life=2)
    parliament.run(60)
    parliament.show_the_record()
    assert not parliament.undecided() and len(parliament.records()) == 1


def test_voters_locked_in_one_attempt_go_on_though_none_hears_that_the_other_is_in_it() -> None:
    """The proposer of attempt 0 has left.  That of attempt 1 is away for a moment, in which a ballot without the absent is
    called; and a voter that is locked calls the whole one no more, so the others never hear that it is there, too."""
    parliament = Parliament(4, versions=True)
    parliament.ready()
    parliament.leave(first_proposer(parliament))
    leader = first_proposer(parliament, 1)
    parliament.queue.clear()
    alive = [seat for seat in parliament.seats.values() if seat.alive]
    for seat in alive:
        parliament.tell(seat, Tick())
    for kind in (ViewChange, Proposal, RecordProposal, Vote, PrevoteCertificate):
        assert parliament.pass_on(kind)
    parliament.queue.clear()
    locks = [seat.kept.lock for seat in alive if seat.kept is not None and seat.kept.lock is not None]
    assert [lock.proof.attempt for lock in locks] == [1, 1, 1]
    parliament.crash(leader)
    for seat in alive:
        if seat.me != leader:
            parliament.tell(seat, Tick())
    parliament.queue.clear()
    parliament.restart(leader)
    parliament.ready(leader, life=2)
    parliament.run(60)
    assert not parliament.undecided() and parliament.records() == {locks[0].record.encode()}


@pytest.mark.parametrize("electors", [4, 5, 7])
def test_voters_that_each_distrust_all_others_come_to_one_proposer(electors: int) -> None:
    """What they remember of earlier rounds counts for one turn of all voters: else each goes on to itself, for ever."""
    parliament = Parliament(electors)
    for peer, seat in parliament.seats.items():
        for other in parliament.seats:
            if other != peer:
                for ago in (2, 1):
                    seat.machine.state.closing.lateness.proposers.lost_with(other, parliament.base.round - ago)
    parliament.ready()
    parliament.outlives()


# -- proposers that lie ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", ["index", "provenance"])
def test_a_lock_with_what_cannot_be_put_to_the_vote_spoils_no_attempt(spoilt: str) -> None:
    """Its proof is of the record alone.  All others are locked, and the liar shows each the lock with something else."""
    liar = LyingProposer()
    record_proposal = liar.record_proposal(b"version")
    liar.says(record_proposal, *liar.others)
    proof = liar.proof(record_proposal)
    liar.says(proof, *liar.others)
    lock = Lock(
        record=record_proposal.record,
        index=record_proposal.index,
        provenance=record_proposal.provenance,
        proof=proof.certificate,
    )
    others = {
        "index": [ChunkEntry(hash=chunk_hash(b"another"), mask=b"\x0f")] * 3,
        "provenance": record_proposal.provenance.model_copy(update={"owners": bytes(1)}),
    }
    liar.says(lock.model_copy(update={spoilt: others[spoilt]}), *liar.others)
    liar.is_outlived()
    assert all(liar.parliament.seats[peer].machine.state.attempt == 1 for peer in liar.others)


def test_what_nobody_takes_up_ends_its_attempt_at_once() -> None:
    """All chunks are its own.  Every voter sees that, so nobody waits for more, and what is remembered of others holds."""
    liar = LyingProposer()
    plan = liar.plan(0)
    greedy = plan.model_copy(update={"owners": bytes(3)})
    liar.says(liar.proposal(0).model_copy(update={"plan": greedy}), *liar.others)
    liar.parliament.run(TIMEOUT_S - 0.5)
    assert len(liar.parliament.records()) == 1
    for peer in liar.others:
        state = liar.parliament.seats[peer].machine.state
        assert state.closing.lateness.proposers.share(liar.peer, state.base.round + 1) < 1 and not state.losses


def test_a_proposal_that_only_some_refuse_leaves_its_proposer_the_usual_time() -> None:
    """Its plan stands on another state than ours, and may stand on that of the others."""
    liar = LyingProposer()
    plan = liar.plan(0).model_copy(update={"state_digest": bytes([1] * 32), "owners": bytes(3)})
    liar.says(liar.proposal(0).model_copy(update={"plan": plan}), *liar.others)
    liar.parliament.run(TIMEOUT_S - 0.5)
    assert not liar.parliament.records()


def test_a_false_lock_without_a_proof_takes_its_own_view_change_out_of_the_count_and_no_more() -> None:
    """The liar names a lock of a high attempt, or shows a proof that is none."""
    parliament = Parliament(4)
    leader, liar = leader_and_voter(parliament)
    parliament.make_puppet(liar)
    record = put_to_the_vote(Parliament(4))[1]
    false = Lock(
        record=record.record,
        index=record.index,
        provenance=record.provenance,
        proof=Certificate(attempt=0, absent=[], votes=[Signature(peer=liar, signature=bytes(64))]),
    )
    for attempt in range(6):
        name = {"attempt": max(0, attempt - 1), "absent": [], "record_hash": record_hash(record.record)}
        parliament.say(liar, false, *parliament.seats)
        parliament.say(
            liar,
            ViewChange.model_validate({**parliament.view_change(attempt).model_dump(), "lock": name}),
            *parliament.seats,
        )
    parliament.ready()
    parliament.outlives()


def test_a_proposer_may_not_leave_the_view_change_of_a_locked_voter_without_an_answer() -> None:
    """It carries on what the view changes name, with its proof, or its record proposal is rejected."""
    liar = LyingProposer()
    first, second = liar.record_proposal(b"first"), liar.record_proposal(b"second")
    one, two, three = liar.others
    liar.says(first, *liar.others)
    proof = liar.proof(first)
    liar.says(proof, one, two)
    name = {"attempt": 0, "absent": [], "record_hash": record_hash(first.record)}
    attempt = next(number for number in range(1, 20) if first_proposer(liar.parliament, number) == liar.peer)
    view_changes = [signed(peer, liar.parliament.view_change(attempt)) for peer in sorted([liar.peer, three])]
    locked = ViewChange.model_validate({**liar.parliament.view_change(attempt).model_dump(), "lock": name})
    view_changes.append(signed(one, locked))
    seat = liar.parliament.seats[three]
    must = "it does not carry on the highest lock that its view changes name"
    for update, objection in [
        ({"attempt": attempt, "view_changes": view_changes}, must),
        ({"attempt": attempt, "view_changes": view_changes, "proof": proof.certificate}, must),
        ({"attempt": attempt, "view_changes": view_changes[:2]}, "2 of the 3 view changes that it needs"),
    ]:
        [effect] = liar.parliament.hand_over(liar.peer, seat, second.model_copy(update=update))
        assert effect == Reject(liar.peer, "record_proposal", objection)
    [effect] = liar.parliament.hand_over(
        liar.peer, seat, first.model_copy(update={"attempt": attempt, "view_changes": view_changes})
    )
    assert effect == Reject(liar.peer, "record_proposal", must), "the proof is to be shown"
    few = proof.certificate.model_copy(update={"votes": proof.certificate.votes[:2]})
    [effect] = liar.parliament.hand_over(
        liar.peer, seat, first.model_copy(update={"attempt": attempt, "view_changes": view_changes, "proof": few})
    )
    assert isinstance(effect, Reject) and "2 of the 3 votes" in effect.reason, "and it is to hold"
    carried = first.model_copy(update={"attempt": attempt, "view_changes": view_changes, "proof": proof.certificate})
    assert not any(isinstance(effect, Reject) for effect in liar.parliament.hand_over(liar.peer, seat, carried))
    assert seat.machine.state.kept.first == record_hash(first.record)


# -- reports of results ---------------------------------------------------------------------------------------------------


class StuckProposer:
    """The proposer of attempt 0, one of four members, whose exchange never ends.

    seat: its seat.  reporter, other: members that have the result.
    """

    def __init__(self, electors: int = 1) -> None:
        self.parliament = parliament = Parliament(electors, joiners=4 - electors)
        self.leader = first_proposer(parliament)
        self.seat = parliament.seats[self.leader]
        self.reporter, self.other = [peer for peer in parliament.seats if peer != self.leader][:2]
        parliament.call()
        [plan, *_] = [body.plan for _, _, body in parliament.queue if isinstance(body, Proposal)]
        self.plan = plan
        self.seat.exchanged.add(plan_hash(plan))
        parliament.pass_on(Proposal)

    def report(self, version: bytes = b"", **changes: Any) -> Report:
        """A report of averages of this version, which their makers signed."""
        index = [ChunkEntry(hash=chunk_hash(version + bytes([chunk])), mask=b"\x0f") for chunk in range(CHUNKS)]
        base, provenance = self.parliament.base, self.parliament.provenance(self.plan, index)
        report = Report(round=base.round, base=base.tip, plan=plan_hash(self.plan), index=index, provenance=provenance)
        return report.model_copy(update=changes)

    def asks(self, seconds: float = RESEND_S) -> None:
        """Time passes, and then it sends its proposal again; nobody answers."""
        self.parliament.now += seconds
        self.parliament.tell(self.seat, Tick())
        assert self.parliament.pass_on(Proposal)
        self.parliament.queue.clear()

    def hears(self, report: Report, sender: PeerId | None = None) -> list[RoundEffect]:
        return self.parliament.hand_over(sender or self.reporter, self.seat, report)

    def proposes(self, effects: list[RoundEffect]) -> bool:
        return any(isinstance(effect, Send) and isinstance(effect.body, RecordProposal) for effect in effects)


@pytest.mark.parametrize("electors", [1, 4])
def test_a_proposer_whose_exchange_is_stuck_proposes_the_result_that_a_member_reports(electors: int) -> None:
    stuck = StuckProposer(electors)
    stuck.parliament.outlives(RESEND_S + 1)
    assert stuck.parliament.commits()[0].certificate.attempt == 0


def test_a_report_that_no_proposal_asked_for_changes_nothing() -> None:
    """Our exchange makes no progress for a while, but we have not asked; or a record is proposed; or the attempt is over."""
    stuck = StuckProposer()
    machine, parliament = stuck.seat.machine, stuck.parliament
    parliament.now += RESEND_S - 0.1
    idle_s = machine.state.idle_s(parliament.now)
    assert stuck.hears(stuck.report(b"forged")) == []
    assert machine.state.idle_s(parliament.now) == idle_s and not machine.state.results
    stuck.asks(0.1)
    parliament.now += 1
    assert stuck.proposes(stuck.hears(stuck.report()))
    parliament.now += 1
    assert stuck.hears(stuck.report(b"forged"), stuck.other) == []
    assert machine.state.idle_s(parliament.now) > 0 and not machine.state.results
    late = StuckProposer(4)
    late.asks()
    late.seat.machine.state.go_to_attempt(1, late.parliament.now)
    assert late.hears(late.report()) == [] and not late.seat.machine.state.results


@pytest.mark.parametrize("flaw", ["unsigned", "signed by another", "another plan", "a mask without members"])
def test_a_false_report_is_rejected_once_and_a_true_one_of_another_member_is_proposed(flaw: str) -> None:
    """Otherwise all voters would doubt the result, which may be right, because nobody signed what the report names."""
    stuck = StuckProposer(4)
    stuck.asks()
    report = stuck.report()
    provenance = report.provenance
    next_member = bytes((owner + 1) % 4 for owner in provenance.owners)
    false: dict[str, dict[str, Any]] = {
        "unsigned": {"provenance": provenance.model_copy(update={"signatures": [bytes(64)] * CHUNKS})},
        "signed by another": {"provenance": provenance.model_copy(update={"signers": next_member})},
        "another plan": {"provenance": provenance.model_copy(update={"owners": next_member})},
        "a mask without members": {"index": [ChunkEntry(hash=ZERO_HASH, mask=b"\0")] * CHUNKS},
    }
    [effect] = stuck.hears(report.model_copy(update=false[flaw]))
    assert isinstance(effect, Reject)
    assert stuck.hears(report) == [], "a member that has reported falsely is not examined again in this round"
    assert stuck.proposes(stuck.hears(report, stuck.other))


def test_a_reported_result_that_failed_its_audit_is_not_proposed_again() -> None:
    stuck = StuckProposer()
    stuck.asks()
    forged = stuck.report(b"forged")
    stuck.parliament.refused.add(index_root(forged.index))
    assert stuck.proposes(stuck.hears(forged))
    stuck.parliament.pass_on(RecordProposal)
    assert stuck.seat.machine.state.attempt == 1, "our own audit failed"
    stuck.parliament.queue.clear()
    stuck.parliament.now += 1
    stuck.parliament.tell(stuck.seat, Tick())
    stuck.parliament.pass_on(ViewChange)
    assert stuck.parliament.pass_on(Proposal), "it proposes the plan again, and no result"
    stuck.parliament.queue.clear()
    stuck.asks()
    assert stuck.hears(forged) == []
    assert stuck.proposes(stuck.hears(stuck.report(), stuck.other))
