"""How much peers download for what they read of a corpus that one of them has.

In each round, each peer reads a range of rows of its own, of two mixed sources, and fetches the next round's blocks ahead.
Printed are the bytes of blocks that the peers read and downloaded, the part of the downloads that came from the peer that
has the corpus, the part of the corpus that one peer downloaded at most, and the longest time that a peer waited in a round
after the first.

    python -m tests.simulation.block_reading [--peers 1 2 4 8] [--rounds 6] [--json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import trio

from kernels.mixture import MixturePhase, RowMixture
from protocol.corpora.manifest import Block, MixedSplit, blocks_needed
from tests.protocol.corpora.block_table import BlockTable, Reader, on_block_table
from tests.protocol.corpora.corpora import a_corpus

PEERS = (1, 2, 4, 8)
ROWS, LENGTH, COMPUTE_S = 40, 511, 20.0
"""Rows that a peer reads in a round, tokens of a row, and seconds for which it computes."""


@dataclass(frozen=True)
class BlockReading:
    """ratio: bytes downloaded over bytes of the blocks read.  from_seed, of_corpus: shares."""

    peers: int
    rounds: int
    read_bytes: int
    downloaded_bytes: int
    ratio: float
    from_seed: float
    of_corpus: float
    longest_wait_s: float


def measure(peers: int, rounds: int) -> BlockReading:
    """Let peers read some rounds."""
    corpus = a_corpus((1_200_000, 400_000), block_tokens=4096, shard_blocks=64)
    mixture, found = RowMixture([MixturePhase(0, (3, 1))]), list[BlockReading]()
    splits = [MixedSplit(corpus.manifest, source.train) for source in corpus.manifest.sources]

    def leased(number: int, round_: int) -> list[Block]:
        first = (round_ * peers + number) * ROWS
        return blocks_needed(splits, mixture, [(first, first + ROWS)], LENGTH)

    async def check(table: BlockTable) -> None:
        seed = table.add(built=True)
        readers, read, waits = [table.add() for _ in range(peers)], [set[Block]() for _ in range(peers)], [0.0]

        async def train(reader: Reader, number: int) -> None:
            for round_ in range(rounds):
                now, start = leased(number, round_), trio.current_time()
                reader.fetcher.need(now, leased(number, round_ + 1) if round_ + 1 < rounds else [])
                await reader.fetcher.until_here(now)
                read[number].update(now)
                if round_:
                    waits.append(trio.current_time() - start)
                await trio.sleep(COMPUTE_S)

        async with trio.open_nursery() as nursery:
            for number, reader in enumerate(readers):
                nursery.start_soon(train, reader, number)
        read_bytes = sum(block.size for blocks in read for block in blocks)
        arrived = sum(reader.arrived for reader in readers)
        whole = sum(map(len, corpus.data.values()))
        found.append(
            BlockReading(
                peers,
                rounds,
                read_bytes,
                arrived,
                arrived / read_bytes,
                seed.swarm.up_bytes / arrived,
                max(reader.arrived for reader in readers) / whole,
                max(waits),
            )
        )

    on_block_table(corpus, check)
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.block_reading", description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    arguments = parser.parse_args()
    print("peers  rounds   read KiB  downloaded KiB  over read  from seed  of corpus  longest wait s")
    rows = []
    for peers in arguments.peers:
        row = measure(peers, arguments.rounds)
        rows.append(row)
        print(
            f"{row.peers:>5} {row.rounds:>7} {row.read_bytes >> 10:>10} {row.downloaded_bytes >> 10:>15} {row.ratio:>10.3f} "
            f"{row.from_seed:>10.2f} {row.of_corpus:>10.2f} {row.longest_wait_s:>15.2f}",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
