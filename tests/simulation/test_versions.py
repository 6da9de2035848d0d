"""Versions of the weights in a simulated swarm: published, taken, and exact at every honest peer, whoever lies."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
import trio

from protocol.events.events import VersionStarted
from protocol.transport.simulated.wire import Weather
from protocol.wire.hashes import Hash
from tests.protocol.versions.files import next_weights, weights
from tests.simulation.blob_liars import Claimer, Corrupter, turn
from tests.simulation.processes import PROCESS, Killed
from tests.simulation.seat import Seat
from tests.simulation.versions import (
    CHUNK_BYTES,
    COUNT,
    RATE,
    begin,
    held,
    patches,
    publish,
    run,
    three_versions,
    until_all_have,
)
from tests.simulation.world import World


def test_versions_reach_everybody_to_the_bit_while_peers_lie_and_die() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        corrupter, staller, victim, honest = others[0], others[1], others[2], others[2:]
        liars = [turn(world, corrupter, Corrupter), turn(world, staller, Claimer)]
        versions = three_versions()

        await publish(publisher, versions[0])
        await world.until(
            "half of it at the victim", lambda: any(2 * told.done > told.total for told in log.progress(victim)), 60
        )
        before = log.progress(victim)[-1]
        assert before.done < before.total
        world.faults.kill(victim)
        world.start(victim)
        await until_all_have(world, honest, 1)
        after = [told.done for told in log.progress(victim) if told.done >= before.done][1:]
        assert after and min(told.done for told in log.progress(victim)[log.progress(victim).index(before) :]) >= before.done

        await publish(publisher, versions[1])
        await until_all_have(world, honest, 2)
        await publish(publisher, versions[2])
        await until_all_have(world, honest, 3)
        assert all(held(seat)[3] == versions[2] for seat in [publisher, *honest])
        assert all(liar.asked for liar in liars), "they were asked, and it did no harm"
        assert publisher.node is not None
        sent = publisher.node._swarm.up_bytes / sum(map(len, (versions[0], *patches(publisher))))
        assert sent < 3, f"the publisher sent {sent:.1f} copies to eight peers, of which two lied"

    run(9, scenario)


LOSSY = Weather(bytes_per_s=RATE, gossip_loss=0.5, gossip_copies=0.3, gossip_late=0.3, request_loss=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weather", "seed"),
    [*((LOSSY, seed) for seed in (1, 2, 3)), (Weather(bytes_per_s=RATE, latency_s=0.3, jitter_s=0.5), 1)],
)
def test_versions_reach_everybody_in_any_weather(weather: Weather, seed: int) -> None:
    async def scenario(world: World) -> None:
        publisher, others, _ = await begin(world)
        for data in three_versions():
            await publish(publisher, data)
            await trio.sleep(1)
        await until_all_have(world, others, 3, within_s=300)
        assert all(held(seat)[3] == data for seat in others)

    run(5, scenario, seed, weather)


@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.slow
def test_a_death_at_any_disk_operation_costs_nothing_but_time(victim: int, power_fails: bool) -> None:
    """Of the publisher, and of a peer that takes what it publishes; with the power, what was not synced is lost, too."""
    for operation in itertools.count(1):
        died = False

        async def scenario(world: World, operation: int = operation) -> None:
            nonlocal died
            publisher, others, _ = await begin(world)
            seat, data = world.seats[victim], three_versions()
            await publish(publisher, data[0])
            await until_all_have(world, others, 1)
            world.spawn(_publish_if_alive, publisher, data[1])
            seat.disk_fault, seat.disk_operations = "dies at a disk operation", operation
            await trio.sleep(10)
            seat.disk_fault = None
            if not seat.up:
                died = True
                if power_fails:
                    seat.platter.cut_power()
                world.start(seat)
                await trio.sleep(2)
            await publish(publisher, data[2], anchor_every=1)
            assert publisher.node is not None
            last = publisher.node.versions._catalogue.highest
            await until_all_have(world, others, last)
            assert all(held(each)[last] == data[2] for each in world.seats)
            assert all(each.node is not None and not each.node.versions._catalogue.void for each in world.seats)

        run(2, scenario, seed=operation)
        if not died:
            break
    assert operation > 15, "so many operations there are"


async def _publish_if_alive(seat: Seat, data: bytes) -> None:
    assert seat.node is not None
    PROCESS.set(seat.process)
    with suppress(Killed):
        await publish(seat, data)


def test_a_peer_that_joins_late_or_was_away_takes_the_way_with_the_fewest_bytes() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        away, late = others[-1], others[-2]
        world.faults.kill(late)
        versions = three_versions()
        await publish(publisher, versions[0])
        await until_all_have(world, [other for other in others if other is not late], 1)
        world.faults.kill(away)
        for number in (1, 2):
            await publish(publisher, versions[number])
            await until_all_have(world, others[:-2], number + 1)
        world.faults.kill(publisher)
        for seat in (away, late):
            world.start(seat)
            await until_all_have(world, [seat], 3)
        assert all(held(seat)[3] == versions[2] for seat in others)
        started = [event for event in log.of(away, VersionStarted) if isinstance(event, VersionStarted)]
        assert started[-1].files == 2 and started[-1].size_bytes < len(versions[0]) / 10, "two patches"
        started = [event for event in log.of(late, VersionStarted) if isinstance(event, VersionStarted)]
        assert started[-1].version == 3 and started[-1].files == 3, "the anchor, and two patches; the publisher is gone"

    run(5, scenario)


def test_chunks_that_an_anchor_shares_with_an_older_version_are_not_fetched_again() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        first = weights(COUNT)
        await publish(publisher, first)
        await until_all_have(world, others, 1)
        second = bytearray(first)
        second[len(first) // 2 :] = weights(COUNT, 9)[len(first) // 2 :]  # so much that the patch is worth nothing
        await publish(publisher, bytes(second), anchor_every=1)
        body = publisher.node.versions._catalogue.newest.body if publisher.node else None  # type: ignore[union-attr]
        assert body is not None and body.anchor and body.patch is not None
        useless = dict.fromkeys([Hash(body.patch.blob.root)], 2)
        for seat in others:
            assert seat.node is not None
            seat.node.versions.follower._useless |= useless
        await until_all_have(world, others, 2)
        assert all(held(seat)[2] == bytes(second) for seat in others)
        for seat in others:
            (ended,) = [each for each in log.ended(seat) if each.number == 2]
            assert ended.fetched_bytes <= len(second) // 2 + CHUNK_BYTES, "half of it was there"

    run(3, scenario)


def test_a_version_in_use_stays_on_the_disk() -> None:
    async def scenario(world: World) -> None:
        publisher, others, _ = await begin(world)
        first, second, third = three_versions()
        await publish(publisher, first)
        await until_all_have(world, others, 1)
        reader = others[0].node
        assert reader is not None
        with reader.versions.using(9) as nothing, reader.versions.using(1) as path:
            assert nothing is None and path is not None
            for number, data in ((2, second), (3, third), (4, first)):
                await publish(publisher, next_weights(data, 0.01, number), anchor_every=2)
                await until_all_have(world, others, number)
            await trio.sleep(30)
            assert path.read_bytes() == first
        await trio.sleep(30)
        assert not path.exists() and set(held(others[0])) == {3, 4}

    run(2, scenario)


def test_nothing_is_said_where_no_version_is_published() -> None:
    async def scenario(world: World) -> None:
        _, _, log = await begin(world)
        await world.until_round(1, 120)
        assert not world.wire.questions["version"] + world.wire.questions["versions"]
        assert all(seat.node is not None and not seat.node.versions.folder.exists() for seat in world.seats)

    run(3, scenario)
