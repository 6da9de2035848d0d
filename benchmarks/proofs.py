"""Cost of proofs of hidden states: `python -m benchmarks.proofs [--toploc FOLDER] [--json]`.

Processor time of one thread for a proof of 32 tokens, and for its comparison, in batches as a rollout peer and a validator
have them, by width of the model.  With --toploc, the original is measured in the same run, turn by turn, and the proofs with
the same bytes are counted (among equal values the two take different ones for the largest).  The original is built from
source:

    pip install --no-binary toploc --no-deps --no-build-isolation --target FOLDER toploc==0.1.6
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from kernels.toploc import CHUNK_TOKENS, TOP_K, compare, prove


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds that this thread spends on `work`."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def measure(dim: int, chunks: int, repeats: int, original: Any) -> dict[str, float | int | bool]:
    """Return milliseconds a proof: medians of turns in which ours and the original's follow each other."""
    hidden = torch.randn(chunks * CHUNK_TOKENS, dim, generator=torch.Generator().manual_seed(dim)).bfloat16()
    steps = list(hidden.split(CHUNK_TOKENS))
    proofs = prove(hidden)
    work: dict[str, Callable[[], object]] = {
        "prove_ms": lambda: prove(hidden),
        "compare_ms": lambda: compare(hidden, proofs),
    }
    found: dict[str, float | int | bool] = {"dim": dim, "chunks": chunks}
    if original is not None:
        theirs = [proof for step in steps for proof in original.build_proofs_bytes([step], CHUNK_TOKENS, TOP_K)]
        found["same_bytes"] = sum(one == other for one, other in zip(proofs, theirs, strict=True))
        work["toploc_prove_ms"] = lambda: [original.build_proofs_bytes([step], CHUNK_TOKENS, TOP_K) for step in steps]
        work["toploc_compare_ms"] = lambda: [
            original.verify_proofs_bytes([step], [proof], CHUNK_TOKENS, TOP_K)
            for step, proof in zip(steps, theirs, strict=True)
        ]
    turns: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            turns[name].append(1e3 * seconds(run) / chunks)
    return found | {name: statistics.median(times) for name, times in turns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proofs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 1024, 4096, 8192])
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--toploc", metavar="FOLDER", help="where toploc is installed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    original = None
    if arguments.toploc:
        sys.path.append(arguments.toploc)
        import toploc as original  # type: ignore[import-not-found,no-redef]
    rows = [measure(dim, arguments.chunks, arguments.repeats, original) for dim in arguments.dims]
    names = list(rows[0])
    print("  ".join(name.rjust(17) for name in names))
    for row in rows:
        print(
            "  ".join((f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name])).rjust(17) for name in names)
        )
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
