"""What happens in a simulated world: schedules of troubles drawn from the world's seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace

import trio

from tests.simulation.disks import DISK_FAULTS
from tests.simulation.seat import Seat
from tests.simulation.world import World


@dataclass(frozen=True)
class Troubles:
    """Chances, in every step of a few virtual seconds, that each of these happens to somebody."""

    join: float = 0.3
    restart: float = 0.5
    leave: float = 0.05
    kill: float = 0.15
    power: float = 0.0
    disk: float = 0.0
    full: float = 0.0
    freeze: float = 0.0
    clock: float = 0.0
    slow: float = 0.0
    trainer: float = 0.05
    one_way: float = 0.0
    partition: float = 0.0
    blackout: float = 0.0
    ambush: float = 0.0
    orphan: float = 0.0


GENTLE = Troubles()
ROUGH = Troubles(
    kill=0.2,
    power=0.08,
    disk=0.12,
    full=0.05,
    freeze=0.12,
    clock=0.05,
    slow=0.08,
    trainer=0.1,
    one_way=0.06,
    partition=0.05,
    blackout=0.01,
    ambush=0.4,
    orphan=0.06,
)
STEP_S = 4.0
ROUND_BOUND_S = 60.0
"""A round is committed within so much virtual time in which a majority of the electors is there, whatever else happens."""


async def churn(
    world: World, rounds: int, troubles: Troubles, *, founders: int = 5, on_calm: Callable[[], None] = lambda: None
) -> None:
    """Begin with some peers; let others come, go, die and come back until `rounds` are committed; then let it calm.

    on_calm: called when nothing more happens to anybody.
    """
    for seat in world.seats[:founders]:
        world.start(seat)
    made, since = 0, trio.current_time()
    while max(world.rounds(), default=0) < rounds - 3:
        await trio.sleep(STEP_S * (0.5 + world.random.random()))
        await trouble(world, troubles)
        if not world.has_quorum(founders):
            since = trio.current_time()
        if world.judge.commits_checked > made:  # their height says nothing: provisional records may be given up
            made, since = world.judge.commits_checked, trio.current_time()
        newest = max(world.rounds(), default=0)
        assert trio.current_time() - since < ROUND_BOUND_S, f"no round after {newest} in {ROUND_BOUND_S:.0f} s"
    on_calm()
    await calm(world)
    await world.until_round(rounds, within_s=240)
    await world.until_equal(within_s=60)


async def calm(world: World) -> None:
    """Everything is mended, and everybody who ever lived comes back, except proven liars."""
    world.faults.heal()
    world.ambush = None
    world.wire.weather = replace(world.wire.weather, request_loss=0.0)
    for seat in world.seats:
        world.faults.thaw(seat)
        world.faults.make_room(seat)
        seat.disk_fault = None
        if seat.peer in world.judge.ejections:
            continue
        if seat.process is not None:
            seat.process.dies_at, seat.process.slow_s = None, 0.0
        elif seat.lives:
            world.start(seat)


async def trouble(world: World, troubles: Troubles) -> None:
    """Each kind at most once, to somebody; a majority of those who were up stays up."""
    for field in fields(troubles):
        if world.random.random() < getattr(troubles, field.name):
            await HAPPENS[field.name](world)


def _victim(world: World, least: int) -> Seat | None:
    """Somebody, when more than `least` are up."""
    up = [seat for seat in world.up() if seat.node is not None]
    return world.random.choice(up) if len(up) > least else None


async def _join(world: World) -> None:
    unborn = [seat for seat in world.seats if not seat.lives]
    if unborn:
        world.start(unborn[0])


async def _restart(world: World) -> None:
    down = [seat for seat in world.seats if seat.lives and not seat.up and seat.peer not in world.judge.ejections]
    if down:
        world.start(world.random.choice(down))


async def _leave(world: World) -> None:
    seat = _victim(world, 4)
    if seat is not None:
        world.leave(seat)
        await world.until("the goodbye", lambda: not seat.up, within_s=5)


async def _kill(world: World) -> None:
    seat = _victim(world, 3)
    if seat is not None and world.random.random() < 0.3:
        world.faults.kill(seat)
    elif seat is not None:
        world.faults.doom(seat, world.random.randint(1, 300))


async def _power(world: World) -> None:
    seat = _victim(world, 3)
    if seat is not None:
        world.faults.cut_power(seat)


async def _disk(world: World) -> None:
    seat = _victim(world, 3)
    if seat is not None:
        world.faults.break_disk(seat, world.random.choice(DISK_FAULTS), world.random.randint(1, 8))


async def _full(world: World) -> None:
    seat = _victim(world, 3)
    if seat is not None:
        world.faults.fill_disk(seat)
        await trio.sleep(world.random.choice([2.0, 10.0]))
        assert seat.up or not seat.farewell or " is full: make room " in seat.farewell, seat.farewell
        world.faults.make_room(seat)


async def _freeze(world: World) -> None:
    seat = _victim(world, 3)
    if seat is not None:
        world.faults.freeze(seat)
        await trio.sleep(world.random.choice([2.0, 8.0, 15.0]))
        world.faults.thaw(seat)


async def _clock(world: World) -> None:
    seat = _victim(world, 2)
    if seat is not None:
        world.faults.jump_clock(seat, world.random.choice([1.0, 4.0, 30.0, 3600.0]))


async def _slow(world: World) -> None:
    seat = _victim(world, 2)
    if seat is not None:
        world.faults.slow_down(seat, world.random.choice([0.01, 0.1, 0.5]))
        await trio.sleep(world.random.choice([2.0, 10.0]))
        if seat.process is not None:
            seat.process.slow_s = 0.0


async def _trainer(world: World) -> None:
    seat = _victim(world, 0)
    if seat is not None:
        world.faults.kill_trainer(seat)


async def _one_way(world: World) -> None:
    seat, other = _victim(world, 3), _victim(world, 3)
    if seat is not None and other is not None and seat is not other:
        world.faults.cut(seat, other)
        await trio.sleep(world.random.choice([3.0, 15.0]))
        world.faults.heal()


async def _partition(world: World) -> None:
    up = world.up()
    if len(up) > 3:
        few = world.random.sample(up, len(up) // 3)
        world.faults.partition([seat for seat in up if seat not in few], few)
        await trio.sleep(world.random.choice([5.0, 20.0, 45.0]))
        world.faults.heal()


async def _blackout(world: World) -> None:
    """The power is cut everywhere at once."""
    for seat in world.up():
        world.faults.cut_power(seat)
    await trio.sleep(1.0)
    for seat in world.seats:
        if seat.lives and not seat.up and seat.peer not in world.judge.ejections:
            world.start(seat)


async def _ambush(world: World) -> None:
    """Wait for somebody to enter a phase that passes quickly, and strike then."""
    if len(world.up()) <= 3:
        return
    random, faults = world.random, world.faults
    strikes: list[Callable[[Seat], None]] = [
        faults.kill,
        faults.cut_power,
        faults.freeze,
        lambda seat: faults.doom(seat, random.randint(1, 20)),
        faults.fill_disk,
        lambda seat: faults.break_disk(seat, random.choice(DISK_FAULTS), random.randint(1, 3)),
    ]
    world.ambush = random.choice(["starting", "syncing", "exchanging", "voting", "applying"]), random.choice(strikes)
    with trio.move_on_after(6.0):
        while world.ambush is not None:
            await trio.sleep(0.25)
        await trio.sleep(random.choice([1.0, 5.0]))
    world.ambush = None
    for seat in world.seats:
        world.faults.thaw(seat)
        world.faults.make_room(seat)


async def _orphan(world: World) -> None:
    """Who commits a round first dies with it, and everybody else at the same moment; the others come back sooner."""
    if len(world.up()) < 3:
        return
    struck: list[Seat] = []

    def strike(seat: Seat) -> None:
        struck.append(seat)
        for other in world.up():
            if other is not seat:
                world.faults.cut_power(other)
        world.faults.cut_power(seat)

    world.ambush = "RoundCommitted", strike
    with trio.move_on_after(10.0):
        while world.ambush is not None:
            await trio.sleep(0.25)
    world.ambush = None
    for seat in world.seats:
        gone = seat.peer in world.judge.ejections
        if struck and seat.lives and not seat.up and seat not in struck and not gone:
            world.start(seat)
    if struck:
        await trio.sleep(world.random.choice([5.0, 20.0, 30.0]))


HAPPENS: dict[str, Callable[[World], Awaitable[None]]] = {
    "join": _join,
    "restart": _restart,
    "leave": _leave,
    "kill": _kill,
    "power": _power,
    "disk": _disk,
    "full": _full,
    "freeze": _freeze,
    "clock": _clock,
    "slow": _slow,
    "trainer": _trainer,
    "one_way": _one_way,
    "partition": _partition,
    "blackout": _blackout,
    "ambush": _ambush,
    "orphan": _orphan,
}
