"""Speed of encoding, decoding and averaging with each codec (millions of values a second), on one core and on a GPU.

    python -m benchmarks.codec [--values N] [--members K] [--repeats R] [--codecs int8,int4]

Encoding includes error feedback if the codec has it.  If pi-quant (pypiquant 4.1.0) can be imported, a second table compares
it, with one scale for the whole tensor, and our formats without feedback, by the process's processor time.

Figures are medians over the repeats.  Averaging counts input values (members x values).  The GPU's ratio is the achieved
share of its memory speed: the bytes read and written over the bandwidth of a device copy measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from kernels.aggregate import Rule, aggregate
from kernels.codecs.format import Bytes, Floats
from kernels.codecs.ladder import LADDER, Codec
from kernels.outer_step import OuterStep, apply_result


def main() -> None:
    options = argparse.ArgumentParser(description="Throughput of the codecs.")
    options.add_argument("--values", type=int, default=1 << 24)
    options.add_argument("--members", type=int, default=8)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--codecs", type=lambda text: text.split(","), default=[*LADDER])
    args = options.parse_args()
    print(f"{args.values} values, {args.members} members, median of {args.repeats}")
    rates = {name: cpu_rates(LADDER[name], args.values, args.members, args.repeats) for name in args.codecs}
    print("| numpy, one core, M values/s | " + " | ".join(rates) + " |")
    print("|---" * (1 + len(rates)) + "|")
    for row in zip(*rates.values(), strict=True):
        print(f"| {row[0][0]} | " + " | ".join(f"{rate / 1e6:.0f}" for _, rate in row) + " |")
    if importlib.util.find_spec("piquant"):
        print("\n| one core, M values/s | encode | decode | mean |\n|---|---|---|---|")
        for name in ("int8", "int4"):
            for who, measure in (("this program", quantiser_rates), ("pi-quant", pi_quant_rates)):
                rates_of = measure(name, args.values, args.members, args.repeats)
                print(f"| {name}, {who} | " + " | ".join(f"{rate / 1e6:.0f}" for rate in rates_of) + " |")
    gpu([LADDER[name] for name in args.codecs], args.values, args.members, args.repeats)


def seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def cpu_rates(codec: Codec, count: int, members: int, repeats: int) -> list[tuple[str, float]]:
    """Return operations with their values per second of this thread's processor time, which other work does not affect."""
    values = np.random.default_rng(1).standard_normal(count, np.float32)
    sent, averaged = codec.contribution, codec.result
    encoded, result = (np.zeros(format.encoded_bytes(count), np.uint8) for format in (sent, averaged))
    sent.encode(values, encoded)
    decoded, momentum, residual = np.empty(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.float32)
    copies = [encoded.copy() for _ in range(members)]
    aggregate("mean", codec, copies, [1] * members, count, result)

    def encode() -> None:
        codec.encode_range(values.copy(), residual, encoded, count, 0)

    def average(rule: Rule) -> Callable[[], object]:
        return lambda: aggregate(rule, codec, copies, [1] * members, count, result)

    work: list[tuple[str, int, Callable[[], object]]] = [
        ("encode a difference", count, encode),
        ("decode", count, lambda: sent.decode(encoded, count, decoded)),
        ("check", count, lambda: sent.is_sane(encoded, count)),
        ("sum of squares", count, lambda: sent.sum_of_squares(encoded, count)),
        ("mean", count * members, average("mean")),
        ("clip", count * members, average("clip")),
        ("trimmed", count * members, average("trimmed")),
        ("centered_clip", count * members, average("centered_clip")),
        ("outer step", count, lambda: apply_result(decoded, momentum, result, averaged, count, OuterStep(0.7, 0.9))),
    ]
    return [(name, size / seconds(run, repeats, time.thread_time)) for name, size, run in work]


def quantiser_rates(name: str, count: int, members: int, repeats: int) -> list[float]:
    """Return values a second of a format alone: encode, decode, mean of members."""
    codec, values = LADDER[name], np.random.default_rng(1).standard_normal(count, np.float32)
    encoded, decoded = np.zeros(codec.contribution.encoded_bytes(count), np.uint8), np.zeros(count, np.float32)
    codec.contribution.encode(values, encoded)
    copies, result = [encoded.copy() for _ in range(members)], encoded.copy()
    return [
        count / seconds(lambda: codec.contribution.encode(values, encoded), repeats, time.process_time),
        count / seconds(lambda: codec.contribution.decode(encoded, count, decoded), repeats, time.process_time),
        count
        * members
        / seconds(lambda: aggregate("mean", codec, copies, [1] * members, count, result), repeats, time.process_time),
    ]


def pi_quant_rates(name: str, count: int, members: int, repeats: int) -> list[float]:
    """Return the rates of pi-quant with one thread, as `quantiser_rates` does for our formats."""
    from piquant import Context, DataType, ReduceOp, RoundMode

    context, kind, bits = Context(num_threads=1), {"int8": DataType.UINT8, "int4": DataType.UINT4}[name], int(name[3:])
    values, decoded = np.random.default_rng(1).standard_normal(count, np.float32), np.zeros(count, np.float32)
    codes, result = np.zeros(count * bits // 8, np.uint8), np.zeros(count * bits // 8, np.uint8)

    def encode(source: Floats, into: Bytes) -> tuple[float, int]:
        scale, zero = context.compute_quant_params_ptr_float32(source.ctypes.data, kind, count)
        context.quantize_ptr(source.ctypes.data, DataType.F32, into.ctypes.data, kind, count, scale, zero, RoundMode.NEAREST)
        return scale, zero

    scale, zero = encode(values, codes)

    def decode(how: ReduceOp) -> None:
        context.dequantize_ptr(codes.ctypes.data, kind, decoded.ctypes.data, DataType.F32, count, scale, zero, how)

    def mean() -> None:
        for member in range(members):
            decode(ReduceOp.ADD if member else ReduceOp.SET)
        encode(decoded, result)

    return [
        count / seconds(lambda: encode(values, codes), repeats, time.process_time),
        count / seconds(lambda: decode(ReduceOp.SET), repeats, time.process_time),
        count * members / seconds(mean, repeats, time.process_time),
    ]


def gpu(codecs: Sequence[Codec], count: int, members: int, repeats: int) -> None:
    """Measure all codecs on CUDA, if there is a device."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: the GPU kernels were not measured")
        return
    from kernels import codec_triton

    source = torch.randn(count, device="cuda")
    base, copy, residual = torch.zeros_like(source), torch.empty_like(source), torch.zeros_like(source)

    def timed(work: Callable[[], object]) -> float:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return seconds(run, repeats)

    bandwidth = 8 * count / timed(lambda: copy.copy_(source))
    print(f"{'Triton on ' + torch.cuda.get_device_name():40} {'M values/s':>12} {'of memory bandwidth':>20}")
    for codec in codecs:
        sent, result = (
            torch.empty(format.encoded_bytes(count), dtype=torch.uint8, device="cuda")
            for format in (codec.contribution, codec.result)
        )

        def encode(codec: Codec = codec, sent: torch.Tensor = sent) -> None:
            codec_triton.encode_difference(codec, base, source, residual, sent)

        encode()
        copies = [sent.clone() for _ in range(members)]

        def average(codec: Codec = codec, copies: list[torch.Tensor] = copies, result: torch.Tensor = result) -> None:
            codec_triton.weighted_mean(codec, copies, [1] * members, count, result)

        moved = (8 if codec.feedback is None else 16) * count + sent.numel()
        rows: list[tuple[str, int, int, Callable[[], object]]] = [
            (f"{codec.name}, encode a difference", count, moved, encode),
            (f"{codec.name}, weighted mean", count * members, members * sent.numel() + result.numel(), average),
        ]
        for name, size, bytes_moved, work in rows:
            took = timed(work)
            print(f"{name:40} {size / took / 1e6:12.0f} {bytes_moved / took / bandwidth:19.0%}")


if __name__ == "__main__":
    main()
