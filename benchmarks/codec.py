"""How fast one core encodes, decodes and averages (millions of values a second), and the GPU where there is one.

    python -m benchmarks.codec [--values N] [--members K] [--repeats R]

Medians over the repeats.  Averaging counts input values (members x values).  The GPU's ratio is against what its memory
could move: the bytes read and written over the bandwidth of a device copy measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from kernels import codec
from kernels.aggregate import centered_clip, clipped_mean, trimmed_mean, weighted_mean
from kernels.outer_step import apply_result


def main() -> None:
    options = argparse.ArgumentParser(description="Throughput of the int8 codec.")
    options.add_argument("--values", type=int, default=1 << 24)
    options.add_argument("--members", type=int, default=8)
    options.add_argument("--repeats", type=int, default=7)
    args = options.parse_args()
    print(f"{args.values} values, {args.members} members, median of {args.repeats}")
    print(f"{'numpy, one core':24} {'M values/s':>12}")
    for name, rate in cpu_rates(args.values, args.members, args.repeats):
        print(f"{name:24} {rate / 1e6:12.0f}")
    gpu(args.values, args.members, args.repeats)


def seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def cpu_rates(count: int, members: int, repeats: int) -> list[tuple[str, float]]:
    """(what, values per second of this thread's processor time): what else runs on the computer does not count."""
    values = np.random.default_rng(1).standard_normal(count, np.float32)
    encoded = np.empty(codec.encoded_bytes(count), np.uint8)
    codec.encode(values, encoded)
    decoded, momentum, result = np.empty(count, np.float32), np.zeros(count, np.float32), np.empty_like(encoded)
    copies = [encoded.copy() for _ in range(members)]
    work: list[tuple[str, int, Callable[[], object]]] = [
        ("encode", count, lambda: codec.encode(values, encoded)),
        ("decode", count, lambda: codec.decode(encoded, count, decoded)),
        ("check", count, lambda: codec.is_sane(encoded, count)),
        ("norm", count, lambda: codec.norm(values)),
        ("weighted mean", count * members, lambda: weighted_mean(copies, [1] * members, count, result)),
        ("clip", count * members, lambda: clipped_mean(copies, [1] * members, count, result)),
        ("trimmed", count * members, lambda: trimmed_mean(copies, [1] * members, count, result)),
        ("centered_clip", count * members, lambda: centered_clip(copies, [1] * members, count, result)),
        ("outer step", count, lambda: apply_result(decoded, momentum, encoded, 0.7, 0.9)),
    ]
    return [(name, size / seconds(run, repeats, time.thread_time)) for name, size, run in work]


def gpu(count: int, members: int, repeats: int) -> None:
    """The same on CUDA, if there is a device."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: the GPU kernels were not measured")
        return
    from kernels import codec_triton

    source = torch.randn(count, device="cuda")
    base = torch.zeros_like(source)
    copy = torch.empty_like(source)
    encoded = torch.empty(codec.encoded_bytes(count), dtype=torch.uint8, device="cuda")
    codec_triton.encode_difference(base, source, encoded)
    copies = [encoded.clone() for _ in range(members)]
    result = torch.empty_like(encoded)

    def timed(work: Callable[[], object]) -> float:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return seconds(run, repeats)

    bandwidth = 8 * count / timed(lambda: copy.copy_(source))
    print(f"{'Triton on ' + torch.cuda.get_device_name():40} {'M values/s':>12} {'of memory bandwidth':>20}")
    payload = codec.encoded_bytes(count)
    rows: list[tuple[str, int, int, Callable[[], object]]] = [
        ("encode a difference", count, 8 * count + payload, lambda: codec_triton.encode_difference(base, source, encoded)),
        (
            "weighted mean",
            count * members,
            (members + 1) * payload,
            lambda: codec_triton.weighted_mean(copies, [1] * members, count, result),
        ),
    ]
    for name, size, moved, work in rows:
        took = timed(work)
        print(f"{name:40} {size / took / 1e6:12.0f} {moved / took / bandwidth:19.0%}")


if __name__ == "__main__":
    main()
