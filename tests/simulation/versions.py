"""A simulated run whose organiser publishes versions of the weights, and what its peers have of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from protocol.events.events import Event, HandlerFailed, TransferEnded, TransferProgress, VersionRefused
from protocol.formats.model import ModelConfig
from protocol.run.manifest import OuterSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.transport.simulated.wire import Weather
from protocol.wire.identity import Identity
from tests.protocol.versions.files import next_weights, put, weights
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

PUBLISHER = Identity.from_seed(b"\x2a" * 32)
CHUNK_BYTES = 4096
RATE = 100e3


def a_run() -> SignedManifest:
    """With a model of some 150 000 parameters, and rounds that take long."""
    manifest = RunManifest(
        name="versions",
        organiser=PUBLISHER.peer_id,
        founders="anyone",
        model=ModelConfig(vocab=256, dim=64, layers=4, heads=2, kv_heads=1, ffn=128),
        data=DataSection(sequence_length=8, sequences_per_step=1),
        outer=OuterSection(lr=0.7, momentum=0.9),
        rounds=RoundSection(inner_steps=100, max_members=64, grace_s=4, eviction_s=20, stall_s=5),
        checkpoint_chunk_bytes=CHUNK_BYTES,
        total_rounds=10**6,
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


def patches(seat: Seat) -> list[bytes]:
    """The patches that a peer has."""
    assert seat.node is not None
    named = [body.patch for body in seat.node.versions._catalogue.versions().values() if body.patch is not None]
    return [(seat.folder / "weights" / f"{patch.blob.root.hex()}.blob").read_bytes() for patch in named]


def newest(seat: Seat) -> int:
    return seat.node.versions.follower.complete if seat.node is not None else 0


def three_versions() -> list[bytes]:
    first = weights(COUNT)
    second = next_weights(first, 0.01, 2)
    return [first, second, next_weights(second, 0.01, 3)]


class Log:
    """What the peers of a world said about versions, by the number of the seat."""

    def __init__(self, world: World) -> None:
        self.events: list[tuple[int, Event]] = []
        world.listeners.append(lambda seat, event: self.events.append((seat.number, event)))

    def of(self, seat: Seat, kind: type[Event]) -> list[Event]:
        return [event for number, event in self.events if number == seat.number and isinstance(event, kind)]

    def progress(self, seat: Seat, what: str = "weights") -> list[TransferProgress]:
        told = [event for event in self.of(seat, TransferProgress) if isinstance(event, TransferProgress)]
        return [event for event in told if event.what == what]

    def ended(self, seat: Seat, what: str = "weights") -> list[TransferEnded]:
        told = [event for event in self.of(seat, TransferEnded) if isinstance(event, TransferEnded)]
        return [event for event in told if event.what == what]

    def refusals(self, seat: Seat) -> list[tuple[int, str]]:
        told = self.of(seat, VersionRefused)
        return [(event.version, event.reason) for event in told if isinstance(event, VersionRefused)]


async def begin(world: World) -> tuple[Seat, list[Seat], Log]:
    publisher, others = seats_of(world)
    log = Log(world)
    for seat in world.seats:
        world.start(seat)
    await trio.sleep(2)
    return publisher, others, log


async def until_all_have(world: World, seats: list[Seat], number: int, within_s: float = 120) -> None:
    await world.until(f"version {number}", lambda: all(newest(seat) == number for seat in seats), within_s)


def run(peers: int, scenario: Callable[[World], object], seed: int = 1, weather: Weather | None = None) -> None:
    finished = simulate(peers, scenario, seed, weather or Weather(bytes_per_s=RATE), SIGNED)  # type: ignore[arg-type]
    holds(finished)
    assert not any(HandlerFailed.__name__ in line for line in finished.trace)
