"""A part of a day of a small swarm in virtual time, two of whose peers are on volunteers' computers at home.

The laptop sleeps (its clock runs on meanwhile, or stands still), changes its address, its router restarts, its clock is set,
its trainer crashes.  The desktop meets all of that, and its disk fills up, and it is killed and starts again from its disk.
What each meets, by turns, is drawn from the seed; two more peers meet nothing.  Nobody helps: a peer whose disk
was full is started again when there is room, as `peer.daemon.daemon` does, and a killed one as by a service manager.

After each disturbance, the peer has to be a member of a record again, and all peers have to stand on one tip with one
digest; then everything that each of them holds is counted (`census.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.events.events import Event, RoundCommitted
from protocol.run.manifest import RoundSection, SignedManifest
from tests.simulation.census import Census, census
from tests.simulation.runs import begin, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed, simulated_run

Kind = tuple[str, Callable[[Seat], Awaitable[None]]]
"""What it is called, and what happens."""

PEERS = 4
LAPTOP, DESKTOP = 2, 3
STEP_S = (7.0, 8.0)
"""Of an inner step: rounds take two minutes and a half."""
BACK_WITHIN_S = 900.0
"""After the end of a disturbance, for its peer to be a member of a record."""
QUIET_S = 60.0
"""All peers have computed for so long when they are counted, so that they are counted in the same phase."""


def day_run() -> SignedManifest:
    """Small, and with the waiting times that a run has by default."""
    rounds = RoundSection(inner_steps=20, min_members=1)
    return changed(simulated_run(), rounds=rounds)


@dataclass(frozen=True)
class Pace:
    """Of what happens (s).  gap_s: from a quiet point to the next disturbance, which is the other peer's turn.

    sleeps_s, full_s: how long a sleep takes, and how long a disk is full; one of these each time.
    """

    gap_s: tuple[float, float]
    sleeps_s: Sequence[float]
    full_s: Sequence[float]


@dataclass
class Day:
    """What a part of a day left.  counts: of each seat, after each disturbance.  failure: why it ended early."""

    disturbed: list[int] = field(default_factory=list)
    counts: list[list[Census]] = field(default_factory=list)
    lives: list[int] = field(default_factory=list)
    failure: str | None = None


class Troubles:
    """What befalls a peer at home; each ends by itself.  Times are drawn from the world's generator."""

    def __init__(self, world: World, pace: Pace) -> None:
        self._world, self._random, self._faults, self._pace = world, world.random, world.faults, pace

    async def sleep(self, seat: Seat) -> None:
        """As by SIGSTOP; its connections are broken when it wakes."""
        await self._sleep(seat, stands_still=False)

    async def suspend(self, seat: Seat) -> None:
        """The same, and its clock has not run."""
        await self._sleep(seat, stands_still=True)

    async def _sleep(self, seat: Seat, *, stands_still: bool) -> None:
        slept_s = self._random.choice(self._pace.sleeps_s)
        self._faults.freeze(seat)
        await trio.sleep(30.0)
        self._cut_off(seat)
        await trio.sleep(slept_s - 30.0)
        self._faults.heal()
        self._faults.thaw(seat, slept_s if stands_still else 0.0)

    async def change_address(self, seat: Seat) -> None:
        """All its connections are cut, and are there again in a moment."""
        self._cut_off(seat)
        await trio.sleep(self._random.uniform(2.0, 10.0))
        self._faults.heal()

    async def restart_router(self, seat: Seat) -> None:
        """Nobody reaches it for a minute or two."""
        self._cut_off(seat)
        await trio.sleep(self._random.uniform(45.0, 120.0))
        self._faults.heal()

    async def set_clock(self, seat: Seat) -> None:
        """An hour ahead."""
        self._faults.jump_clock(seat, 3600.0)

    async def crash_trainer(self, seat: Seat) -> None:
        """Up to three times in a row."""
        for _ in range(self._random.randint(1, 3)):
            self._faults.kill_trainer(seat)
            await trio.sleep(20.0)

    async def fill_disk(self, seat: Seat) -> None:
        """It stops where it cannot write, and is started when there is room."""
        self._faults.fill_disk(seat)
        await trio.sleep(self._random.choice(self._pace.full_s))
        assert seat.up or " is full: make room " in seat.farewell, seat.farewell
        self._faults.make_room(seat)
        if not seat.up:
            self._world.start(seat)

    async def kill(self, seat: Seat) -> None:
        """With SIGKILL; it is started again in a while."""
        self._faults.kill(seat)
        await trio.sleep(self._random.choice([2.0, 90.0]))
        self._world.start(seat)

    def _cut_off(self, seat: Seat) -> None:
        self._faults.partition([other for other in self._world.seats if other is not seat], [seat])

    def of(self, seat: int) -> list[Kind]:
        """Those that befall this seat."""
        laptops: list[Kind] = [
            ("sleep", self.sleep),
            ("sleep, clock still", self.suspend),
            ("new address", self.change_address),
            ("router restarts", self.restart_router),
            ("clock an hour ahead", self.set_clock),
            ("trainer crashes", self.crash_trainer),
        ]
        return laptops + ([("disk full", self.fill_disk), ("kill -9", self.kill)] if seat == DESKTOP else [])


def _watched(world: World) -> dict[int, float]:
    """When each seat committed last a record of which it is a member."""
    member_at = dict.fromkeys(range(len(world.seats)), 0.0)

    def on_event(seat: Seat, event: Event) -> None:
        if isinstance(event, RoundCommitted) and seat.peer in event.members:
            member_at[seat.number] = world.now()

    world.listeners.append(on_event)
    return member_at


async def _count(world: World) -> list[Census]:
    """All are equal, and have computed for a while."""
    await world.until_equal(within_s=BACK_WITHIN_S)
    since = world.now()

    def calm() -> bool:
        nonlocal since
        if any(seat.phase != "computing" for seat in world.seats):
            since = world.now()
        return world.now() - since >= QUIET_S

    await world.until("a calm minute", calm, BACK_WITHIN_S)
    return [census(seat) for seat in world.seats]


def live(hours: float, seed: int, pace: Pace) -> Day:
    """A part of a day, of so many hours."""
    day = Day()

    async def scenario(world: World) -> None:
        member_at, troubles = _watched(world), Troubles(world, pace)
        bags: dict[int, list[Kind]] = {LAPTOP: [], DESKTOP: []}
        for seat in world.seats:
            seat.step_s = world.random.uniform(*STEP_S)
        await begin(world, 3, within_s=3600.0)
        turn = LAPTOP
        while world.now() < hours * 3600:
            await trio.sleep(world.random.uniform(*pace.gap_s))
            if not bags[turn]:
                bags[turn] = world.random.sample(troubles.of(turn), len(troubles.of(turn)))
            what, happen = bags[turn].pop()
            await happen(world.seats[turn])
            ended = world.now()
            await world.until(f"{what}: back", partial(_is_after, member_at, turn, ended), BACK_WITHIN_S)
            day.disturbed.append(turn)
            day.counts.append(await _count(world))
            turn = DESKTOP if turn == LAPTOP else LAPTOP
        day.lives = [seat.lives for seat in world.seats]

    day.failure = simulate(PEERS, scenario, seed, signed=day_run()).failure
    return day


def _is_after(member_at: dict[int, float], seat: int, ended: float) -> bool:
    return member_at[seat] > ended
