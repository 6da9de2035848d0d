"""What an attack is, what came of it, and when it is held.

An attack is held when no invariant of the judge broke, no honest peer stopped, all honest peers are equal afterwards, what
the attack expects is true, and rounds went on: in the time after the third round at least `PACE` of those that the same
peers make undisturbed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import trio

from protocol.allreduce.runner import ExchangeRunner
from protocol.run.manifest import SignedManifest
from tests.attacks.cost import Cost
from tests.attacks.exchange_liars import exchanging
from tests.attacks.forgers import Forger, lying
from tests.attacks.stage import SEED, Stage, founded_run
from tests.simulation.runs import simulate
from tests.simulation.world import World

PACE = 0.8
WINDOW_S = 80.0
"""Virtual seconds over which rounds are counted."""
GRACE_ROUNDS = 3
"""Rounds that an attack may delay without bound but this one:"""
GRACE_S = 120.0

Conduct = Callable[[Stage], Awaitable[None]]
Within = Callable[[Stage], AbstractContextManager[None]]


def holding(*contexts: Within) -> Conduct:
    """Go on within all of these until cancelled."""

    async def conduct(stage: Stage) -> None:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context(stage))
            await trio.sleep_forever()

    return conduct


def forge(*forgers: Forger | Callable[[Stage], Forger]) -> Within:
    """The liars' round machines are these forgers', one each; the last one for all that are left."""

    def within(stage: Stage) -> AbstractContextManager[None]:
        made = [each if isinstance(each, Forger) else each(stage) for each in forgers]
        return lying({peer: made[min(number, len(made) - 1)] for number, peer in enumerate(stage.liar_peers)})

    return within


def exchange(kind: type[ExchangeRunner]) -> Within:
    """The liars' exchanges are of this kind."""
    return lambda stage: exchanging(kind, stage.liar_peers)


@contextmanager
def proven(stage: Stage) -> Iterator[None]:
    """What the liars do is proof against them."""
    stage.expect_ejected()
    yield


@dataclass(frozen=True)
class Attack:
    """name: for the table and for `--only`.  how: a phrase.  conduct: goes on until cancelled, or is over sooner.

    peers: seats, of which the first `liars` lie.  keys: of strangers.  begun: whether it comes into a run of `rounds`.
    paced: whether rounds have to go on at `PACE`, over `window_s`: longer where each of many pairs of peers costs time once.
    quick: under 2 s.
    """

    name: str
    how: str
    conduct: Conduct
    peers: int = 5
    liars: int = 1
    keys: int = 0
    run: Callable[[int], SignedManifest] = founded_run
    begun: bool = True
    rounds: int = 2
    paced: bool = True
    window_s: float = WINDOW_S
    quick: bool = True


@dataclass
class Measured:
    """rounds: of all honest peers in the window.  delay_s: until they had made the first rounds.

    pause_s: the longest time without a round.  received: bytes at an honest peer in the window.
    """

    rounds: int = 0
    delay_s: float = 0.0
    pause_s: float = 0.0
    received: int = 0


@dataclass
class Outcome:
    """Of one attack.  failure: why it is not held.  ejected: liars that every honest peer has proof against.

    cost: to the process, of an attack on one.
    """

    name: str
    how: str
    liars: int
    keys: int
    failure: str | None = None
    measured: Measured = field(default_factory=Measured)
    undisturbed: Measured | None = None
    ejected: int = 0
    cost: Cost | None = None
    details: str = ""

    @property
    def held(self) -> bool:
        return self.failure is None


@lru_cache(maxsize=64)
def undisturbed(peers: int, run: Callable[[int], SignedManifest], window_s: float) -> Measured:
    """What these peers do without any attack, all of them honest."""
    outcome = simulated(Attack("nothing", "", holding(), peers, 0, run=run), window_s)
    assert outcome.failure is None, outcome.failure
    return outcome.measured


def carry_out(attack: Attack) -> Outcome:
    """The attack in a world of its own, beside what happens without it."""
    outcome = simulated(attack, attack.window_s)
    if attack.begun and attack.paced:
        outcome.undisturbed = calm = undisturbed(attack.peers, attack.run, attack.window_s)
        made, due = outcome.measured.rounds, calm.rounds
        if outcome.failure is None and made < PACE * due:
            outcome.failure = f"pace: {made} rounds in {attack.window_s:.0f} s, and {due} without the attack"
    return outcome


def simulated(attack: Attack, window_s: float = WINDOW_S) -> Outcome:
    """The attack alone.  window_s: over how long rounds are counted."""
    outcome = Outcome(attack.name, attack.how, attack.liars, attack.keys)

    async def scenario(world: World) -> None:
        stage = Stage(world, attack.liars)
        try:
            await (_attacked(attack, stage, outcome.measured, window_s) if attack.begun else attack.conduct(stage))
            await stage.settle()
        finally:
            outcome.ejected = sum(stage.ejected(seat.peer) for seat in stage.liars)

    run = simulate(attack.peers, scenario, SEED, signed=attack.run(attack.peers))
    outcome.failure = run.failure
    return outcome


async def _attacked(attack: Attack, stage: Stage, measured: Measured, window_s: float) -> None:
    await stage.begin(attack.rounds)
    begun, first = stage.world.now(), stage.rounds()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attack.conduct, stage)
        await stage.world.until(
            f"{GRACE_ROUNDS} rounds in spite of it", lambda: stage.rounds() >= first + GRACE_ROUNDS, GRACE_S
        )
        measured.delay_s = stage.world.now() - begun
        received, before = stage.received(), stage.rounds()
        await trio.sleep(window_s)
        measured.rounds, measured.received = stage.rounds() - before, stage.received() - received
        measured.pause_s = stage.longest_pause(begun)
        nursery.cancel_scope.cancel()
