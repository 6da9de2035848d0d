"""How fast a blob gets from one origin to many receivers, all of them with equal lines.

The lines carry one chunk in a quarter of a virtual second; a peer is connected to some tens of others.  Printed are the time
until the last one has it, over the time that one line needs for it; how many copies left the origin; how many chunks
arrived somewhere a second time, of all; the real time it took.

    python -m tests.simulation.broadcast [--receivers 2 8 64 500] [--chunks 256] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import trio

from tests.protocol.blobs.swarm_table import SwarmTable, on_swarm_table

RECEIVERS = (2, 8, 64, 500)
DEGREE = 16
"""Neighbours of each peer, about."""


@dataclass(frozen=True)
class Row:
    """ratio: virtual seconds over those of one line.  twice: part of the chunks that arrived once more than needed."""

    receivers: int
    chunks: int
    virtual_s: float
    ratio: float
    median_ratio: float
    copies: float
    twice: float
    messages: float
    wall_s: float


def measure(receivers: int, chunks: int, seed: int = 1, degree: int = DEGREE, chunk_s: float = 0.25) -> Row:
    """One broadcast.  messages: that arrived, for each chunk that was needed."""
    rows: list[Row] = []

    async def check(table: SwarmTable) -> None:
        begun = time.perf_counter()
        (origin,) = table.add()
        origin.originate()
        others = table.add(count=receivers)
        await trio.sleep(0.1)
        linked = table.separate(degree) if receivers > 2 * degree else dict.fromkeys(table.peers, table.peers)
        start = trio.current_time()
        for peer in others:
            peer.fetch([other for other in linked[peer] if other is not peer])
        taken_s = await table.until_all(others, 20 * table.least_s + 60)
        ended = sorted((peer.done_at or 0.0) - start for peer in others)
        rows.append(
            Row(
                receivers,
                chunks,
                taken_s,
                taken_s / table.least_s,
                ended[len(ended) // 2] / table.least_s,
                table.copies_from(origin),
                table.twice(others) / receivers / chunks,
                table.wire.messages / receivers / chunks,
                time.perf_counter() - begun,
            )
        )

    on_swarm_table(check, seed=seed, chunks=chunks, chunk_s=chunk_s)
    return rows[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.broadcast", description=__doc__)
    parser.add_argument("--receivers", type=int, nargs="+", default=list(RECEIVERS))
    parser.add_argument("--chunks", type=int, default=256)
    parser.add_argument("--degree", type=int, default=DEGREE)
    parser.add_argument("--chunk-seconds", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    arguments = parser.parse_args()
    print("receivers  chunks   seconds  over size/B  (median)  copies sent  fetched twice  messages a chunk  wall time")
    rows = []
    for receivers in arguments.receivers:
        row = measure(receivers, arguments.chunks, arguments.seed, arguments.degree, arguments.chunk_seconds)
        rows.append(row)
        print(
            f"{row.receivers:>9} {row.chunks:>7} {row.virtual_s:>9.1f} {row.ratio:>12.3f} {row.median_ratio:>9.3f} "
            f"{row.copies:>12.2f} {row.twice:>13.1%} {row.messages:>17.1f} {row.wall_s:>8.1f} s",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"broadcast": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
