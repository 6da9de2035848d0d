"""How the negotiation of a round grows with the number of peers.

Peers with models of nothing, on fair links, hold a few rounds.  Counted, per round and peer, are the messages that arrive
(gossip, once for each peer that handles it; questions; pushes), and the virtual time from the last READY to the last commit.

    python -m tests.simulation.scaling [--peers 10 20 50 100 200] [--json]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from dataclasses import asdict, dataclass

from benchmarks.json_lines import say
from protocol.events.events import Event, ReadySent, RoundCommitted
from protocol.run.manifest import RoundSection, RunManifest, SignedManifest, sign
from protocol.run.sections import DataSection, ModelSection
from protocol.wire.identity import Identity
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

SIZES = (10, 20, 50, 100, 200)
FIRST, ROUNDS = 2, 3
"""Rounds before the counting begins, and rounds counted."""
YOUNG_OBJECTS = 100_000
"""Between two looks of the garbage collector: each looks at all peers now and again, and finds next to nothing."""


def wide_run() -> SignedManifest:
    """Room for 256 members; rounds of half a minute; three chunks."""
    organiser = Identity.from_seed(b"\x2a" * 32)
    return sign(
        organiser,
        RunManifest(
            name="wide",
            organiser=organiser.peer_id,
            founders="anyone",
            seed=1,
            model=ModelSection(vocab=256, dim=8, layers=1, heads=1, kv_heads=1, ffn=8),
            data=DataSection(sequence_length=8, sequences_per_step=1),
            rounds=RoundSection(inner_steps=3, min_members=1, max_members=256),
            chunk_parameters=1024,
            checkpoint_interval=100,
            checkpoint_chunk_bytes=4096,
            total_tokens=10**9,
        ),
    )


@dataclass(frozen=True)
class Row:
    """Per peer and round, but for the seconds: arrivals by kind, statements by kind, bytes of all of it.

    commit_s: virtual.  round_wall_s: of a counted round; wall_s: of the whole, start included.
    """

    peers: int
    members: float
    arrivals: dict[str, float]
    statements: dict[str, float]
    kilobytes: float
    commit_s: float
    round_wall_s: float
    wall_s: float


def measure(peers: int) -> Row:
    """A world of `peers`, and what `ROUNDS` of its rounds cost."""
    rows: list[Row] = []
    started = time.perf_counter()

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
            world.start(seat)
        await world.until_round(FIRST, within_s=1200)
        begun, before, spoken = time.perf_counter(), Counter(world.wire.arrivals), Counter(world.wire.questions)
        traffic = _bytes(world)
        await world.until_round(FIRST + ROUNDS, within_s=1200)
        counted = range(FIRST, FIRST + ROUNDS)
        arrivals = Counter[str]()
        for (kind, _), count in (Counter(world.wire.arrivals) - before).items():
            arrivals[kind] += count
        share = 1 / peers / ROUNDS
        rows.append(
            Row(
                peers,
                sum(members[round] for round in counted) / ROUNDS,
                {kind: count * share for kind, count in arrivals.items()},
                {kind: count * share for kind, count in (Counter(world.wire.questions) - spoken).items()},
                (_bytes(world) - traffic) * share / 1000,
                sum(committed[round] - ready[round] for round in counted) / ROUNDS,
                (time.perf_counter() - begun) / ROUNDS,
                time.perf_counter() - started,
            )
        )

    run = simulate(peers, scenario, 1, signed=wide_run())
    assert rows, run.failure
    return rows[0]


def _bytes(world: World) -> int:
    ends = [world.wire.end(seat.peer) for seat in world.seats]
    return sum(end.down_bytes for end in ends if end is not None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scaling", description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--json", action="store_true", help="say all rows as one object, on the last line")
    arguments = parser.parse_args()
    gc.set_threshold(YOUNG_OBJECTS)
    print("peers  members   gossip  requests   pushes   kB in   last READY to last commit   wall time a round   and in all")
    rows: list[Row] = []
    for peers in arguments.peers:
        rows.append(measure(peers))
        show(rows[-1])
    if arguments.json:
        say(rows=[asdict(row) for row in rows])
    return 0


def show(row: Row) -> None:
    arrivals = row.arrivals
    print(
        f"{row.peers:>5} {row.members:>8.1f} {arrivals.get('gossip', 0):>8.1f} {arrivals.get('request', 0):>9.1f} "
        f"{arrivals.get('push', 0):>8.1f} {row.kilobytes:>7.1f} {row.commit_s:>25.2f} s {row.round_wall_s:>17.1f} s "
        f"{row.wall_s:>10.1f} s",
        flush=True,
    )
    print(
        "       requests: " + ", ".join(f"{kind} {count:.1f}" for kind, count in sorted(row.statements.items())), flush=True
    )


if __name__ == "__main__":
    raise SystemExit(main())
