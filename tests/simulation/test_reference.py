"""The weights that a KL term compares with, in a simulated swarm: the same for all, whoever comes late, dies or lies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from protocol.blobs.store import Held, leaves_of
from protocol.events.status import WhyIdle
from protocol.rollouts.reference import LONG_S
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.presence import Role
from tests.simulation.rollout_trainer import RolloutTrainer
from tests.simulation.rollouts import RolloutJudge, Seats, played, rl_run
from tests.simulation.runs import begin
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World
from tests.tiers import first_fast

LOSSY = Weather(gossip_loss=0.25, gossip_copies=0.2, gossip_late=0.1, request_loss=0.004)
WARM = 2
RUN = rl_run(kl_weight=0.1, warm_rounds=WARM)
ROLES = {Role.TRAINER: 3, Role.ROLLOUT: 2, Role.VALIDATOR: 1}


def named(seat: Seat) -> Hash:
    """What the chain of a peer says that the reference is."""
    assert seat.node is not None
    root = seat.node.commit_at(WARM).record.weights
    assert root is not None
    return Hash(root)


def compared(seat: Seat) -> dict[int, bytes]:
    """What the trainer process of a peer was given, by round."""
    assert isinstance(seat.trainer, RolloutTrainer)
    return seat.trainer.compared


def check(seat: Seat) -> None:
    """It learned, and from nothing before the first round with rollouts, and compared with what the chain names."""
    given = compared(seat)
    assert given and min(given) >= WARM
    assert {tree_root(leaves_of(data, RUN.manifest.checkpoint_chunk_bytes)) for data in given.values()} == {named(seat)}


def file_of(seat: Seat) -> Path:
    assert seat.node is not None
    return seat.node._replica.store.reference.path(named(seat))


def has_them(seat: Seat) -> bool:
    rollouts = seat.node._rollouts if seat.node is not None else None
    return rollouts is not None and rollouts.selection.reference is not None and bool(rollouts.selection.reference.path)


async def until_learning(world: World, seat: Seat) -> None:
    await world.until(
        f"{seat.number} learns", lambda: isinstance(seat.trainer, RolloutTrainer) and bool(seat.trainer.compared), 240
    )


@pytest.mark.slow
def test_all_compare_with_the_weights_that_rollouts_began_with_and_who_comes_late_fetches_them() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        first, second, late = seats[Role.TRAINER]
        world.start_all(but=[late])
        await world.until_round(WARM + 3, within_s=240)
        world.start(late)
        await until_learning(world, late)
        for seat in (first, second, late):
            check(seat)
        assert all(map(has_them, seats[Role.VALIDATOR])), "validators keep them for others"
        for seat in seats[Role.ROLLOUT]:
            assert seat.node is not None and not seat.node._replica.store.reference.folder.exists()

        world.faults.kill(late)
        world.start(late)
        await until_learning(world, late)
        check(late)

    played(scenario, ROLES, signed=RUN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_trainers_that_die_while_rollouts_begin_compare_with_the_same_weights(seed: int) -> None:
    """By kill or power cut, at any time from the last warm round on; gossip is lost, and requests are."""

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        trainers = seats[Role.TRAINER]
        await begin(world, WARM - 1, within_s=240)
        for _ in range(6):
            await trio.sleep(3 * world.random.random())
            victim = world.random.choice([seat for seat in trainers if seat.up])
            world.random.choice([world.faults.kill, world.faults.cut_power])(victim)
            await trio.sleep(world.random.random())
            world.start(victim)
        await world.until_round(max(WARM, *world.rounds()) + 3, within_s=480)
        for seat in trainers:
            await until_learning(world, seat)
            check(seat)

    played(scenario, ROLES, seed=seed, weather=LOSSY, signed=RUN)


@pytest.mark.slow
def test_a_seed_keeps_them_for_trainers_that_come_when_all_others_are_gone() -> None:
    roles = {**ROLES, Role.SEED: 1}

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        *old, late = seats[Role.TRAINER]
        (seed,) = seats[Role.SEED]
        world.start_all(but=(late, seed))
        await world.until_round(WARM + 2, within_s=240)
        world.start(seed)
        await world.until("the seed has them", lambda: has_them(seed), within_s=120)
        for seat in old:
            world.leave(seat)
        world.start(late)
        await until_learning(world, late)
        check(late)

    played(scenario, roles, signed=RUN)


@pytest.mark.slow
def test_what_was_altered_on_the_disk_is_found_at_the_start_and_fetched_again() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        victim = seats[Role.TRAINER][0]
        await begin(world, WARM + 2, within_s=240)
        path = file_of(victim)
        world.faults.kill(victim)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        world.start(victim)
        await until_learning(world, victim)
        check(victim)

    played(scenario, ROLES, signed=RUN)


@pytest.mark.slow
def test_where_nobody_has_them_a_trainer_waits_and_says_what_to_do() -> None:
    """Two of three trainers and the validator lost them; the third trainer, which has them, is away."""

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        losers, owner = seats[Role.TRAINER][:2], seats[Role.TRAINER][2]
        await begin(world, WARM + 2, within_s=240)
        world.faults.kill(owner)
        for seat in (*losers, *seats[Role.VALIDATOR]):
            path = file_of(seat)
            world.faults.kill(seat)
            path.unlink(missing_ok=True)
        for seat in (*losers, *seats[Role.VALIDATOR]):
            world.start(seat)

        def tells(seat: Seat, word: str) -> bool:
            status = seat.node.status() if seat.node is not None else None
            return status is not None and status.why_idle == WhyIdle.FETCHING_REFERENCE.value and word in status.why_detail

        await world.until("they wait", lambda: all(tells(seat, "fetched") for seat in losers), within_s=120)
        await world.until("they say why", lambda: all(tells(seat, "restart") for seat in losers), within_s=2 * LONG_S)
        world.start(owner)
        for seat in losers:
            await until_learning(world, seat)
            check(seat)

    played(scenario, ROLES, signed=RUN)


@pytest.mark.parametrize("seed", first_fast([1, 2], 0))
def test_other_bytes_than_the_chain_names_are_refused(seed: int) -> None:
    """One trainer serves zeros under the right name, and is asked first: the late one takes all from the other."""

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        liar, honest, late = seats[Role.TRAINER]
        world.start_all(but=[late])
        await world.until_round(WARM + 2, within_s=240)
        assert liar.node is not None and honest.node is not None
        find, find_honestly, root, sent = liar.node._swarm._find, honest.node._swarm._find, named(liar), list[int]()

        def lying(name: Hash) -> Held | None:
            held = find(name)
            return held if name != root or held is None else replace(held, read=partial(zeros, held, sent))

        def after_the_liar(name: Hash) -> Held | None:
            return find_honestly(name) if name != root or sent else None

        liar.node._swarm._find = lying
        honest.node._swarm._find = after_the_liar
        for seat in seats[Role.VALIDATOR]:
            assert seat.node is not None
            seat.node._swarm._find = lambda name, find=seat.node._swarm._find: None if name == root else find(name)  # type: ignore[misc]
        world.start(late)
        await until_learning(world, late)
        check(late)
        assert sent, "it was asked"

    played(scenario, ROLES, seed=seed, signed=RUN)


def zeros(held: Held, sent: list[int], chunk: int) -> bytes | None:
    """Return zeros in place of a chunk, and note that it was read."""
    data = held.read(chunk)
    sent.append(chunk)
    return bytes(len(data)) if data is not None else None
