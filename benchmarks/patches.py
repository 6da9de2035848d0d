"""Patches between versions of bf16 weights: their size, the time to make and to apply them, and whether all is exact.

    python -m benchmarks.patches [--parameters 500000000] [--changed 0.01] [--json]

The weights are normal, in tensors of 4096 x 4096 and what is left.  A step changes a share of them, at random places, by one
unit in the last place of bf16, up or down: what an optimiser's small steps on fp32 weights do to their bf16 copies.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import numpy.typing as npt

from protocol.versions.making import apply_patch, make_patch
from protocol.wire.hashes import chunk_hash

TENSOR = 4096 * 4096
PIECE = 1 << 24
"""Values made at a time."""


def weights(parameters: int, seed: int) -> npt.NDArray[np.uint16]:
    made, random = np.empty(parameters, np.uint16), np.random.default_rng(seed)
    for start in range(0, parameters, PIECE):
        values = 0.02 * random.standard_normal(min(PIECE, parameters - start), dtype=np.float32)
        made[start : start + len(values)] = values.view(np.uint32) >> 16
    return made


def step(old: npt.NDArray[np.uint16], share: float, seed: int) -> npt.NDArray[np.uint16]:
    new, random = old.copy(), np.random.default_rng(seed)
    for start in range(0, len(new), PIECE):
        piece = new[start : start + PIECE]
        places = np.flatnonzero(random.random(len(piece), dtype=np.float32) < share)
        piece[places] += random.choice(np.array([1, 0xFFFF], np.uint16), len(places))
    return new


def tensors(values: npt.NDArray[np.uint16]) -> list[bytes]:
    """The hash of each tensor."""
    return [chunk_hash(values[at : at + TENSOR].data.cast("B")) for at in range(0, len(values), TENSOR)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.patches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=int, default=500_000_000)
    parser.add_argument("--changed", type=float, nargs="+", default=[0.001, 0.01, 0.03])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    old = weights(arguments.parameters, 1)
    rows = []
    print(f"{arguments.parameters / 1e6:.0f} M parameters in bf16, {old.nbytes / 1e6:.0f} MB\n")
    print("| changed | patch, MB | times smaller | made in, s | applied in, s | tensors exact |")
    print("|---|---|---|---|---|---|", flush=True)
    for share in arguments.changed:
        new = step(old, share, 2)
        begun = time.perf_counter()
        patch = b"".join(make_patch(old.data.cast("B"), new.data.cast("B")))
        made = time.perf_counter()
        into = np.empty_like(old)
        apply_patch(old.data.cast("B"), memoryview(patch), into.data.cast("B"))
        applied = time.perf_counter()
        exact = sum(ours == theirs for ours, theirs in zip(tensors(into), tensors(new), strict=True))
        row = {
            "changed": share,
            "patch_bytes": len(patch),
            "times_smaller": old.nbytes / len(patch),
            "make_s": made - begun,
            "apply_s": applied - made,
            "tensors": len(tensors(new)),
            "exact": exact,
        }
        rows.append(row)
        print(
            f"| {share:.1%} | {len(patch) / 1e6:.1f} | {row['times_smaller']:.0f} | {row['make_s']:.2f} | "
            f"{row['apply_s']:.2f} | {exact} of {row['tensors']} |",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"parameters": arguments.parameters, "bytes": old.nbytes, "rows": rows}))


if __name__ == "__main__":
    main()
