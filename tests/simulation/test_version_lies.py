"""Statements that are not so, damaged files, and disks without room: nobody uses what was not signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from protocol.run.settings import WeightSettings
from protocol.wire.rollouts import Version
from tests.protocol.versions.files import next_weights, weights
from tests.simulation.seat import Seat
from tests.simulation.versions import (
    CHUNK_BYTES,
    COUNT,
    begin,
    held,
    newest,
    publish,
    run,
    three_versions,
    until_all_have,
)
from tests.simulation.world import World
from tests.tiers import first_fast

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
    first_fast(
        [
            (other_tensors, 10),
            (other_tensors, 1),
            (no_such_file, 10),
            (no_such_file, 1),
            (another_size, 10),
            (another_size, 1),
            (a_patch_without_a_base, 10),
        ]
    ),
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
            assert log.refusals(seat) == [(3, "its patch does not lead to the weights that were signed")]

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
    path.with_name(f"{path.name}.leaves").unlink()


@pytest.mark.parametrize("damage", first_fast([flip, cut_short, lose, lose_index]))
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
            seat.node.keep_weights(WeightSettings(1, len(first) // 2))
        await publish(publisher, first)
        await world.until("it is refused", lambda: all(log.refusals(seat) for seat in others), 30)
        assert all(held(seat) == {} and not log.progress(seat) for seat in others)
        for seat in others:
            assert seat.node is not None
            seat.node.keep_weights(WeightSettings(1, most_bytes=2 * len(first)))
        await until_all_have(world, others, 1)

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
            assert not [*(seat.folder / "weights").glob("part-*")]

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
