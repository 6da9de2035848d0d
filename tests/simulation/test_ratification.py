"""What was certified without some electors becomes final when they are back: by their votes, and without an exchange."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from protocol.agreement.ballot import RATIFYING
from protocol.chain.store import NEVER
from tests.attacks.stage import soon_settled_run
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


def final(seat: Seat) -> int:
    """Rounds that are final at this seat."""
    return seat.node.status().final_rounds if seat.node is not None else 0


def all_is_final(seat: Seat) -> bool:
    return seat.node is not None and final(seat) == seat.node.rounds


async def lose_and_regain(world: World, away: list[Seat], copies: Collection[Seat] = ()) -> int:
    """Half of the electors die for three rounds; how many rounds were final then.  copies: come back as copies."""
    for seat in world.seats[:4]:
        world.start(seat)
    await world.until_round(2, within_s=60)
    for seat in away:
        world.faults.kill(seat)
    here = [seat for seat in world.seats[:4] if seat not in away]
    await world.until(
        "rounds without them", lambda: min(final(s) + 3 <= s.node.rounds for s in here if s.node), within_s=120
    )
    was = max(map(final, here))
    for seat in away:
        seat.is_copy = seat in copies
        world.start(seat)
    return was


@pytest.mark.slow
def test_provisional_records_become_full_when_the_absent_are_back() -> None:
    async def scenario(world: World) -> None:
        was = await lose_and_regain(world, world.seats[:2])
        node = world.seats[3].node
        assert node is not None and final(world.seats[3]) == was < node.rounds
        provisional = node.commit_at(was)
        assert provisional.certificate.absent
        await world.until("all is final", lambda: all(map(all_is_final, world.seats[:4])), within_s=300)
        for seat in world.seats[:4]:
            assert seat.node is not None
            commit = seat.node.commit_at(was)
            assert commit.record == provisional.record and not commit.certificate.absent
            assert commit.certificate.attempt == RATIFYING and len(commit.certificate.votes) >= 3
        world.faults.kill(world.seats[3])
        for seat in world.seats[3:]:
            world.start(seat)
        await world.until(
            "who comes later believes it", lambda: all(final(s) > was + 3 for s in world.seats[3:]), within_s=60
        )

    holds(simulate(5, scenario, signed=soon_settled_run(4)))


@pytest.mark.slow
def test_a_copy_ratifies_nothing_of_before() -> None:
    """It may have voted for something else, and know it no more."""

    async def scenario(world: World) -> None:
        copy, asked = world.seats[0], list[int]()
        was = await lose_and_regain(world, world.seats[:2], copies=[copy])
        here = world.seats[3]
        await world.until("all is final", lambda: all_is_final(here), within_s=400)
        assert here.node is not None and copy.node is not None
        for round in range(was, was + 3):
            certificate = here.node.commit_at(round).certificate
            asked.append(certificate.attempt)
            assert copy.peer not in {vote.peer for vote in certificate.votes}
        assert RATIFYING in asked
        votes = copy.node._replica.store.votes
        await world.until("its own votes are known again", lambda: votes.complete_from() < NEVER, within_s=60)
        assert votes.complete_from() > was + 3

    holds(simulate(4, scenario, signed=soon_settled_run(4)))
