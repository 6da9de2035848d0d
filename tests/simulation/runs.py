"""One simulated run from a seed, and its outcome."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import trio
from trio.testing import MockClock

from protocol.chain.electorate import tolerated
from protocol.events.events import Event, Notice, NoticeCode, PeerEjected
from protocol.run.manifest import SignedManifest
from tests.attacks.forgers import Memory, cabal, lying
from tests.attacks.ghosts import Strangers, harass
from tests.simulation.determinism import deterministic_trio, shared_decoding
from tests.simulation.driver import DrivenAgenda, Driver
from tests.simulation.mutations import mutated
from tests.simulation.processes import Overseer
from tests.simulation.scenarios import ROUGH, Troubles, churn
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World, disk_space

Scenario = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Finished:
    """What a run left.  failure: the invariant that did not hold, as a sentence; None when all did."""

    seed: int
    failure: str | None
    trace: list[str]
    trace_hash: str
    commits: int
    virtual_s: float
    messages: int
    met: Counter[tuple[str, str]]
    """How often a fault met a peer in a phase."""


def holds(run: Finished) -> Finished:
    """The run, in which every invariant held; else an AssertionError with the end of its trace."""
    assert run.failure is None, f"seed {run.seed}: {run.failure}\n" + "\n".join(run.trace[-40:])
    return run


def is_notice(event: Event, code: NoticeCode) -> bool:
    """Return True for a notice with this code."""
    return isinstance(event, Notice) and event.code == code


async def begin(world: World, round: int = 2, *, within_s: float = 60.0) -> None:
    """Everybody starts, and some rounds are committed."""
    world.start_all()
    await world.until_round(round, within_s=within_s)


def simulate(
    peers: int, scenario: Scenario, seed: int = 1, weather: Weather | None = None, signed: SignedManifest | None = None
) -> Finished:
    """Run `scenario` in a world of `peers` seats under virtual time.  Never raises for what the peers do."""
    worlds: list[World] = []

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            overseer.scope, driver.agenda = nursery.cancel_scope, DrivenAgenda()
            worlds.append(World(nursery, folder, seed, peers, weather, signed, driver.agenda))
            try:
                await scenario(worlds[0])
                worlds[0].check_leases()
            finally:
                worlds[0].close()
            nursery.cancel_scope.cancel()
        return trio.current_time()

    clock = MockClock(autojump_threshold=0)
    overseer, driver = Overseer(clock), Driver(clock)
    failure, virtual_s = None, 0.0
    with disk_space() as folder, deterministic_trio(seed), shared_decoding():
        try:
            virtual_s = trio.run(main, clock=clock, instruments=[overseer, driver])
        except BaseExceptionGroup as group:
            failure = _cause(group)
        except Exception as error:  # noqa: BLE001 - whatever a peer dies of is this run's result
            failure = _cause(error)
    world = worlds[0]
    return Finished(
        seed,
        f"{overseer.busy} goes round without waiting" if overseer.busy else failure,
        world.trace.lines,
        world.trace.hash(),
        world.judge.commits_checked,
        virtual_s,
        world.wire.messages,
        world.faults.met,
    )


@dataclass(frozen=True)
class Setting:
    """What a seed's world is like: drawn from the seed, so that the seed alone says all.

    liars: at most as many as the electors of all peers bear.  strangers: keys of a crowd.
    """

    peers: int
    rounds: int
    weather: Weather
    troubles: Troubles
    liars: int = 0
    strangers: int = 0


FAIR = Weather()
WEATHERS = (
    FAIR,
    Weather(gossip_loss=0.1, gossip_copies=0.1, gossip_late=0.1, request_loss=0.004),
    Weather(latency_s=0.08, jitter_s=0.1, gossip_loss=0.05, gossip_late=0.2, late_s=1.5),
    Weather(bytes_per_s=20e3, latency_s=0.05, gossip_copies=0.3),
    Weather(gossip_loss=0.25, gossip_copies=0.2),
)
LARGE_EVERY = 40
"""One seed in so many is a world of more than twenty peers."""


LIARS_IN, CROWD_IN = (3, 1), (8, 5)
"""Seeds that leave this rest (the second number) when divided by the first are worlds with liars, and with a crowd."""


def setting_of(seed: int, peers: int | None = None, rounds: int | None = None) -> Setting:
    """The world of a seed; `peers` and `rounds` overrule it."""
    random = Random(f"setting {seed}")
    large = seed % LARGE_EVERY == 0
    drawn = random.randint(20, 26) if large else random.choice([3, 4, 4, 5, 5, 6, 6, 7, 8])
    rounds, weather = rounds or (6 if large else random.randint(6, 12)), random.choice(WEATHERS)
    most = tolerated(peers or drawn)
    liars = random.randint(1, most) if most and seed % LIARS_IN[0] == LIARS_IN[1] else 0
    strangers = random.choice([1, 5, 30]) if seed % CROWD_IN[0] == CROWD_IN[1] else 0
    return Setting(peers or drawn, rounds, weather, ROUGH, liars, strangers)


def rough(
    seed: int,
    peers: int | None = None,
    rounds: int | None = None,
    signed: SignedManifest | None = None,
    at_end: Callable[[World], None] = lambda world: None,
) -> Finished:
    """Every trouble there is, in the world of this seed.  at_end: called while its peers still run."""
    setting = setting_of(seed, peers, rounds)

    async def scenario(world: World) -> None:
        memory, random = Memory(), Random(f"lies {seed}")
        liars = [seat.peer for seat in world.seats[: setting.liars]]
        world.judge.liars |= dict.fromkeys(liars)
        world.listeners.append(partial(_end_if_proven, world))
        if setting.strangers:
            world.spawn(harass, world, Strangers(world, setting.strangers), memory, random)
        with lying(cabal(random, liars, memory=memory, careful=seed % 2 == 0)):
            founders = min(setting.peers, 3 + seed % 3)
            await churn(world, setting.rounds, setting.troubles, founders=founders, on_calm=memory.fall_silent)
        assert not world.judge.false_chunks, "nobody spoilt an average, and one is wrong"
        at_end(world)

    return simulate(setting.peers, scenario, seed, setting.weather, signed)


def _end_if_proven(world: World, seat: Seat, event: Event) -> None:
    """A liar's life is over when the first peer has proof: nobody hears it any more, and what it does alone is no matter."""
    if isinstance(event, PeerEjected):
        for liar in world.seats:
            if liar.peer == event.peer and liar.process is not None and liar is not seat:
                world.faults.kill(liar)


Job = tuple[int, int | None, int | None, str | None]


def rough_job(job: Job) -> Finished:
    """(seed, peers, rounds, mutation): for a pool of processes."""
    seed, peers, rounds, mutation = job
    with mutated(mutation):
        return rough(seed, peers, rounds)


def _cause(error: BaseException) -> str:
    """The first single exception, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
