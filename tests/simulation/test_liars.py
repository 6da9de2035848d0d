"""What honest peers do about peers that lie: nobody honest is ejected, nothing wrong is lasting, rounds go on."""

from __future__ import annotations

from collections.abc import Container

import pytest
import trio

from protocol.agreement.ballot import Ballot
from protocol.chain.records import record_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Accusation,
    Commit,
    Lock,
    Plan,
    PrevoteCertificate,
    Proposal,
    Ready,
    Step,
    ViewChange,
    member_of,
    pack,
)
from tests.protocol.peers import a_first_ready
from tests.simulation.liars import Ghost, blow_up, flip_one, turn
from tests.simulation.runs import Finished, begin, holds, simulate
from tests.simulation.world import World
from tests.tiers import first_fast


def lines(run: Finished, event: str) -> list[str]:
    return [line for line in run.trace if event in line]


def test_an_owner_that_blows_an_average_up_is_caught_before_the_vote_and_blamed_by_everybody() -> None:
    async def scenario(world: World) -> None:
        liar, *honest = world.seats
        turn(world, liar, blow_up)
        for seat in world.seats:
            world.start(seat)
        await world.until(
            "everybody honest has ejected the liar",
            lambda: len(world.judge.ejections.get(liar.peer, {})) == len(honest),
            within_s=60,
        )
        world.faults.kill(liar)
        reached = max(world.rounds())
        await world.until_round(reached + 3, within_s=90)
        await world.until_equal(within_s=20)
        assert world.judge.false_chunks == 0, "a destructive average is looked at by everybody before the vote"
        for seat in honest:
            assert seat.node is not None
            record = seat.node.commit_at(seat.node.rounds - 1).record
            assert liar.peer not in [member.peer for member in record.members]

    holds(simulate(4, scenario))


@pytest.mark.parametrize("seed", first_fast([2, 3, 4]))
def test_an_owner_that_changes_one_value_is_caught_by_the_drawn_audits(seed: int) -> None:
    async def scenario(world: World) -> None:
        liar, *honest = world.seats
        turn(world, liar, flip_one)
        for seat in world.seats:
            world.start(seat)
        await world.until(
            "everybody honest has ejected the liar",
            lambda: len(world.judge.ejections.get(liar.peer, {})) == len(honest),
            within_s=200,
        )
        reached = max(world.rounds())
        await world.until("rounds without it", lambda: sorted(world.rounds())[1] >= reached + 3, within_s=120)

    holds(simulate(4, scenario, seed))


def test_a_restarted_peer_and_a_newcomer_know_who_lied() -> None:
    async def scenario(world: World) -> None:
        liar, one, two, three, newcomer = world.seats
        turn(world, liar, blow_up)
        for seat in (liar, one, two, three):
            world.start(seat)
        judged = world.judge.ejections
        await world.until("the liar ejected", lambda: len(judged.get(liar.peer, {})) == 3, within_s=60)
        world.faults.kill(one)
        judged[liar.peer].pop(one.peer)
        world.start(one)
        world.start(newcomer)
        await world.until("both know", lambda: {one.peer, newcomer.peer} <= set(judged[liar.peer]), within_s=60)

    holds(simulate(5, scenario))


@pytest.mark.slow
def test_who_claims_to_be_ahead_and_shows_nothing_costs_no_round() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x66")
        before, started = max(world.rounds()), trio.current_time()
        for seq in range(60):
            await ghost.gossip(ghost.beat(seq, 1000 + seq, bytes([seq]) * 32))
            await trio.sleep(1.0)
        calm = [line for line in world.trace.lines if "MemberLost" in line or "RolledBack" in line]
        assert not calm
        assert max(world.rounds()) >= before + (trio.current_time() - started) / 10

    holds(simulate(3, scenario))


def test_two_readys_under_one_serial_eject_their_author() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x67")
        world.judge.liars[ghost.peer] = None
        for tokens in (8, 16):
            await ghost.gossip(a_first_ready(round=99, tokens=tokens))
        await world.until(
            "everybody ejected the ghost",
            lambda: len(world.judge.ejections.get(ghost.peer, {})) == len(world.seats),
            within_s=30,
        )

    holds(simulate(3, scenario))


@pytest.mark.parametrize("signed", first_fast([False, True]))
def test_a_record_made_up_by_an_elector_gets_no_votes(signed: bool) -> None:
    """The ghost is a member and so an elector; when it is its turn, it shows the rolls of a quorum, as it must, and a
    record whose every chunk it averaged itself, as it says."""

    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x69")
        world.judge.liars[ghost.peer] = None
        made_up: dict[int, bytes] = {}
        world.spawn(ghost.live)
        world.spawn(always_ready, ghost)
        while len(made_up) < 3:
            await world.until("a quorum calls the ghost", lambda: called(world, ghost, made_up) is not None, within_s=200)
            rolls = called(world, ghost, made_up)
            assert rolls is not None
            motion = ghost.made_up_motion(rolls, signed)
            made_up[motion.record.round] = motion.record.result_root
            for seat in world.seats:
                world.spawn(ghost.tell, seat.peer, motion)
            await world.until_round(motion.record.round + 1, within_s=60)
        for seat in world.seats:
            assert seat.node is not None
            records = [seat.node.commit_at(round).record for round in range(seat.node.rounds)]
            assert any(ghost.peer == member.peer for record in records for member in record.members)
            assert not any(record.result_root in made_up.values() for record in records)

    run = holds(simulate(3, scenario))
    assert lines(run, "no vote for")


async def always_ready(ghost: Ghost) -> None:
    """The ghost is ready for each round as soon as somebody else is."""
    base = b""
    while True:
        if ghost.readys and ghost.newest_ready().base != base:
            base = ghost.newest_ready().base
            await ghost.gossip(ghost.ready_for(ghost.newest_ready()))
        await trio.sleep(0.1)


def called(world: World, ghost: Ghost, rounds: Container[int]) -> list[bytes] | None:
    """The rolls of a quorum of four for a ballot of the ghost, with its own; None while there is none.

    rounds: those without these.  A voter's reminder reaches also those whose turn it is not.
    """
    node = world.seats[0].node
    assert node is not None
    for roll, _ in ghost.rolls.values():
        rolls, base = ghost.rolls_for(roll), node._history.base_at(roll.round, roll.base)
        its_turn = base is not None and Ballot(base, roll.attempt, tuple(map(PeerId, roll.absent))).proposer == ghost.peer
        if len(rolls) >= 3 and its_turn and roll.round not in rounds:
            return rolls
    return None


def test_forged_votes_certify_nothing() -> None:
    """A commit, and a lock, with votes of everybody that the ghost signed itself."""

    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x6b")
        world.judge.liars[ghost.peer] = None
        for _ in range(3):
            await world.until("somebody is ready", lambda: ready_for_newest(world, ghost) is not None, within_s=30)
            ready = ready_for_newest(world, ghost)
            assert ready is not None
            motion = ghost.made_up_motion([pack(ghost.identity, world.signed.run, a_roll(ready)).raw], signed=True)
            voters = [seat.peer for seat in world.seats]
            second = ghost.forged_votes(motion.record, voters, Step.SECOND)
            first = ghost.forged_votes(motion.record, voters, Step.FIRST)
            commit = Commit(record=motion.record, index=motion.index, certificate=second)
            lock = Lock(record=motion.record, index=motion.index, provenance=motion.provenance, proof=first)
            proof = PrevoteCertificate(
                round=ready.round, base=ready.base, record_hash=record_hash(motion.record), certificate=first
            )
            for seat in world.seats:
                for body in (commit, lock, proof, motion.model_copy(update={"proof": first})):
                    world.spawn(ghost.tell, seat.peer, body)
            await world.until_round(ready.round + 1, within_s=60)
            for seat in world.seats:
                assert seat.node is not None
                assert seat.node.commit_at(ready.round).record.result_root != motion.record.result_root

    run = holds(simulate(3, scenario))
    assert lines(run, "a certificate with a false signature")


def a_roll(ready: Ready) -> ViewChange:
    """For attempt 0 of the round of this READY, with nothing in it."""
    return ViewChange(
        round=ready.round, base=ready.base, attempt=0, absent=[], held=b"\0", plan=None, lock=None, reduced=None
    )


def ready_for_newest(world: World, ghost: Ghost) -> Ready | None:
    """A READY for the round that everybody lives now, if the ghost has heard one."""
    tips = {seat.node.tip for seat in world.seats if seat.node is not None}
    return next((ready for ready, _ in ghost.readys.values() if tips == {ready.base}), None)


def test_rejected_proposals_are_logged_with_the_reason_and_do_not_flood_the_log() -> None:
    ghosts: list[PeerId] = []

    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x6a")
        ghosts.append(ghost.peer)
        seat = world.seats[0]
        await world.until("somebody is ready", lambda: ready_for_newest(world, ghost) is not None, within_s=30)
        ready = ready_for_newest(world, ghost)
        assert ready is not None
        own = ghost.ready_for(ready)
        plan = Plan(
            round=ready.round,
            fragment=ready.fragment,
            base=ready.base,
            members=[member_of(ghost.peer, own, pack(ghost.identity, world.signed.run, own).signature)],
            owners=bytes(world.signed.manifest.chunks),
            state_digest=ready.state_digest,
        )
        rolls = [pack(ghost.identity, world.signed.run, a_roll(ready)).raw]
        for attempt in range(48):
            world.spawn(ghost.tell, seat.peer, Proposal(attempt=attempt, absent=[], plan=plan, rolls=rolls))
        await world.until_round(max(world.rounds()) + 1, within_s=60)

    logged = [line for line in lines(holds(simulate(3, scenario)), "'what': 'proposal'") if ghosts[0] in line]
    assert len(logged) == 1 and "it is not its sender's turn to propose" in logged[0]


def test_a_false_accusation_ejects_nobody() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        ghost = Ghost(world, b"\x68")
        victim = world.seats[0].peer
        ghost.answers["evidence"] = b"x" * 100
        for name in (b"\x01" * 32, b"\x02" * 32):
            await ghost.gossip(Accusation(accused=victim, evidence=name, size=100))
            await trio.sleep(5)
        assert sum(kind == "evidence" for kind, _ in ghost.asked) == len(world.seats) - 1, "asked once by each, then ignored"
        await world.until_round(max(world.rounds()) + 2, within_s=60)

    holds(simulate(3, scenario))
