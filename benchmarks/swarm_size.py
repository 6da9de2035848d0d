"""Cost of simulated swarms of different sizes: from the start of all peers to a few committed rounds.

The peers run the real protocol on fair links in virtual time, with tiny models.  Each size runs in a process of its own.
Counted are all messages that arrive (gossip once for each peer that handles it, questions, pushes) and their bytes.

    python -m benchmarks.swarm_size [--peers 32 64 128 200] [--members 256] [--json]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import time
from collections import Counter
from dataclasses import asdict, dataclass

import trio

from benchmarks.json_lines import say
from protocol.events.events import Event, ReadySent, RoundCommitted
from protocol.formats.model import ModelConfig
from protocol.run.manifest import RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection
from protocol.wire.envelope import MAX_ELECTORS, MAX_MEMBERS
from protocol.wire.identity import Identity
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

SIZES = (32, 64, 128, 200)
FOUNDERS = MAX_ELECTORS
"""Peers that start together.  The others join, one after the other, when the first record is made, as volunteers do."""
APART_S = 0.005
ROUNDS = 3
"""Rounds from the start.  The last one is counted alone: in it no peer starts."""
WITHIN_S = 2400.0
YOUNG_OBJECTS = 1_000_000
"""Allocations between two runs of the garbage collector, which visits the objects of all peers and finds little."""


def tiny_run(max_members: int) -> SignedManifest:
    """Return a run with rounds of half a minute and three chunks."""
    organiser = Identity.from_seed(b"\x2a" * 32)
    return sign(
        organiser,
        RunManifest(
            name="wide",
            organiser=organiser.peer_id,
            founders="anyone",
            seed=1,
            model=ModelConfig(vocab=256, dim=8, layers=1, heads=1, kv_heads=1, ffn=8),
            data=DataSection(sequence_length=8, sequences_per_step=1),
            rounds=RoundSection(inner_steps=3, min_members=1, max_members=max_members),
            chunk_parameters=1024,
            checkpoint_interval=100,
            checkpoint_chunk_bytes=4096,
            total_tokens=10**9,
        ),
    )


@dataclass(frozen=True)
class Row:
    """Cost of a swarm of `peers`: of the whole run, and of its last round.

    members: in the last record.  virtual_s: of all rounds.  commit_s: virtual seconds from the last READY to the last commit
    of the last round.  processor_s, wall_s, messages, megabytes: of the whole run.  round_processor_s: of the last round.
    arrivals, kilobytes: of the last round, for each peer.  memory_mb: the largest resident memory of the process.
    """

    peers: int
    members: int
    virtual_s: float
    commit_s: float
    processor_s: float
    wall_s: float
    round_processor_s: float
    messages: int
    megabytes: float
    arrivals: dict[str, float]
    kilobytes: float
    memory_mb: float


def measure(peers: int, max_members: int) -> Row:
    """Simulate `ROUNDS` rounds of `peers` and return their cost."""
    rows: list[Row] = []
    gc.set_threshold(YOUNG_OBJECTS)
    started, processor = time.perf_counter(), time.process_time()

    async def scenario(world: World) -> None:
        ready: dict[int, float] = {}
        committed: dict[int, float] = {}
        members: dict[int, int] = {}

        def on_event(seat: Seat, event: Event) -> None:
            if isinstance(event, ReadySent):
                ready[event.round] = world.now()
            elif isinstance(event, RoundCommitted):
                committed[event.round] = world.now()
                members[event.round] = len(event.members)

        world.listeners.append(on_event)
        for seat in world.seats:
            seat.step_s = 10.0 + world.random.random()
        for seat in world.seats[:FOUNDERS]:
            world.start(seat)
        await world.until_round(1, WITHIN_S)
        for seat in world.seats[FOUNDERS:]:
            world.start(seat)
            await trio.sleep(APART_S)
        last = ROUNDS - 1
        await world.until_round(last, WITHIN_S)
        round_processor, before, bytes_before = time.process_time(), Counter(world.wire.arrivals), _bytes(world)
        await world.until_round(ROUNDS, WITHIN_S)
        arrivals = Counter[str]()
        for (kind, _), count in (Counter(world.wire.arrivals) - before).items():
            arrivals[kind] += count
        rows.append(
            Row(
                peers,
                members[last],
                world.now(),
                committed[last] - ready[last],
                time.process_time() - processor,
                time.perf_counter() - started,
                time.process_time() - round_processor,
                world.wire.messages,
                _bytes(world) / 1e6,
                {kind: count / peers for kind, count in arrivals.items()},
                (_bytes(world) - bytes_before) / peers / 1000,
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
            )
        )

    run = simulate(peers, scenario, 1, signed=tiny_run(max_members))
    assert rows, run.failure
    return rows[0]


def _bytes(world: World) -> int:
    ends = [world.wire.end(seat.peer) for seat in world.seats]
    return sum(end.down_bytes for end in ends if end is not None)


def show(row: Row) -> None:
    """Print a row of the table."""
    each = row.arrivals
    print(
        f"{row.peers:>5} {row.members:>8} {row.virtual_s:>10.0f} {row.commit_s:>9.2f} {row.processor_s:>12.1f} "
        f"{row.wall_s:>7.1f} {row.round_processor_s:>13.1f} {row.messages:>10} {row.megabytes:>8.1f} "
        f"{each.get('gossip', 0):>9.1f} {each.get('request', 0):>9.1f} {each.get('push', 0):>7.1f} "
        f"{row.kilobytes:>7.1f} {row.memory_mb:>10.0f}",
        flush=True,
    )


def main() -> int:
    """Print the cost of each size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swarm_size", description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--members", type=int, default=MAX_MEMBERS, help="most members of a round")
    parser.add_argument("--json", action="store_true", help="also print all rows as one object, on the last line")
    arguments = parser.parse_args()
    print(
        "peers  members  virtual s  commit s  processor s  wall s  round proc s   messages       MB    gossip  requests  "
        "pushes    kB in  memory MB"
    )
    rows: list[Row] = []
    for peers in arguments.peers:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (peers, arguments.members)))
        show(rows[-1])
    if arguments.json:
        say(rows=[asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
