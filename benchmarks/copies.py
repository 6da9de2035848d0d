"""Copies of a founder's own corpus: `python -m benchmarks.copies --megabytes 200 --json`.

A founder has a corpus of random letters, and some friends train on it with the founder (real processes on loopback).  Once
each friend shows that there are copies of everything, the founder is killed for good.  The run goes on to its end without
it, and a newcomer joins.  Then the founder starts again, which must take nothing from the others.

The table has, for each peer, the bytes of blocks that it fetched to train and to keep, the bytes that it sent and received
until the copies were there, and its mean rate beside its limit.  Exits with 1 unless the run ends, all peers hold one state,
no peer rolls back, and no limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm

DOCUMENT_BYTES = 5_000
PIECE_DOCUMENTS = 4_000
SLACK = 1.05
"""Most bytes sent, over what the limit permits in the time of the measurement."""
BURST_BYTES = 2_000_000
"""Bytes beyond that: a limit permits a second's worth at once."""
PATIENCE_S = 3600.0
RUN = """
name = "copies"
total_rounds = {rounds}
[model]
dim = 16
layers = 1
heads = 1
kv_heads = 1
ffn = 32
[data]
from = "corpus"
sequence_length = 256
sequences_per_step = 4
[inner]
lr = 1e-3
warmup_steps = 10
[rounds]
inner_steps = {steps}
min_members = 2
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
seasoning_rounds = 1
tenure_rounds = 1
"""


@dataclass(frozen=True)
class PeerCosts:
    """Costs of the copies at one peer.

    block_bytes: the bytes of blocks by origin; "copy" stands for blocks fetched to keep.  up_bytes, down_bytes: all bytes
    until the copies were there.  up_bytes_per_s: the mean upload rate.  limit: the limit on the upload rate in bytes a
    second; None without a limit.
    """

    name: str
    block_bytes: dict[str, int]
    up_bytes: int
    down_bytes: int
    up_bytes_per_s: float
    limit: float | None
    is_within: bool


@dataclass(frozen=True)
class CopiesMeasured:
    """Outcome of a run.  copied_s: the seconds from the start of the last friend until there were copies of everything.

    killed_at: the number of rounds when the founder was killed.  rounds_s: the seconds of a round before and after.
    rolled_back: the rounds that any peer gave up.
    """

    megabytes: float
    friends: int
    copied_s: float
    killed_at: int
    rounds: int
    round_s: float
    round_alone_s: float
    newcomer_blocks: dict[str, int]
    rolled_back: int
    peers: list[PeerCosts]
    is_right: bool


def say(text: str) -> None:
    """Print progress to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def write_corpus(swarm: Swarm, size: int, block: int) -> None:
    """Make a corpus of `size` bytes beside the run file of a swarm."""
    random, documents = np.random.default_rng(0), max(2, size // DOCUMENT_BYTES)
    file = swarm.folder / "letters.npy"
    tokens = np.lib.format.open_memmap(file, "w+", np.dtype(np.uint8), (documents, DOCUMENT_BYTES))
    for start in range(0, documents, PIECE_DOCUMENTS):
        piece = tokens[start : start + PIECE_DOCUMENTS]
        piece[:] = random.integers(ord("a"), ord("z"), piece.shape, np.uint8, endpoint=True)
    tokens.flush()
    words = [
        "data",
        "import",
        str(swarm.folder / "corpus"),
        f"letters={file}",
        "--tokenizer",
        "bytes",
        "--block",
        str(block),
    ]
    swarm.command(swarm.place("founder"), *words, patience_s=PATIENCE_S)
    file.unlink()


def copies_at(peer: Peer) -> dict[str, Any]:
    """Return the copies that a peer shows; empty before it knows them."""
    return peer.status().get("copies") or {}


def are_enough(peer: Peer, peers: int) -> bool:
    """Return True if a peer shows enough copies among so many peers."""
    told = copies_at(peer)
    return bool(told) and told["peers"] >= peers and not told["short_bytes"] and not told["missing_bytes"]


def measure(folder: Path, options: argparse.Namespace) -> CopiesMeasured:
    """Run the swarm in `folder`."""
    limit = options.up_mbit * 1e6 / 8 if options.up_mbit else None
    words = ["--max-up", f"{options.up_mbit:g}Mbit"] if limit else []
    with Swarm(folder, RUN.format(rounds=options.rounds, steps=options.steps)) as swarm:
        write_corpus(swarm, int(options.megabytes * 1e6), options.block)
        swarm.create_run("founder")
        founder = swarm.peer("founder").start(*words)
        friends = [swarm.peer(f"friend-{number}").start(*words) for number in range(options.friends)]
        peers, begun = [founder, *friends], time.monotonic()
        swarm.whole(*peers)
        first, first_s = founder.committed, time.monotonic()
        say("all train; waiting for the copies")
        swarm.until("copies of everything", lambda: all(are_enough(peer, len(peers)) for peer in friends), PATIENCE_S)
        copied_s = time.monotonic() - begun
        statuses = {peer.name: peer.status() for peer in peers}
        costs = [_costs(peer.name, statuses[peer.name], limit) for peer in peers]
        killed_at = founder.committed
        assert killed_at < options.rounds, "the run ended before the copies were there: take more --rounds"
        round_s = (time.monotonic() - first_s) / max(1, killed_at - first)
        say(f"copies after {copied_s:.0f} s; killing the founder after {killed_at} rounds")
        founder.kill()
        alone_s = time.monotonic()
        newcomer = swarm.peer("newcomer").start(*words)
        swarm.whole(*friends, newcomer)
        others = [*friends, newcomer]
        swarm.until("the end of the run", lambda: all(peer.committed >= options.rounds for peer in others), PATIENCE_S)
        round_alone_s = (time.monotonic() - alone_s) / max(1, options.rounds - killed_at)
        digest = swarm.equal(options.rounds, *others)
        founder.start(*words)
        swarm.until("the founder to come back", lambda: founder.committed >= options.rounds, PATIENCE_S)
        is_equal = swarm.equal(options.rounds, founder, *others) == digest
        rolled_back = sum(event.abandoned for peer in [founder, *others] for event in peer.heard(ev.RolledBack))
        return CopiesMeasured(
            options.megabytes,
            options.friends,
            copied_s,
            killed_at,
            options.rounds,
            round_s,
            round_alone_s,
            newcomer.status()["block_bytes"],
            rolled_back,
            costs,
            is_equal and not rolled_back and all(each.is_within for each in costs),
        )


def _costs(name: str, status: dict[str, Any], limit: float | None) -> PeerCosts:
    rate, up = status["up_bytes"] / status["uptime_s"], status["up_bytes"]
    is_within = limit is None or up <= SLACK * limit * status["uptime_s"] + BURST_BYTES
    return PeerCosts(name, status["block_bytes"], up, status["down_bytes"], rate, limit, is_within)


def show(found: CopiesMeasured) -> None:
    """Print the table."""
    print(f"{found.megabytes:g} MB at a founder, {found.friends} friends: copies of everything after {found.copied_s:.0f} s")
    print("| peer | fetched to train | fetched to keep | sent | received | mean upload, of its limit |")
    print("|---|---|---|---|---|---|")
    for each in found.peers:
        needed = sum(each.block_bytes.get(origin, 0) for origin in ("peer", "seed", "mirror"))
        sizes = (needed, each.block_bytes.get("copy", 0), each.up_bytes, each.down_bytes)
        of_limit = f" of {each.limit / 1e6:.2f}" if each.limit else ""
        cells = " | ".join(f"{count / 1e6:.1f} MB" for count in sizes)
        print(f"| {each.name} | {cells} | {each.up_bytes_per_s / 1e6:.2f}{of_limit} MB/s |")
    print(
        f"the founder was killed after {found.killed_at} rounds; the run ended after {found.rounds}, {found.rolled_back} "
        f"rounds were lost; a round took {found.round_s:.1f} s while copies went on, {found.round_alone_s:.1f} s without it"
    )
    print("right" if found.is_right else "WRONG", flush=True)


def main() -> int:
    """Measure once and print the table, or one JSON object after it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0, help="size of the corpus (20)")
    parser.add_argument("--friends", type=int, default=3, help="peers that train with the founder (3)")
    parser.add_argument("--up-mbit", type=float, default=0.0, help="limit on each peer's upload, Mbit/s (none)")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the run (60)")
    parser.add_argument("--steps", type=int, default=100, help="inner steps of a round, of 4 rows of 256 tokens (100)")
    parser.add_argument("--block", type=int, default=1 << 18, help="largest block, in bytes (262144)")
    parser.add_argument("--json", action="store_true", help="print one JSON object after the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *anything: sys.exit(1))  # so that the folder and the peers go
    with tempfile.TemporaryDirectory(prefix="copies-", ignore_cleanup_errors=True) as name:
        found = measure(Path(name), options)
    show(found)
    if options.json:
        print(json.dumps(asdict(found)), flush=True)
    return 0 if found.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
