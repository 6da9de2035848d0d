"""Votes to ratify are asked for, and whatever is answered changes the chain only by a quorum of true ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from protocol.agreement.ballot import RATIFYING, vote_to_ratify
from protocol.chain.base import Base
from protocol.chain.history import History
from protocol.node.round_runner import read_voter_state
from protocol.sync.remote_chains import Settled
from protocol.transport.interface import Refused
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, Signature, Step, Vote, VoterState, pack
from protocol.wire.questions import RatificationRequest
from tests.protocol.chains import FIVE, a_run, grow
from tests.protocol.node.stage import Stage, on_stage
from tests.protocol.peers import ME

OTHERS = FIVE[:3]
FOUNDERS = sorted([*OTHERS, ME], key=lambda each: each.peer_id)
RUN = a_run(*FOUNDERS)
ASKING_S = 60.0


def provisional(stage: Stage, *, built_upon: bool = True) -> tuple[Base, Hash]:
    """A chain whose second record was made without two electors, and whose third one may be full; where the second stands,
    and its hash."""
    replica = stage.replica
    grow(replica, 1, FOUNDERS, voters=FOUNDERS)
    away = [peer for peer in FOUNDERS if peer != ME][:2]
    grow(replica, 1, FOUNDERS, voters=FOUNDERS, absent=away)
    grow(replica, 1, FOUNDERS, voters=FOUNDERS, absent=() if built_upon else away)
    base = replica.history.base_at(1, replica.history.tip_at(1))
    assert base is not None
    return base, replica.history.tip_at(2)


def signed(voters: Sequence[Identity], vote: Vote) -> list[Signature]:
    found = [Signature(peer=each.peer_id, signature=pack(each, RUN.run, vote).signature) for each in voters]
    return sorted(found, key=lambda each: each.peer)


def says(stage: Stage, peer: Identity, data: bytes) -> None:
    """From now on this neighbour answers every question in this way."""

    async def answer(kind: str, question: bytes) -> bytes:
        assert kind == "ratification"
        return data

    stage.network.answers[peer.peer_id] = answer


async def run_for(stage: Stage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await stage.ratifier.run()


def kept_at(stage: Stage, base: Base) -> VoterState | None:
    return read_voter_state(stage.replica.store.votes.load(base.round, base.tip))


def test_our_vote_is_on_disk_and_shown_and_with_a_quorum_of_others_the_record_is_full(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        base, record = provisional(stage)
        question = RatificationRequest(round=1, record_hash=record)
        with pytest.raises(Refused):
            await stage.ratifier.answer(OTHERS[0].peer_id, question)
        await run_for(stage, ASKING_S)
        kept = kept_at(stage, base)
        assert kept is not None and (kept.attempt, kept.second) == (RATIFYING, record)
        shown = decode_body(Certificate, await stage.ratifier.answer(OTHERS[0].peer_id, question))
        assert [each.peer for each in shown.votes] == [ME.peer_id] and stage.replica.history.final == 1
        for peer in OTHERS[:2]:
            votes = signed([peer], vote_to_ratify(base, record))
            says(stage, peer, Certificate(attempt=RATIFYING, absent=[], votes=votes).encode())
        await run_for(stage, ASKING_S)
        replica = stage.replica
        assert replica.history.final == replica.history.length == 3
        assert History(replica.rounds, replica.store).final == 3, "on disk, too"
        shown = decode_body(Certificate, await stage.ratifier.answer(OTHERS[0].peer_id, question))
        assert len(shown.votes) == 3 and shown == replica.history.commit_at(1).certificate

    on_stage(tmp_path, check, RUN)


def test_a_full_certificate_of_another_attempt_does_as_well(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        base, record = provisional(stage, built_upon=False)
        for round in (1, 2):
            tip, name = stage.replica.history.tip_at(round), stage.replica.history.tip_at(round + 1)
            vote = Vote(round=round, base=tip, attempt=7, step=Step.SECOND, absent=[], record_hash=name)
            says(stage, OTHERS[0], Certificate(attempt=7, absent=[], votes=signed(OTHERS, vote)).encode())
            await run_for(stage, ASKING_S)
        assert stage.replica.history.final == 3
        assert kept_at(stage, base) is None, "nothing full stood on it, so we did not vote"

    on_stage(tmp_path, check, RUN)


def test_hostile_answers_change_nothing(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        base, record = provisional(stage)
        other = Hash(bytes(32))
        vote = vote_to_ratify(base, record)
        strangers = [Identity.from_seed(bytes([number]) * 32) for number in range(100, 160)]
        certificates = [
            Certificate(attempt=RATIFYING, absent=[], votes=signed(OTHERS, vote_to_ratify(base, other))),
            Certificate(attempt=RATIFYING, absent=[], votes=signed(strangers, vote)),
            Certificate(attempt=RATIFYING, absent=[], votes=[signed(OTHERS[:1], vote)[0]] * 4),
            Certificate(attempt=RATIFYING, absent=[OTHERS[0].peer_id], votes=signed(OTHERS, vote)),
            Certificate(attempt=3, absent=[], votes=signed(OTHERS, vote)),
            stage.replica.history.commit_at(1).certificate,
        ]
        for data in [b"", b"\xff" * 100_000, *(each.encode() for each in certificates)]:
            says(stage, OTHERS[0], data)
            await run_for(stage, ASKING_S)
            assert stage.replica.history.final == 1 and stage.guard.failures == 0

    on_stage(tmp_path, check, RUN)


@pytest.mark.parametrize("what", ["nothing stands on it", "not settled", "locked", "lost", "incomplete", "copied"])
def test_who_may_have_said_something_else_does_not_ratify(tmp_path: Path, what: str) -> None:
    async def check(stage: Stage) -> None:
        base, _ = provisional(stage, built_upon=what != "nothing stands on it")
        votes = stage.replica.store.votes
        if what == "locked":
            kept = VoterState(
                round=1, base=base.tip, attempt=RATIFYING, absent=[], first=None, second=bytes(32), lock=None, reduced=None
            )
            votes.save(1, base.tip, kept.encode())
        elif what == "lost":
            votes.save(1, base.tip, b"no voter state")
        elif what == "incomplete":
            votes.set_complete_from(2)
        elif what == "copied":
            stage.ratifier._is_copy = True
            await stage.ratifier.load()
        elif what == "not settled":
            stage.chain.settled.lose(1)
        await run_for(stage, ASKING_S)
        question = RatificationRequest(round=1, record_hash=stage.replica.history.tip_at(2))
        with pytest.raises(Refused):
            await stage.ratifier.answer(PeerId(OTHERS[0].peer_id), question)

    on_stage(tmp_path, check, RUN)


def test_we_vote_only_while_the_chain_does_not_change(tmp_path: Path) -> None:
    """It goes back to the tip on which the record stands, while we wait: a round there is bound by what it has read."""

    async def check(stage: Stage) -> None:
        base, _ = provisional(stage)
        async with stage.changing, trio.open_nursery() as nursery:
            nursery.start_soon(run_for, stage, ASKING_S)
            await trio.sleep(ASKING_S / 2)
            stage.replica.history.switch(1, "", 1)
            stage.changing.release()
            await trio.sleep(ASKING_S)
            await stage.changing.acquire()
        assert kept_at(stage, base) is None

    on_stage(tmp_path, check, RUN)


def test_what_we_ratified_stays_settled_over_a_restart_and_until_our_chain_is_another(tmp_path: Path) -> None:
    async def check(stage: Stage) -> None:
        provisional(stage)
        await run_for(stage, ASKING_S)
        stage.chain.settled = settled = Settled(stage.replica.rounds)
        await stage.ratifier.load()
        assert settled.rounds == 2
        settled.lose(3)
        assert settled.rounds == 2
        settled.lose(1)
        assert settled.rounds == 1
        stage.ratifier._tally = None
        await run_for(stage, ASKING_S)
        assert settled.rounds == 2, "our chain goes through it again"

    on_stage(tmp_path, check, RUN)


def test_whoever_asks_while_branches_are_exchanged_is_refused(tmp_path: Path) -> None:
    """The record is on disk no more, and the chain still has it."""

    async def check(stage: Stage) -> None:
        grow(stage.replica, 2, FOUNDERS, voters=FOUNDERS)
        question = RatificationRequest(round=1, record_hash=stage.replica.history.tip)
        assert decode_body(Certificate, await stage.ratifier.answer(OTHERS[0].peer_id, question)).votes
        stage.replica.history.switched(1, "", 1)
        with pytest.raises(Refused):
            await stage.ratifier.answer(OTHERS[0].peer_id, question)

    on_stage(tmp_path, check, RUN)
