"""Speed and correctness of a trainer's GPU work: `python -m benchmarks.gpu`, part of `make gpu`.

* bytes: the codecs' kernels give the CPU's bytes, for a difference and for a mean of members; so do those of the quantiser
  of frozen weights, for codes and values.
* bandwidth: bytes that the kernels read and write in a second, against a copy on the device (bar: 80 %).
* attention: one call for all documents against each document alone on the CPU (bf16: within its rounding).
* training: tokens/s and MFU of named sizes, with synthetic rows, against the measured speed of large products (bar: 50 %).
* copied layers: the same beside a frozen model whose layers lie on the GPU, or are copied there from the computer's memory;
  the first loss has equal bits, and gradients differ as much as those of a repeated step (attention on a GPU has no order).
* proofs: time of the proofs of a rollout's hidden states.

Prints a table, or with --json one object; asserts nothing.  Without a GPU it says so, with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from kernels.aggregate import aggregate
from kernels.codecs.format import HEADER_BYTES
from kernels.codecs.ladder import LADDER, Codec
from kernels.quantizer import dequantize, quantize
from kernels.schedule import Place
from kernels.toploc import prove_all
from kernels.weight_format import WeightFormat
from peer.measurements.speeds import GPU_ROWS, LENGTHS, SHAPES, sized
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.formats.training import InnerConfig
from trainer.data.rows import Rows
from trainer.device import device_speed, wait_for
from trainer.models.llama.model import Decoder, Documents, FrozenBase, causal_attention
from trainer.models.llama.prefetcher import LayerPrefetcher, PinnedRoom
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters

VALUES = 1 << 27
MEMBERS = 8
WIDTH = 4096
"""Inputs of the matrix on which the quantiser is measured."""
INNER = InnerConfig(
    lr=1e-4,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
    z_loss=2e-4,
    schedule="wsd",
    warmup_steps=0,
    cooldown=0.2,
    joiner_warmup_steps=0,
)


def seconds_of(device: torch.device, work: Callable[[], object], repeats: int = 10) -> float:
    """Return the median seconds of some work; the first three times warm up."""
    taken = []
    for _ in range(repeats + 3):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[3:])


def codec_kernels(codec: Codec, device: torch.device, count: int) -> list[dict[str, Any]]:
    """Measure bytes and bandwidth of the kernels of a codec."""
    from kernels import codec_triton

    generator = torch.Generator(device).manual_seed(1)
    base, values, residual = (torch.randn(count, device=device, generator=generator) for _ in range(3))
    out, mean = (
        torch.empty(format.encoded_bytes(count), dtype=torch.uint8, device=device)
        for format in (codec.contribution, codec.result)
    )
    expected, wanted, left = codec.contribution.zeros(count), np.empty(mean.numel(), np.uint8), residual.cpu().numpy()
    codec_triton.encode_difference(codec, base, values, residual, out)
    codec.encode_range((base - values).cpu().numpy(), left, expected, count, 0)
    parts, weights = [out.clone() for _ in range(MEMBERS)], [*range(1, MEMBERS + 1)]
    codec_triton.weighted_mean(codec, parts, weights, count, mean)
    aggregate("mean", codec, [expected] * MEMBERS, weights, count, wanted)
    wanted[HEADER_BYTES - 8 : HEADER_BYTES] = 0
    same = bool(np.array_equal(out.cpu().numpy(), np.frombuffer(expected, np.uint8)))
    same_left = codec.feedback is None or bool(np.array_equal(residual.cpu().numpy(), left))
    same_mean = bool(np.array_equal(mean.cpu().numpy(), wanted))  # the timed calls change the residual, and so the bytes
    copied = torch.empty_like(base)
    copy = 8 * count / seconds_of(device, lambda: copied.copy_(base))
    encode_s = seconds_of(device, lambda: codec_triton.encode_difference(codec, base, values, residual, out))
    mean_s = seconds_of(device, lambda: codec_triton.weighted_mean(codec, parts, weights, count, mean))
    moved = (8 if codec.feedback is None else 16) * count + out.numel()
    return [
        {
            "kernel": f"{codec.name}, {name}",
            "same_bytes": equal,
            "gb_per_s": moved / taken / 1e9,
            "over_copy": moved / taken / copy,
        }
        for name, equal, moved, taken in (
            ("encode_difference", same and same_left, moved, encode_s),
            (
                f"weighted_mean of {MEMBERS}",
                same_mean,
                MEMBERS * out.numel() + mean.numel(),
                mean_s,
            ),
        )
    ]


def quantizer_kernels(format: WeightFormat, device: torch.device, count: int) -> list[dict[str, Any]]:
    """Measure bytes and bandwidth of the kernels of a format of frozen weights."""
    generator = torch.Generator(device).manual_seed(1)
    values = torch.randn((count // WIDTH, WIDTH), device=device, generator=generator, dtype=torch.bfloat16)
    matrix, expected = quantize(values, format), quantize(values.cpu(), format)
    out, wanted = torch.empty_like(values), torch.empty(values.shape, dtype=torch.bfloat16)
    dequantize(matrix, out)
    dequantize(expected, wanted)
    same_codes = torch.equal(matrix.codes.cpu(), expected.codes) and torch.equal(matrix.scales.cpu(), expected.scales)
    same_values = torch.equal(out.cpu().view(torch.int16), wanted.view(torch.int16))
    copy = 2 * values.nbytes / seconds_of(device, lambda: out.copy_(values))
    moved = values.nbytes + matrix.codes.nbytes + matrix.scales.nbytes
    rows = []
    for name, equal, work in (
        ("quantize", same_codes, lambda: quantize(values, format)),
        ("dequantize", same_values, lambda: dequantize(matrix, out)),
    ):
        rate = moved / seconds_of(device, work)
        rows.append(
            {
                "kernel": f"weights in {format}, {name}",
                "same_bytes": equal,
                "gb_per_s": rate / 1e9,
                "over_copy": rate / copy,
            }
        )
    return rows


def attention(device: torch.device) -> dict[str, Any]:
    """Return the largest difference of one call for all documents from each document alone, in fp32 on the CPU."""
    ids = np.random.default_rng(0).integers(0, 5, (4, 1024)).cumsum(axis=1) // 600
    query, key, value = (
        torch.randn(4, heads, 1024, 64, generator=torch.Generator().manual_seed(seed))
        for seed, heads in enumerate((8, 2, 2))
    )
    expected = causal_attention(query, key, value, Documents.of(ids, torch.device("cpu")))
    q, k, v = (each.to(device, torch.bfloat16) for each in (query, key, value))
    found = causal_attention(q, k, v, Documents.of(ids, device)).float().cpu()
    return {"largest_difference": float((found - expected).abs().max()), "largest_value": float(expected.abs().max())}


def training(name: str, device: torch.device, rows: int) -> dict[str, Any]:
    """Return the tokens a second and MFU of a named size, or the reason why it does not fit."""
    config, length = ModelConfig(**sized(name).model.model_dump()), LENGTHS[name]
    torch.cuda.reset_peak_memory_stats(device)
    try:
        model = Decoder(config, device)
        torch.nn.init.normal_(model.flat, std=0.02)
        model.compute_dtype = device_speed(device).dtype
        loop = InnerLoop(WholeParameters(model), INNER)
        tokens = np.random.default_rng(0).integers(0, config.vocab, (rows, length + 1), dtype=np.int32)
        taken = seconds_of(device, lambda: loop.step(Rows(tokens), Place(1, 0.0)), 5)
    except torch.OutOfMemoryError:
        return {"model": name, "parameters": config.parameters, "reason": "does not fit into this GPU's memory"}
    rate = rows * length / taken
    return {
        "model": name,
        "parameters": config.parameters,
        "tokens_per_s": rate,
        "mfu": rate * config.flops_per_token(length) / device_speed(device).flops,
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "recomputed": model.recomputed,
    }


def adapted(name: str, format: WeightFormat, device: torch.device, rows: int) -> dict[str, Any]:
    """Measure steps of an adapter beside a frozen model of a named size, with its layers on the device, and copied there."""
    config, length, adapter = ModelConfig(**sized(name).model.model_dump()), LENGTHS[name], AdapterConfig()
    draw, tensors, layers = torch.Generator(device).manual_seed(1), dict[str, torch.Tensor](), list[dict[str, Any]]()
    for place in parameter_layout(config):
        values = torch.randn(place.shape, generator=draw, device=device).mul_(0.02).bfloat16()
        if place.name.endswith("_proj.weight"):
            _, _, layer, matrix = place.name.split(".", 3)
            layers += [{} for _ in range(int(layer) + 1 - len(layers))]
            layers[int(layer)][matrix] = quantize(values, format)
        else:
            tensors[place.name] = values
    scratch, room = values.new_empty(max(math.prod(each.shape) for each in layers[0].values())), PinnedRoom()
    held = {f"model.layers.{number}.{matrix}": each for number, layer in enumerate(layers) for matrix, each in layer.items()}
    host = [{matrix: room.pin(each.to(torch.device("cpu"))) for matrix, each in layer.items()} for layer in layers]
    prefetcher = LayerPrefetcher(host, device)
    whole = FrozenBase(adapter, tensors, held, scratch)
    copied = FrozenBase(adapter, tensors, prefetcher.matrices, scratch, prefetcher=prefetcher)
    tokens, rates, found = np.random.default_rng(0).integers(0, config.vocab, (rows, length + 1), dtype=np.int32), [], []
    for base in (whole, whole, copied):
        model = Decoder(config, device, base=base)
        torch.nn.init.normal_(model.flat, std=0.02, generator=torch.Generator(device).manual_seed(2))
        loop = InnerLoop(WholeParameters(model), INNER, spares_memory=True)
        found.append((loop.step(Rows(tokens), Place(1, 0.0)).read().mean, model.gradient.clone()))
        rates.append(rows * length / seconds_of(device, partial(loop.step, Rows(tokens), Place(1, 0.0)), 5))
    (loss, gradient), (_, again), (other, of_copied) = found
    repeated, apart = (float((each - gradient).norm() / gradient.norm()) for each in (again, of_copied))
    same = {"same_loss": loss == other, "gradient_apart": apart, "gradient_repeated": repeated}
    return {"model": name, "format": format.value, **same, "held_per_s": rates[0], "copied_per_s": rates[2]}


def training_told(found: dict[str, Any]) -> str:
    if "reason" in found:
        return str(found["reason"])
    peak = f"peak {found['peak_bytes'] / 1e9:.1f} GB"
    return (
        f"{found['tokens_per_s']:.0f} tokens/s, {100 * found['mfu']:.0f} % MFU, {peak}, {found['recomputed']} layers again"
    )


def proofs(device: torch.device, tokens: int, dim: int) -> dict[str, Any]:
    hidden = [torch.randn(tokens, dim, device=device).bfloat16() for _ in range(32)]
    return {"rollouts": 32, "tokens": tokens, "dim": dim, "seconds": seconds_of(device, lambda: prove_all(hidden), 5)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["150m", "1b"])
    parser.add_argument("--values", type=int, default=VALUES)
    parser.add_argument("--rows", type=int, default=GPU_ROWS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    speed = device_speed(device)
    name, dtype = torch.cuda.get_device_name(device), str(speed.dtype).removeprefix("torch.")
    found: dict[str, Any] = {
        "device": name,
        "dtype": dtype,
        "matmul_tflops": speed.flops / 1e12,
        "kernels": [],
        "training": [],
    }
    told = sys.stderr if arguments.json else sys.stdout  # as it is found, so that an error leaves what came before
    print(
        f"{name}, {dtype}, {found['matmul_tflops']:.0f} TFLOP/s of large products\n\n| what | result |\n|---|---|", file=told
    )
    measured = chain(
        (codec_kernels(codec, device, arguments.values) for codec in LADDER.values()),
        (quantizer_kernels(format, device, arguments.values) for format in (WeightFormat.INT8, WeightFormat.INT4)),
    )
    for row in chain.from_iterable(measured):
        found["kernels"].append(row)
        same = "the CPU's bytes" if row["same_bytes"] else "OTHER BYTES than the CPU"
        rate = f"{row['gb_per_s']:.0f} GB/s, {100 * row['over_copy']:.0f} % of a copy"
        print(f"| {row['kernel']} | {same}, {rate} |", file=told, flush=True)
    found["attention"] = attention(device)
    print(f"| attention in documents | {found['attention']} |", file=told, flush=True)
    for model in arguments.models:
        row = training(model, device, arguments.rows)
        found["training"].append(row)
        print(f"| training {model}, {row['parameters'] / 1e6:.0f} M | {training_told(row)} |", file=told, flush=True)
    found["adapted"] = []
    for format in WeightFormat:
        row = adapted("1b", format, device, arguments.rows)
        found["adapted"].append(row)
        same = f"the {'same' if row['same_loss'] else 'OTHER'} loss, gradients {row['gradient_apart']:.1e} apart "
        same += f"({row['gradient_repeated']:.1e} if repeated)"
        rates = f"{row['held_per_s']:.0f} tokens/s with layers on the GPU, {row['copied_per_s']:.0f} with copied layers"
        print(f"| adapter beside 1b in {format} | {same}, {rates}, a row at a time |", file=told, flush=True)
    found["proofs"] = proofs(device, 2048, 4096)
    print(f"| proofs | {found['proofs']} |", file=told)
    if arguments.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
