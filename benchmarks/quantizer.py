"""Errors and speeds of frozen weights in int8 and int4: `python -m benchmarks.quantizer [--folder FOLDER] [--json]`.

* errors: relative RMS error of the weights (root of the sum of squared errors over the sum of squares), and mean absolute
  error over the RMS weight, on random weights as published in bf16.  Beside them the published methods, with fp32 scales and
  values that are not rounded: int8 by the largest magnitude, and NF4 (Dettmers et al. 2023), both in blocks of 64.
* real weights: the same over all matrices of a Hugging Face folder, if `--folder` names one.
* speeds: values quantised in a second, and bytes of values written in a second, against a copy in bf16.

With one thread times are its processor time, with more threads the time that passes; each is the shortest of the repeats,
because other work can only lengthen it.  `--levels` computes the levels of int4
instead, by Lloyd's algorithm.  Prints tables; with --json the last line is one object.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.quantizer import dequantize, quantize
from kernels.weight_format import BLOCK, LEVELS, STEPS, WeightFormat
from trainer.weights.safetensors_file import tensors_in

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Levels of the NormalFloat of 4 bits (Dettmers et al. 2023, arXiv 2305.14314, appendix E)."""
FORMATS = (WeightFormat.INT8, WeightFormat.INT4)
SHAPE = (1024, 4096)
CELLS = 1 << 14
"""Number of cells into which Lloyd's algorithm sorts ratios."""


class ErrorSums:
    """Sums over the weights and their errors, from which the errors of a whole model follow."""

    def __init__(self) -> None:
        self.squares = self.squared_errors = self.errors = 0.0
        self.count = 0

    def add(self, values: Tensor, read: Tensor) -> None:
        wide = values.to(torch.float64)
        error = read.to(torch.float64) - wide
        self.squares += float(wide.square().sum())
        self.squared_errors += float(error.square().sum())
        self.errors += float(error.abs().sum())
        self.count += values.numel()

    def figures(self) -> dict[str, float]:
        rms = math.sqrt(self.squares / self.count)
        return {"rms": math.sqrt(self.squared_errors / self.squares), "absolute": self.errors / self.count / rms}


def published_int8(values: Tensor) -> Tensor:
    """Return the values of int8 by the largest magnitude in blocks of 64, fp32."""
    blocks = values.to(torch.float32).view(-1, BLOCK)
    step = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / step).round() * step).view(values.shape)


def published_nf4(values: Tensor) -> Tensor:
    """Return the values of NF4 by the largest magnitude in blocks of 64, fp32."""
    blocks = values.to(torch.float32).view(-1, BLOCK)
    largest = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30)
    levels = torch.tensor(NF4)
    return (levels[torch.bucketize(blocks / largest, (levels[1:] + levels[:-1]) / 2)] * largest).view(values.shape)


def ours(format: WeightFormat) -> Callable[[Tensor], Tensor]:
    def read(values: Tensor) -> Tensor:
        out = torch.empty(values.shape, dtype=torch.bfloat16)
        dequantize(quantize(values, format), out)
        return out

    return read


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "int8": ours(WeightFormat.INT8),
    "int8, published": published_int8,
    "int4": ours(WeightFormat.INT4),
    "NF4, published": published_nf4,
}


def errors(what: str, matrices: Iterator[Tensor]) -> dict[str, Any]:
    """Return the errors of each method over some matrices."""
    sums = {method: ErrorSums() for method in METHODS}
    for values in matrices:
        for method, read in METHODS.items():
            sums[method].add(values, read(values))
    return {"weights": what, "count": sums["int8"].count, **{method: each.figures() for method, each in sums.items()}}


def random_weights(freedom: int | None) -> Iterator[Tensor]:
    """Yield a matrix of normal weights, or of Student's t with this many degrees of freedom, rounded to bf16."""
    random = np.random.default_rng(1)
    values = random.standard_normal(SHAPE) if freedom is None else random.standard_t(freedom, SHAPE)
    yield torch.from_numpy((values / 50).astype(np.float32)).to(torch.bfloat16)


def folder_weights(folder: Path) -> Iterator[Tensor]:
    """Yield all matrices of a folder whose rows have whole blocks."""
    for path in sorted(folder.glob("*.safetensors")):
        for tensor in tensors_in(path).values():
            if len(tensor.shape) == 2 and tensor.shape[1] % BLOCK == 0:
                yield torch.from_numpy(np.concatenate([*tensor.values()])).view(tensor.shape)


def speeds(threads: int, repeats: int) -> list[dict[str, Any]]:
    """Return the speed of each operation on a matrix of `SHAPE`, with this many threads."""
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    values = next(random_weights(None))
    out, wide = torch.empty(SHAPE, dtype=torch.bfloat16), torch.empty(SHAPE)

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(repeats):
            began = clock()
            work()
            taken.append(clock() - began)
        return min(taken)

    rows = [{"what": "copy in bf16", "threads": threads, "gb_per_s": out.nbytes / seconds(lambda: out.copy_(values)) / 1e9}]
    for format in FORMATS:
        matrix = quantize(values, format)
        works: list[tuple[str, int, Callable[[], object]]] = [
            ("to bf16", out.nbytes, lambda matrix=matrix: dequantize(matrix, out)),  # type: ignore[misc]
            ("to fp32", wide.nbytes, lambda matrix=matrix: dequantize(matrix, wide)),  # type: ignore[misc]
            ("from bf16", values.nbytes, lambda format=format: quantize(values, format)),  # type: ignore[misc]
        ]
        for name, moved, work in works:
            taken = seconds(work)
            rows.append(
                {
                    "what": f"{format} {name}",
                    "threads": threads,
                    "gb_per_s": moved / taken / 1e9,
                    "values_per_s": values.numel() / taken,
                }
            )
    return rows


def lloyd_levels(blocks: int = 400_000, steps: int = 600) -> tuple[Sequence[float], float]:
    """Return levels of int4 for normal values in blocks, and their relative RMS error; 0 and 1 are fixed."""
    values = np.random.default_rng(0).standard_normal((blocks, BLOCK), np.float32)
    scales = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    cells = np.clip(((values / scales + 1) / 2 * CELLS).astype(np.int64), 0, CELLS - 1).ravel()
    weights = np.bincount(cells, np.broadcast_to(scales.astype(np.float64) ** 2, values.shape).ravel(), CELLS)
    centres = (np.arange(CELLS) + 0.5) / CELLS * 2 - 1
    levels = np.array([*np.linspace(-0.85, -0.09, 7), *NF4[7:]])
    fixed = [7, 15]
    for _ in range(steps):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, centres)
        means = np.bincount(nearest, weights * centres, 16) / np.bincount(nearest, weights, 16)
        means[fixed] = levels[fixed]
        levels = means
    read = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, values / scales)] * scales
    return levels.tolist(), float(np.linalg.norm(values - read) / np.linalg.norm(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantizer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="Hugging Face folder whose matrices are measured")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--levels", action="store_true", help="compute the levels of int4 instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    arguments = parser.parse_args()
    if arguments.levels:
        levels, rms = lloyd_levels()
        rounded = [round(level * STEPS) for level in levels]
        print(f"{', '.join(f'{level:.4f}' for level in levels)}: relative RMS error {rms:.5f}")
        print(f"times {STEPS}, rounded: {rounded}; the format's: {list(LEVELS)}")
        if arguments.json:
            print(json.dumps({"levels": levels, "rms": rms, "rounded": rounded}))
        return
    print("| weights | error | " + " | ".join(METHODS) + " |\n|---|---|" + "---|" * len(METHODS), flush=True)
    sources = {"normal": random_weights(None), "Student's t, 5 degrees of freedom": random_weights(5)}
    if arguments.folder:
        sources[str(arguments.folder)] = folder_weights(arguments.folder)
    found: dict[str, Any] = {"errors": [], "speeds": []}
    for what, matrices in sources.items():
        row = errors(what, matrices)
        found["errors"].append(row)
        for name, key in (("relative RMS", "rms"), ("mean absolute", "absolute")):
            print(f"| {what} | {name} | " + " | ".join(f"{100 * row[method][key]:.3f} %" for method in METHODS) + " |")
    if not arguments.folder:
        print("no --folder: real weights were not measured")
    print("\n| what | threads | GB/s | M values/s |\n|---|---|---|---|")
    for threads in arguments.threads:
        for row in speeds(threads, arguments.repeats):
            found["speeds"].append(row)
            rate = f"{row['values_per_s'] / 1e6:.0f}" if "values_per_s" in row else ""
            print(f"| {row['what']} | {row['threads']} | {row['gb_per_s']:.2f} | {rate} |", flush=True)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
