"""Versions of the weights in a simulated swarm: published, taken, and exact at every honest peer, whoever lies."""

from __future__ import annotations

from pathlib import Path

import trio

from protocol.events import VersionProgress
from protocol.network.simulated.weather import Weather
from protocol.run.manifest import DataSection, OuterSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.run.model_section import ModelSection
from protocol.wire.identity import Identity
from tests.protocol.versions.files import next_weights, put, weights
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

PUBLISHER = Identity.from_seed(b"\x2a" * 32)
CHUNK_BYTES = 4096
RATE = 200e3


def a_run() -> SignedManifest:
    """With a model of some 150 000 parameters, and rounds that take long."""
    manifest = RunManifest(
        name="versions",
        organiser=PUBLISHER.peer_id,
        founders="anyone",
        model=ModelSection(vocab=256, dim=64, layers=4, heads=2, kv_heads=1, ffn=128),
        data=DataSection(sequence_length=8, sequences_per_step=1),
        outer=OuterSection(lr=0.7, momentum=0.9),
        rounds=RoundSection(inner_steps=100, max_members=64, grace_s=4, eviction_s=20, stall_s=5),
        checkpoint_chunk_bytes=CHUNK_BYTES,
    )
    return sign(PUBLISHER, manifest)


SIGNED = a_run()
COUNT = SIGNED.manifest.parameters


def seats_of(world: World) -> tuple[Seat, list[Seat]]:
    """The publisher, and the others."""
    world.seats[0].identity = PUBLISHER
    return world.seats[0], world.seats[1:]


async def publish(seat: Seat, data: bytes, anchor_every: int = 10) -> None:
    assert seat.node is not None
    await seat.node.versions.publish(put(seat.node.versions.folder, data), anchor_every)


def held(seat: Seat) -> dict[int, bytes]:
    """The versions that a peer has whole."""
    assert seat.node is not None
    status = seat.node.versions.status()
    folder = Path(status["folder"])
    return {
        each["version"]: (folder / f"{each['weights']}.blob").read_bytes() for each in status["versions"] if each["here"]
    }


def newest(seat: Seat) -> int:
    return seat.node.versions.follower.complete if seat.node is not None else 0


def three_versions() -> list[bytes]:
    first = weights(COUNT)
    second = next_weights(first, 0.01, 2)
    return [first, second, next_weights(second, 0.01, 3)]


def test_a_version_and_its_patches_reach_everybody() -> None:
    async def scenario(world: World) -> None:
        publisher, others = seats_of(world)
        progress: list[VersionProgress] = []
        world.listeners.append(lambda seat, event: progress.append(event) if isinstance(event, VersionProgress) else None)
        for seat in world.seats:
            world.start(seat)
        await trio.sleep(2)
        for number, data in enumerate(three_versions(), 1):
            await publish(publisher, data)
            await world.until(f"version {number}", lambda n=number: all(newest(seat) == n for seat in others), 60)  # type: ignore[misc]
            assert all(held(seat)[number] == data for seat in world.seats)
        assert progress and progress[-1].done == progress[-1].total

    holds(simulate(4, scenario, weather=Weather(bytes_per_s=RATE), signed=SIGNED))
