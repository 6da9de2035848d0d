"""A day of a small swarm in virtual time, two of whose peers are on volunteers' computers at home.

    python -m tests.simulation.day [--hours 24] [--seed 1] [--json]

The laptop sleeps (its clock runs on meanwhile, or stands still), changes its address, its router restarts, its clock is set,
its trainer crashes.  The desktop meets all of that, and its disk fills up, and it is killed and starts again from its disk.
Each meets something about once an hour, drawn from the seed; two more peers meet nothing.  Nobody helps: a peer whose disk
was full is started again when there is room, as `peer.daemon.daemon` does, and a killed one as by a service manager.

After each disturbance, the peer has to be a member of a record again, and all peers have to stand on one tip with one
digest; then everything that each of them holds is counted (`census.py`).  At the end, `growth.py` says what has grown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import trio

from protocol.events.events import Event, RoundCommitted
from protocol.run.manifest import RoundSection, SignedManifest
from tests.simulation.census import Census, census
from tests.simulation.growth import Reading, grown
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
LEAST_HOURS = 6.0
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

    gap_s: tuple[float, float] = (600.0, 1800.0)
    sleeps_s: Sequence[float] = (120.0, 600.0, 2400.0)
    full_s: Sequence[float] = (300.0, 1200.0)


HOURLY = Pace()


@dataclass(frozen=True)
class Disturbance:
    """what: befell the peer on this seat, so long, at this time (s) of the day.

    phase: which it met.  back_s: from its end to the next record with the peer.  missed: records without it.
    """

    what: str
    seat: int
    at_s: float
    phase: str
    lasted_s: float
    back_s: float
    missed: int


@dataclass
class Day:
    """What a day left.  rounds: committed.  lives: of each peer.  failure: why it was not lived to its end."""

    hours: float
    seed: int
    disturbances: list[Disturbance] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    rounds: int = 0
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


class _Watch:
    """Notes when each seat committed a round, and whether it was a member."""

    def __init__(self, world: World) -> None:
        self.commits: dict[int, list[tuple[float, int]]] = {seat.number: [] for seat in world.seats}
        self.members: dict[int, list[str]] = {}
        self._world = world
        world.listeners.append(self._on_event)

    def _on_event(self, seat: Seat, event: Event) -> None:
        if isinstance(event, RoundCommitted):
            self.commits[seat.number].append((self._world.now(), event.round))
            self.members[event.round] = event.members

    def back_at(self, seat: Seat, since: float) -> float | None:
        """When it committed first a record of which it is a member, after `since`."""
        mine = ((at, round) for at, round in self.commits[seat.number] if at > since)
        return next((at for at, round in mine if seat.peer in self.members[round]), None)

    def missed(self, seat: Seat, since: float, until: float) -> int:
        """Records that the first seat committed meanwhile, without it."""
        between = (round for at, round in self.commits[0] if since < at <= until)
        return sum(seat.peer not in self.members[round] for round in between)


async def _disturb(
    world: World, watch: _Watch, seat: Seat, what: str, happen: Callable[[Seat], Awaitable[None]]
) -> Disturbance:
    """It happens, ends, and the peer comes back by itself."""
    phase, begun = seat.phase, world.now()
    await happen(seat)
    ended = world.now()
    await world.until(f"{what}: back", lambda: watch.back_at(seat, ended) is not None, BACK_WITHIN_S)
    back = watch.back_at(seat, ended)
    assert back is not None
    return Disturbance(what, seat.number, begun, phase, ended - begun, back - ended, watch.missed(seat, begun, back))


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


def live(hours: float, seed: int = 1, pace: Pace = HOURLY) -> Day:
    """One day, or a part of it.  What has grown is left to be judged."""
    day = Day(hours, seed)

    async def scenario(world: World) -> None:
        watch, troubles = _Watch(world), Troubles(world, pace)
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
            day.disturbances.append(await _disturb(world, watch, world.seats[turn], what, happen))
            day.readings.append(Reading(world.now(), min(world.rounds()), await _count(world)))
            turn = DESKTOP if turn == LAPTOP else LAPTOP
        day.rounds, day.lives = min(world.rounds()), [seat.lives for seat in world.seats]

    run = simulate(PEERS, scenario, seed, signed=day_run())
    day.failure = run.failure
    return day


def table(disturbances: Sequence[Disturbance]) -> str:
    """By what befell whom."""
    lines = ["| what | times | lasted, s | back after, s: median, most | records missed, most |", "|---|---|---|---|---|"]
    for what in dict.fromkeys(each.what for each in disturbances):
        those = [each for each in disturbances if each.what == what]
        back, lasted = sorted(each.back_s for each in those), sorted(each.lasted_s for each in those)
        lines.append(
            f"| {what} | {len(those)} | {lasted[0]:.0f} to {lasted[-1]:.0f} | {median(back):.0f}, {back[-1]:.0f} "
            f"| {max(each.missed for each in those)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.day", description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    if arguments.hours < LEAST_HOURS:
        parser.error(f"less than {LEAST_HOURS:.0f} hours are too few to say what grows")
    began = time.perf_counter()
    day = live(arguments.hours, arguments.seed)
    print(table(day.disturbances))
    print(f"{day.rounds} rounds, lives {day.lives}, {time.perf_counter() - began:.0f} s; {day.failure or 'all came back'}")
    larger = grown(day.readings, 3600 * arguments.hours) if day.failure is None else []
    print("\n".join(larger) or "nothing grew")
    if arguments.json:
        readings = [{**vars(each), "counts": [dict(count) for count in each.counts]} for each in day.readings]
        print(
            json.dumps({**vars(day), "disturbances": [*map(vars, day.disturbances)], "readings": readings, "grown": larger})
        )
    return 1 if day.failure or larger else 0


if __name__ == "__main__":
    raise SystemExit(main())
