"""Every effect of the state machines as a place to die: all single deaths, and all ordered pairs of deaths.

A crash point is (what is being done, before or after it, in which role).  In a small swarm, the first peer that comes to the
point dies there and comes back some seconds later with its disk as it was; in a pair, the next peer that comes to the second
point, be it the same or another, dies too.  Every other peer keeps its state in a file in place of memory.  Everybody must
end on one tip and one state, with a further round committed.

    python -m tests.simulation.crash_points            # all single deaths, before and after each effect
    python -m tests.simulation.crash_points --pairs    # and all ordered pairs of deaths after an effect

(Before an effect is after the one that precedes it, so pairs leave the befores out.)
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import trio

from protocol.agreement.events import RoundEffect, Send
from protocol.allreduce.runner import ExchangeRunner, Sender
from protocol.chain.history import History
from protocol.node.rounds import RunningRound
from protocol.node.state import StateKeeper
from protocol.run.manifest import RoundSection, SignedManifest
from protocol.sync.catch_up import CatchUp
from protocol.wire.identity import PeerId
from tests.simulation.processes import PROCESS
from tests.simulation.runs import Finished, simulate
from tests.simulation.world import DELAY, FRAGMENTS, World, changed, simulated_run

ROLES = ("proposer", "owner", "member", "joiner")
SENT = ("Finish", "ViewChange", "Proposal", "RecordProposal", "Vote", "PrevoteCertificate", "Commit", "Lock")
ROUND_EFFECTS = (
    *(f"Send {kind}" for kind in SENT),
    "Persist",
    "BeginExchange",
    "FinishCompute",
    "ObtainResult",
    "Committed",
)
EXCHANGE_EFFECTS = ("SendPart", "SendResult", "Reduce", "Ask", "Lost", "AllReduceDone", "push")
SHELL_ACTS = ("say ready", "append", "apply", "checkpoint")
RESTART_S = 3.0
REACHED_WITHIN_S = 45.0
SLOW = ("Send Finish", "FinishCompute")
"""Only come to when somebody is slow."""
PROPOSERS = ("Send Proposal", "Send RecordProposal", "Send PrevoteCertificate", "Send Commit")
BEFORE_A_PLAN = (*SLOW, "say ready")
OWNERS = ("Reduce", "SendResult")


Name = Callable[..., tuple[str, PeerId]]
"""What a method call does, and the peer that does it."""


@dataclass(frozen=True)
class Point:
    what: str
    when: str
    role: str

    def __str__(self) -> str:
        return f"{self.when} {self.what} as {self.role}"


def possible(point: Point) -> bool:
    """Whether a first death can happen here: what only another's death brings about cannot."""
    if point.what in ("Ask", "Lost", "Send Lock"):
        return False
    if point.what == "Send ViewChange":
        return point.role == "member"
    if point.what in PROPOSERS:
        return point.role == "proposer"
    if point.what in OWNERS:
        return point.role in ("proposer", "owner")
    if point.what in BEFORE_A_PLAN:
        return point.role == "member" or (point.role == "joiner" and point.what not in SLOW)
    return point.what not in ("Send Vote", "Persist") or point.role != "joiner"


ALL_POINTS = tuple(
    Point(what, when, role)
    for what in (*ROUND_EFFECTS, *EXCHANGE_EFFECTS, *SHELL_ACTS)
    for when in ("before", "after")
    for role in ROLES
)
SINGLES = tuple((point,) for point in ALL_POINTS if possible(point))
PAIRS = tuple(
    (one, other)
    for (one,) in SINGLES
    if one.when == "after"
    for other in ALL_POINTS
    if other.when == "after" and (possible(other) or other.what in ("Ask", "Lost", *OWNERS))
)
"""Before an effect is after the one that precedes it."""


@dataclass
class Trap:
    """Lies in wait at the first of `points` that are left; `sprung` are those that somebody died at."""

    points: list[Point]
    set: bool = False
    sprung: list[Point] = field(default_factory=list)
    roles: dict[PeerId, str] = field(default_factory=dict)

    def passing(self, what: str, when: str, peer: PeerId) -> None:
        """`peer` comes by; it does not get further if this is the point."""
        process = PROCESS.get()
        if not self.set or not self.points or process is None or not process.alive:
            return
        if self.points[0] == Point(what, when, self.roles.get(peer, "member")):
            self.sprung.append(self.points.pop(0))
            process.die()

    def role(self, runner: RunningRound) -> None:
        """Take down what a peer is in its running round."""
        me, machine, plan = runner.session.me, runner.machine, runner.machine.state.plan
        if runner.base.round and me not in runner.base.electors:
            self.roles[me] = "joiner"
        elif machine.is_proposing:
            self.roles[me] = "proposer"
        elif plan is not None and me in {plan.members[owner].peer for owner in plan.owners}:
            self.roles[me] = "owner"
        else:
            self.roles[me] = "member"


@contextmanager
def laid(trap: Trap) -> Iterator[None]:
    """Within, whatever peers do passes by the trap."""

    def by_runner(what: Callable[..., str]) -> Name:
        def name(runner: RunningRound, *arguments: Any) -> tuple[str, PeerId]:
            trap.role(runner)
            return what(*arguments), runner.session.me

        return name

    def plain(what: str) -> Name:
        return lambda *arguments: (what, _running_peer())

    watched: tuple[tuple[type, str, Name], ...] = (
        (RunningRound, "_perform", by_runner(_name_of_round_effect)),
        (RunningRound, "_say_ready", by_runner(lambda *arguments: "say ready")),
        (ExchangeRunner, "_perform", lambda runner, effect: (type(effect).__name__, runner.machine.me)),
        (Sender, "_push_until_over", lambda sender, *arguments: ("push", sender._machine.me)),
        (History, "written", plain("append")),
        (CatchUp, "apply", plain("apply")),
        (StateKeeper, "checkpoint", plain("checkpoint")),
    )
    with ExitStack() as stack:
        for owner, method, name in watched:
            stack.enter_context(patch.object(owner, method, _passing(trap, getattr(owner, method), name)))
        yield


def _passing(trap: Trap, act: Callable[..., Any], name: Name) -> Callable[..., Any]:
    """`act`, a method, with the trap before and after it."""

    async def acts(*arguments: Any) -> Any:
        what, peer = name(*arguments)
        trap.passing(what, "before", peer)
        done = await act(*arguments)
        trap.passing(what, "after", peer)
        return done

    def acts_at_once(*arguments: Any) -> Any:
        what, peer = name(*arguments)
        trap.passing(what, "before", peer)
        done = act(*arguments)
        trap.passing(what, "after", peer)
        return done

    return acts if inspect.iscoroutinefunction(act) else acts_at_once


def _name_of_round_effect(effect: RoundEffect, _: object) -> str:
    return f"Send {type(effect.body).__name__}" if isinstance(effect, Send) else type(effect).__name__


def _running_peer() -> PeerId:
    """The peer whose process runs now."""
    process = PROCESS.get()
    assert process is not None
    return process.peer


def brisk_run() -> SignedManifest:
    """Rounds of few steps, a checkpoint every other round."""
    rounds = RoundSection(
        inner_steps=2 * FRAGMENTS, delay=min(DELAY, 2), min_members=1, max_members=64, grace_s=2, eviction_s=12, stall_s=3
    )
    return changed(simulated_run(), rounds=rounds, checkpoint_interval=2)


def die_at(points: Sequence[Point], seed: int = 1) -> tuple[Finished, list[Point]]:
    """One small run with deaths at these points, one after the other; and the points that were come to."""
    trap = Trap(list(points))
    slow = any(point.what in SLOW for point in points)

    async def scenario(world: World) -> None:
        *founders, joiner = world.seats
        for seat in world.seats:
            seat.step_s, seat.state_on_disk = 1.0, seat.number % 2 == 0
        founders[-1].step_s = 4.5 if slow else 1.0
        for seat in founders:
            world.start(seat)
        await world.until_round(1, within_s=90)
        trap.set = True
        world.start(joiner)
        with trio.move_on_after(REACHED_WITHIN_S):
            while trap.points:
                await _come_back(world)
        await _come_back(world)
        reached = max(world.rounds(), default=0)
        while any(not seat.up for seat in world.seats):
            await _come_back(world)
        await world.until_round(reached + 1, within_s=90)
        await world.until_equal(within_s=60)

    with laid(trap):
        run = simulate(4, scenario, seed, signed=brisk_run())
    return run, trap.sprung


async def _come_back(world: World) -> None:
    """Who died is back after a while."""
    await trio.sleep(0.25)
    for seat in world.seats:
        if not seat.up and seat.lives and world.now() - seat.died_at > RESTART_S:
            world.start(seat)


@dataclass(frozen=True)
class Death:
    """The outcome of one entry of the matrix.  reached: how many of its points somebody came to."""

    points: tuple[Point, ...]
    reached: int
    failure: str | None


def death(points: tuple[Point, ...]) -> Death:
    """For a pool of processes."""
    run, sprung = die_at(points)
    return Death(points, len(sprung), run.failure)


def _matrix(pool: Any, entries: Sequence[tuple[Point, ...]], what: str) -> tuple[list[Death], bool]:
    started = shown = time.perf_counter()
    deaths: list[Death] = []
    for outcome in pool.imap_unordered(death, entries, chunksize=4):
        deaths.append(outcome)
        if outcome.failure is not None:
            print(f"FAILED {' then '.join(map(str, outcome.points))}: {outcome.failure}", flush=True)
        if time.perf_counter() - shown > 20:
            shown = time.perf_counter()
            print(f"  {len(deaths)} of {len(entries)}, {shown - started:.0f} s", flush=True)
    complete = [outcome for outcome in deaths if outcome.reached == len(outcome.points)]
    failed = [outcome for outcome in deaths if outcome.failure is not None]
    print(
        f"{what}: {len(entries)} run, {len(complete)} came to all their points, {len(failed)} failed, "
        f"{time.perf_counter() - started:.0f} s",
        flush=True,
    )
    return deaths, not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.crash_points", description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="all ordered pairs as well")
    parser.add_argument("--part", default="1/1", help="K/N: only the K-th of N parts of the pairs")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    with multiprocessing.get_context("spawn").Pool() as pool:
        deaths, good = _matrix(pool, SINGLES, "single crash points")
        for outcome in deaths:
            if not outcome.reached:
                print(f"nobody came to: {outcome.points[0]}")
        if arguments.pairs:
            good = _matrix(pool, PAIRS[part - 1 :: parts], "ordered pairs")[1] and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
