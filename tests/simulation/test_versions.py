"""Versions of the weights in a simulated swarm: published, taken, and exact at every honest peer, whoever lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from protocol.events import Event, HandlerFailed, VersionProgress, VersionRefused, VersionStarted
from protocol.network.simulated.weather import Weather
from protocol.run.manifest import DataSection, OuterSection, RoundSection, RunManifest, SignedManifest, sign
from protocol.run.model_section import ModelSection
from protocol.run.settings import WeightSettings
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.versions import Version
from tests.protocol.versions.files import next_weights, put, weights
from tests.simulation.blob_liars import Claimer, Corrupter, turn
from tests.simulation.processes import PROCESS, Killed
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

    def progress(self, seat: Seat, what: str = "whole") -> list[VersionProgress]:
        told = [event for event in self.of(seat, VersionProgress) if isinstance(event, VersionProgress)]
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


@pytest.mark.parametrize(
    "weather",
    [
        Weather(bytes_per_s=RATE, gossip_loss=0.5, gossip_copies=0.3, gossip_late=0.3, request_loss=0.05),
        Weather(bytes_per_s=RATE, latency_s=0.3, jitter_s=0.5),
    ],
)
def test_versions_reach_everybody_in_any_weather(weather: Weather) -> None:
    async def scenario(world: World) -> None:
        publisher, others, _ = await begin(world)
        for data in three_versions():
            await publish(publisher, data)
            await trio.sleep(1)
        await until_all_have(world, others, 3, within_s=300)
        assert all(held(seat)[3] == data for seat in others)

    run(5, scenario, weather=weather)


@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
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
            told = [each for each in log.progress(seat) if each.version == 2]
            assert told and min(each.done for each in told) >= told[0].total // 2 - 1, "half of it was there"

    run(3, scenario)


Lie = Callable[[Version], Version]


def other_tensors(body: Version) -> Version:
    return body.model_copy(update={"tensors": bytes(32)})


def no_such_file(body: Version) -> Version:
    return body.model_copy(update={"weights": body.weights.model_copy(update={"root": b"\7" * 32})})


def another_size(body: Version) -> Version:
    return body.model_copy(update={"weights": body.weights.model_copy(update={"size": body.weights.size - 2})})


def a_patch_without_a_base(body: Version) -> Version:
    assert body.patch is not None
    return body.model_copy(update={"patch": body.patch.model_copy(update={"base_root": b"\7" * 32})})


async def publish_lying(seat: Seat, data: bytes, lie: Lie, anchor_every: int) -> None:
    assert seat.node is not None
    publisher = seat.node.versions._publisher
    truthful = publisher._made

    async def made(source: Path, every: int) -> Version:
        return lie(await truthful(source, every))

    publisher._made = made  # type: ignore[assignment,method-assign]
    try:
        await publish(seat, data, anchor_every)
    finally:
        publisher._made = truthful  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("lie", "anchor_every"),
    [
        (other_tensors, 10),
        (other_tensors, 1),
        (no_such_file, 10),
        (no_such_file, 1),
        (another_size, 10),
        (another_size, 1),
        (a_patch_without_a_base, 10),
    ],
)
def test_a_version_that_is_not_what_was_signed_is_used_by_nobody_and_the_next_one_is(lie: Lie, anchor_every: int) -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        versions = three_versions()
        await publish(publisher, versions[0])
        await until_all_have(world, others, 1)
        await publish_lying(publisher, versions[1], lie, anchor_every)
        await trio.sleep(60)
        assert {newest(seat) for seat in others} == {1}
        assert all(held(seat) == {1: versions[0]} for seat in others)
        await publish(publisher, versions[2], anchor_every=1)
        await until_all_have(world, others, 3)
        assert all(held(seat)[3] == versions[2] for seat in others)

    run(4, scenario)


def test_the_same_file_under_another_root_of_tensors_is_refused() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        first = weights(COUNT)
        await publish(publisher, first)
        await until_all_have(world, others, 1)
        await publish_lying(publisher, first, other_tensors, 10)
        await world.until("it is refused", lambda: all(log.refusals(seat) for seat in others), 30)
        assert {newest(seat) for seat in others} == {1} and all(held(seat)[1] == first for seat in others)

    run(3, scenario)


def test_a_patch_that_leads_elsewhere_is_left_out_and_the_anchor_used() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        first, second, third = three_versions()
        await publish(publisher, first)
        await until_all_have(world, others, 1)
        node = publisher.node
        assert node is not None
        patches: list[Version] = []

        def remember(body: Version) -> Version:
            patches.append(body)
            return body

        await publish_lying(publisher, second, remember, 10)
        await until_all_have(world, others, 2)
        old = patches[0].patch
        assert old is not None

        def leads_elsewhere(body: Version) -> Version:
            assert body.patch is not None
            return body.model_copy(update={"patch": body.patch.model_copy(update={"blob": old.blob})})

        await publish_lying(publisher, third, leads_elsewhere, 1)
        await until_all_have(world, others, 3)
        assert all(held(seat)[3] == third for seat in others)
        for seat in others:
            assert [(3, "its patch does not lead to the weights that were signed")] == log.refusals(seat)

    run(4, scenario)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), CHUNK_BYTES):
        data[at] ^= 1  # of every chunk, for nobody knows which one is asked for
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def lose(path: Path) -> None:
    path.unlink()


def lose_index(path: Path) -> None:
    path.with_suffix(".leaves").unlink()


@pytest.mark.parametrize("damage", [flip, cut_short, lose, lose_index])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_damaged_file_is_never_served_and_is_fetched_again(damage: Callable[[Path], None], restarted: bool) -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        early, late = others[0], others[-1]
        world.faults.kill(late)
        first, second, _ = three_versions()
        await publish(publisher, first)
        await until_all_have(world, others[:-1], 1)
        if restarted:
            world.faults.kill(early)
        folder = early.folder / "weights"
        damage(next(folder.glob("*.blob")))
        if restarted:
            world.start(early)
        world.start(late)
        await until_all_have(world, others, 1)
        assert held(late)[1] == first
        if damage is not lose_index:
            await world.until("whole again, once it was read", lambda: held(early).get(1) == first, 60)
        assert not any("not those that were certified" in line for line in world.trace.lines)
        await publish(publisher, second)
        await until_all_have(world, others, 2)
        assert all(held(seat)[2] == second for seat in others), "a patch of a damaged file leads nowhere"

    run(4, scenario)


def test_a_version_that_finds_no_room_below_the_cap_is_not_taken() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        first = weights(COUNT)
        for seat in others:
            assert seat.node is not None
            seat.node.versions.follower._settings = WeightSettings(1, len(first) // 2)
        await publish(publisher, first)
        await world.until("it is refused", lambda: all(log.refusals(seat) for seat in others), 30)
        assert all(held(seat) == {} and not log.progress(seat) for seat in others)

    run(3, scenario)


def test_a_disk_has_what_the_settings_allow_and_not_more() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        data = weights(COUNT)
        for number in range(1, 9):
            await publish(publisher, data, anchor_every=3)
            await until_all_have(world, others, number)
            data = next_weights(data, 0.01, number)
        await trio.sleep(30)
        for seat in world.seats:
            assert set(held(seat)) == {7, 8}, "two versions, and 7 is the newest anchor"
            assert len([*(seat.folder / "weights").glob("*.blob")]) == 4, "the patches to 7 and 8"
            assert not [*(seat.folder / "weights").glob("*.part")]

    run(3, scenario)


def test_a_number_that_was_signed_twice_is_used_by_nobody() -> None:
    async def scenario(world: World) -> None:
        publisher, others, log = await begin(world)
        first, second, third = three_versions()
        await publish(publisher, first)
        await until_all_have(world, others, 1)
        await publish(publisher, second)
        await until_all_have(world, others, 2)
        node = publisher.node
        assert node is not None
        body = node.versions._catalogue.versions()[2]
        await node._session.publish(body.model_copy(update={"tensors": bytes(32)}))
        await until_all_have(world, others, 1)
        for seat in others:
            assert log.refusals(seat) == [(2, "two different statements were signed for it")]
        world.faults.kill(others[0])
        world.start(others[0])
        await until_all_have(world, others, 1)
        assert others[0].node is not None and others[0].node.versions._catalogue.void == [2], "it is on its disk"
        await publish(publisher, third, anchor_every=1)
        await until_all_have(world, others, 3)
        assert all(held(seat)[3] == third for seat in others)

    run(4, scenario)


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
