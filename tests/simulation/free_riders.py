"""`python -m tests.simulation.free_riders`: the share of credit and votes of members that claim work that they do not do.

A share of the peers sends receipts of other rows, and comes back with new keys after every `--day` rounds.  Rounds are
long enough for an audit or two of each member (`--rows` a step).  `--no-audits` shows the same without audits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence

from protocol.chain.credit import Ledger
from protocol.events.events import Event, MemberSetAside
from protocol.wire.identity import PeerId
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.disks import Platter
from tests.simulation.rider_draws import Found
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.test_receipts import Pretender, audited_run
from tests.simulation.world import World, changed, seat_identity

ROUND_S = 600.0
"""Longest virtual time of a round before the run counts as stuck."""


def measure(
    peers: int,
    riders: int,
    rounds: int,
    day: int,
    rows: int,
    seed: int,
    *,
    audits: bool = True,
    progress: Callable[[Found], None] = lambda _: None,
) -> Found:
    """Return what free riders got in a run.  `progress` is told after each day."""
    found, keys = Found(), set[PeerId]()
    signed = audited_run(rows=rows)
    if not audits:
        signed = changed(signed, rounds=signed.manifest.rounds.model_copy(update={"audits": False}))

    async def scenario(world: World) -> None:
        def listen(seat: Seat, event: Event) -> None:
            if isinstance(event, MemberSetAside) and seat.peer not in keys:
                found.riders_aside += event.peer in keys
                found.honest_aside += event.peer not in keys

        def become(seat: Seat) -> None:
            seat.make_trainer = Pretender if audits else ArithmeticTrainer
            keys.add(seat.peer)
            world.judge.liars[seat.peer] = None

        world.listeners.append(listen)
        present = world.seats[peers - riders :]
        for seat in present:
            become(seat)
        world.start_all()
        for end in range(day, rounds, day):
            await reach(world, end, day)
            _count(world, keys, end, found)
            progress(found)
            for seat in present:
                world.leave(seat)
            await all_gone(world, present)
            present = [_new_seat(world, seed, len(world.seats)) for _ in present]
            for seat in present:
                become(seat)
                world.start(seat)
        await reach(world, rounds, day)
        _count(world, keys, rounds, found)

    holds(simulate(peers, scenario, seed, signed=signed))
    return found


async def reach(world: World, round: int, day: int) -> None:
    await world.until(f"round {round}", lambda: max(world.rounds()) >= round, ROUND_S * day)


async def all_gone(world: World, seats: Sequence[Seat]) -> None:
    await world.until("they have left", lambda: not any(seat.up for seat in seats), 60)


def _new_seat(world: World, seed: int, number: int) -> Seat:
    folder = world.seats[0].folder.with_name(f"{number:04}")
    step_s = world.seats[number % len(world.seats)].step_s
    world.seats.append(Seat(seat_identity(seed, number), number, folder, step_s, Platter(world.random)))
    return world.seats[-1]


def _count(world: World, riders: set[PeerId], end: int, found: Found) -> None:
    """Add the rounds before `end` that `found` does not have yet."""
    node = max((seat.node for seat in world.up() if seat.node is not None), key=lambda node: node.rounds)
    ledger = Ledger()
    for round in range(found.rounds, end):
        commit = node.commit_at(round)
        ledger.add(commit)
        found.memberships.update(member.peer for member in commit.record.members if member.peer in riders)
        electors = [vote.peer for vote in commit.certificate.votes]
        found.votes += len(electors)
        found.riders_votes += sum(peer in riders for peer in electors)
    found.rounds = end
    found.tokens += sum(each.tokens for each in ledger.credits.values())
    found.riders_tokens += sum(each.tokens for peer, each in ledger.credits.items() if peer in riders)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.free_riders", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--peers", type=int, default=20)
    parser.add_argument("--riders", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--day", type=int, default=100, help="rounds after which free riders come back with new keys")
    parser.add_argument("--rows", type=int, default=256, help="rows of a step, of which a round has ten")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-audits", dest="audits", action="store_false")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    began = time.process_time()

    def show(found: Found) -> None:
        shares = found.shares()
        print(
            f"{options.riders} of {options.peers} peers claim work that they do not do, {found.rounds} rounds: "
            f"{100 * shares['tokens']:.1f} % of the tokens, {100 * shares['votes']:.1f} % of the votes; rounds of a key: "
            f"{sorted(found.memberships.values())}; set aside {found.riders_aside} times, honest members "
            f"{found.honest_aside} times ({time.process_time() - began:.0f} s)",
            flush=True,
        )

    found = measure(
        options.peers,
        options.riders,
        options.rounds,
        options.day,
        options.rows,
        options.seed,
        audits=options.audits,
        progress=show,
    )
    show(found)
    if options.json:
        counts = {**vars(found), "memberships": sorted(found.memberships.values())}
        print(json.dumps({**counts, **found.shares(), "seconds": time.process_time() - began}))


if __name__ == "__main__":
    main()
