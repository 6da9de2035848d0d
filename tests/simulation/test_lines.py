"""Measuring the lines of a peer whose swarm trains meanwhile."""

from __future__ import annotations

import pytest
import trio

from protocol.blobs.transfer import SAMPLE_BYTES, SAMPLE_S
from protocol.node.commands import MOST_PEERS, ROUNDS_AGO, NotNow, ProbedLines
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World


@pytest.mark.slow
def test_lines_are_measured_beside_the_rounds_and_a_few_peers_are_asked() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 3)
        node, peers = world.seats[0].node, {seat.peer for seat in world.seats[1:]}
        assert node is not None
        lines = await node.line_probe.measure()
        assert len(lines.peers) == MOST_PEERS and {sampled.peer for _, sampled in lines.peers} <= peers
        for _, sampled in lines.peers:
            assert not sampled.problem and 0 < sampled.down_bytes <= SAMPLE_BYTES and sampled.seconds <= SAMPLE_S
        await world.until_round(5, within_s=60)

    holds(simulate(5, scenario))


def test_lines_are_measured_one_at_a_time_and_not_before_there_is_something_to_fetch() -> None:
    async def scenario(world: World) -> None:
        world.start_all()
        await world.until("it runs", lambda: world.seats[0].node is not None, within_s=5)
        node = world.seats[0].node
        assert node is not None
        with pytest.raises(NotNow, match=f"wait until it has {ROUNDS_AGO}"):
            await node.line_probe.measure()
        await world.until_round(3, within_s=60)
        found: list[ProbedLines | NotNow] = []

        async def measure() -> None:
            try:
                found.append(await node.line_probe.measure())
            except NotNow as error:
                found.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            nursery.start_soon(measure)
        refused, measured = found
        assert isinstance(measured, ProbedLines) and "already" in str(refused)

    holds(simulate(2, scenario))
