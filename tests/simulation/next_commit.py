"""How long the survivors of a small swarm wait for their next records when a peer dies.

After three rounds one peer is killed, at one of many moments spread over a round and a half; measured is the virtual time
from its death until all survivors have one record more, and a second one.

    python -m tests.simulation.next_commit [--peers 2 3 5] [--moments 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import trio

from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

FIRST = 3
"""Records before the death."""
ROUND_S = 3.75
"""What a round of these peers takes undisturbed."""
SPREAD = 1.5
"""Rounds over which the moments are spread."""
WITHIN_S = 180.0


@dataclass(frozen=True)
class Waits:
    """Of one death: seconds until all survivors had one record more, and two.  failure: why they did not come to it."""

    first_s: float
    second_s: float
    failure: str | None


def after_death(job: tuple[int, float]) -> Waits:
    """peers, and how long after the third record (s) the last of them is killed."""
    peers, at_s = job
    waits: list[float] = []

    async def scenario(world: World) -> None:
        for seat in world.seats:
            world.start(seat)
        await world.until_round(FIRST, within_s=60)
        await trio.sleep(at_s)
        *survivors, victim = world.seats
        died, held = world.now(), max(seat.node.rounds for seat in survivors if seat.node is not None)
        world.faults.kill(victim)
        for more in (1, 2):
            reached = partial(_have, survivors, held + more)
            await world.until(f"{more} more after a death", reached, within_s=WITHIN_S)
            waits.append(world.now() - died)

    run = simulate(peers, scenario)
    first_s, second_s = [*waits, 0.0, 0.0][:2]
    return Waits(first_s, second_s, run.failure)


def _have(survivors: Sequence[Seat], rounds: int) -> bool:
    return all(seat.node is not None and seat.node.rounds >= rounds for seat in survivors)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.next_commit", description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 3, 5], help="peers before the death")
    parser.add_argument("--moments", type=int, default=15, help="how many deaths of each")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    moments = [SPREAD * ROUND_S * number / arguments.moments for number in range(arguments.moments)]
    rows, failed = [], 0
    print("peers  next record, s: median  longest   second, s: median  longest")
    with multiprocessing.get_context("spawn").Pool() as pool:
        for peers in arguments.peers:
            waits = pool.map(after_death, [(peers, at_s) for at_s in moments])
            for wait in waits:
                if wait.failure is not None:
                    failed += 1
                    print(wait.failure)
            first, second = [wait.first_s for wait in waits], [wait.second_s for wait in waits]
            print(f"{peers:>5} {median(first):>23.1f} {max(first):>8.1f} {median(second):>19.1f} {max(second):>8.1f}")
            rows.append({"peers": peers, "deaths": [asdict(wait) for wait in waits]})
    if arguments.json:
        print(json.dumps({"rows": rows}))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
