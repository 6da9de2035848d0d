"""Golden outcomes of ten worlds: the records, members and states with which small worlds end.

Half of the worlds are rough, some with liars (`runs.rough`).  In the other half one peer sleeps, one is killed, and one
contributes something hostile.  The outcomes of these do not depend on the steps of single tasks, so most changes that keep
the protocol's decisions keep these outcomes.

`python -m tests.simulation.golden` writes `golden.json` anew.  Do so if a change is meant to change an outcome, and say in
the commit which outcomes changed, and why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from protocol.wire.messages import Commit
from tests.attacks.contributions import ATTACKS, turn
from tests.simulation.runs import begin, holds, rough, simulate
from tests.simulation.world import World

GOLDEN = Path(__file__).with_suffix(".json")
SEEDS = range(1, 6)
ROUGH_ROUNDS, QUIET_ROUNDS = 6, 6
SLEEP_S, DEAD_S = 12.0, 8.0


@dataclass(frozen=True)
class Outcome:
    """How a world ended.  tip: names all records.  members: a hash over the members of each round.  state: its digest."""

    rounds: int
    tip: str
    members: str
    state: str


def outcome_of(world: World) -> Outcome:
    """Return the outcome at an honest peer; all of them are equal at the end of a world."""
    honest = (seat.node for seat in world.up() if seat.node is not None and seat.peer not in world.judge.liars)
    node = next(honest)
    members = [_members(node.commit_at(round)) for round in range(node.rounds)]
    digest = hashlib.blake2b(json.dumps(members).encode(), digest_size=16).hexdigest()
    return Outcome(node.rounds, node.tip.hex(), digest, node.state_mark.digest.hex())


def _members(commit: Commit) -> list[str]:
    return [member.peer for member in commit.record.members]


def rough_world(seed: int) -> Outcome:
    """Play the world of a seed with every trouble."""
    ends: list[Outcome] = []
    holds(rough(seed, rounds=ROUGH_ROUNDS, at_end=lambda world: ends.append(outcome_of(world))))
    return ends[0]


def quiet_world(seed: int) -> Outcome:
    """Play a world of five or six peers, of which one sleeps, one is killed and one contributes something hostile."""
    ends: list[Outcome] = []

    async def scenario(world: World) -> None:
        hostile, sleeper, killed, *_ = world.seats
        turn(hostile, [*ATTACKS.values()][seed % len(ATTACKS)])
        await begin(world, 1)
        world.faults.freeze(sleeper)
        await trio.sleep(SLEEP_S)
        world.faults.thaw(sleeper)
        world.faults.kill(killed)
        await trio.sleep(DEAD_S)
        world.start(killed)
        await world.until_round(QUIET_ROUNDS, within_s=120)
        await world.until_equal(within_s=60)
        ends.append(outcome_of(world))

    holds(simulate(5 + seed % 2, scenario, seed))
    return ends[0]


WORLDS: dict[str, Callable[[int], Outcome]] = {"rough": rough_world, "quiet": quiet_world}


def outcomes() -> dict[str, Outcome]:
    """Play all worlds, which takes about half a minute of one core; return the outcomes by the worlds' names."""
    return {f"{kind} {seed}": play(seed) for kind, play in WORLDS.items() for seed in SEEDS}


def golden() -> dict[str, Outcome]:
    """Return the outcomes in `golden.json`."""
    return {name: Outcome(**fields) for name, fields in json.loads(GOLDEN.read_text()).items()}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: asdict(outcome) for name, outcome in outcomes().items()}, indent=1) + "\n")
