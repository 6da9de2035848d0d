"""Speed of training against transformers and against the arithmetic alone: `python -m benchmarks.training`.

For each model and precision, one optimiser step on the same rows, in turn, each in a process of its own:

* ours: `trainer.optim.InnerLoop`, in the environment of a trainer process; with --compile also with compiled layers
* theirs: transformers' Llama with its own loss and torch's fused AdamW, in the environment of whoever starts this
* tuned: the same in the environment of a trainer process, whose allocator keeps freed memory
* bound: only the products and the attention of such a step, forward and backward

Each figure is the median over the rounds; a ratio is the median of the rounds' ratios, because the speed of a shared
computer drifts.  bf16 is measured where the device trains in it.  Prints a table, or with --json one object
{rows: [{parameters, dtype, over_transformers, over_bound, tokens_per_s}]}; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from kernels.schedule import Place
from peer.trainer_process.process import environment
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from trainer.data.rows import Rows
from trainer.device import device_speed, pick_device, wait_for
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters

SHARED: dict[str, Any] = {"rope_base": 10_000.0, "norm_eps": 1e-5, "tied": True}
MODELS = {
    "21M": SHARED | {"vocab": 8192, "dim": 512, "layers": 6, "heads": 8, "kv_heads": 4, "ffn": 1408},
    "34M": SHARED | {"vocab": 32_000, "dim": 512, "layers": 6, "heads": 8, "kv_heads": 4, "ffn": 1408},
}
INNER = InnerConfig(
    lr=1e-4,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
    z_loss=0.0,
    schedule="wsd",
    warmup_steps=0,
    cooldown=0.2,
    joiner_warmup_steps=0,
)


def ours(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, tokens_bt: np.ndarray, *, compiles: bool
) -> Callable[[], object]:
    model = Decoder(config, device)
    values = torch.empty(config.parameters)
    initial_parameters(config, 0, values.numpy())
    model.flat.copy_(values)
    model.compute_dtype = dtype
    if compiles:
        model.compile_layers()
    loop, rows = InnerLoop(WholeParameters(model), INNER), Rows(tokens_bt)
    return lambda: loop.step(rows, Place(1, 0.0)).read()


def theirs(config: ModelConfig, device: torch.device, dtype: torch.dtype, tokens_bt: np.ndarray) -> Callable[[], object]:
    shape: Any = LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.dim,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        intermediate_size=config.ffn,
        tie_word_embeddings=config.tied,
        use_cache=False,
    )
    shape._attn_implementation = "sdpa"
    model: Any = LlamaForCausalLM(shape)
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=INNER.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(tokens_bt.astype(np.int64)).to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> float:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(input_ids=inputs, labels=targets, shift_labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), INNER.clip_norm)
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    return step


def bound(config: ModelConfig, device: torch.device, dtype: torch.dtype, rows: int, length: int) -> Callable[[], object]:
    """Return a step of products only: three for each weight, and the attention, forward and backward."""
    dim, query, kv, ffn, count = config.dim, config.query_width, config.kv_width, config.ffn, rows * length
    shapes = [(dim, query), (dim, kv), (dim, kv), (query, dim), (dim, ffn), (dim, ffn), (ffn, dim)]

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    products = [(made(count, of), made(into, of), made(count, into)) for of, into in [*shapes, (dim, config.vocab)]]
    q, k, v = (
        made(rows, number, length, config.head_width).requires_grad_()
        for number in (config.heads, config.kv_heads, config.kv_heads)
    )
    mixed_gradient = made(rows, config.heads, length, config.head_width)

    def three(inputs: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        inputs @ weight.T
        gradient @ weight
        gradient.T @ inputs

    def step() -> None:
        for _ in range(config.layers):
            for each in products[:-1]:
                three(*each)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            torch.autograd.grad(mixed, (q, k, v), mixed_gradient)
        three(*products[-1])

    return step


def work_of(kind: str, name: str, dtype: torch.dtype, arguments: argparse.Namespace) -> Callable[[], object]:
    config, device = ModelConfig.from_mapping(MODELS[name]), pick_device(arguments.device)
    rows, length = arguments.rows, arguments.length
    if kind == "bound":
        return bound(config, device, dtype, rows, length)
    tokens_bt = np.random.default_rng(0).integers(0, config.vocab, (rows, length + 1), dtype=np.int32)
    if kind in ("theirs", "tuned"):
        return theirs(config, device, dtype, tokens_bt)
    return ours(config, device, dtype, tokens_bt, compiles=kind == "compiled")


def serve(kind: str, name: str, dtype: torch.dtype, arguments: argparse.Namespace) -> None:
    """Do a step for each line of the standard input, and print its seconds."""
    work, device = work_of(kind, name, dtype, arguments), pick_device(arguments.device)
    for _ in sys.stdin:
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        print(time.perf_counter() - began, flush=True)


class Server:
    """A process that does steps of one kind."""

    def __init__(self, kind: str, name: str, dtype: str, arguments: argparse.Namespace) -> None:
        shape = [f"--{each}={getattr(arguments, each)}" for each in ("rows", "length", "device")]
        command = [sys.executable, "-m", "benchmarks.training", "--serve", kind, "--models", name, "--dtypes", dtype, *shape]
        self._folder = tempfile.TemporaryDirectory()
        variables = dict(os.environ) if kind == "theirs" else environment(os.environ, Path(self._folder.name))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)

    def step(self) -> float:
        """Return the seconds of a step."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


WARM_UP = 2


def measure(name: str, dtype: str, arguments: argparse.Namespace) -> dict[str, Any]:
    kinds = ["ours", "theirs", "tuned", "bound"] + (["compiled"] if arguments.compile else [])
    servers = {kind: Server(kind, name, dtype, arguments) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_number in range(arguments.rounds + WARM_UP):
        for kind, server in servers.items():
            spent = server.step()
            if round_number >= WARM_UP:
                seconds[kind].append(spent)
    for server in servers.values():
        server.end()
    tokens = arguments.rows * arguments.length
    figures: dict[str, Any] = {
        "model": name,
        "parameters": ModelConfig.from_mapping(MODELS[name]).parameters,
        "dtype": dtype,
    }
    for mark in kinds[:1] + kinds[4:]:
        ratios = {
            each: statistics.median(other / own for own, other in zip(seconds[mark], seconds[each], strict=True))
            for each in ("theirs", "tuned", "bound")
        }
        prefix = "" if mark == "ours" else f"{mark}_"
        figures |= {
            f"{prefix}over_transformers": ratios["theirs"],
            f"{prefix}over_tuned_transformers": ratios["tuned"],
            f"{prefix}over_bound": ratios["bound"],
        }
    names = {
        "ours": "",
        "theirs": "transformers_",
        "tuned": "tuned_transformers_",
        "bound": "bound_",
        "compiled": "compiled_",
    }
    return figures | {f"{names[kind]}tokens_per_s": tokens / statistics.median(seconds[kind]) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], help="default: fp32, and what it trains in")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true", help="measure compiled layers, too")
    parser.add_argument("--serve", choices=["ours", "theirs", "tuned", "bound", "compiled"], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.models[0], getattr(torch, arguments.dtypes[0]), arguments)
        return
    trains_in = str(device_speed(pick_device(arguments.device)).dtype).removeprefix("torch.")
    dtypes = arguments.dtypes or list(dict.fromkeys(["float32", trains_in]))
    rows = [measure(name, dtype, arguments) for name in arguments.models for dtype in dtypes]
    kinds = ["", "compiled_"] if arguments.compile else [""]
    print("| model | dtype | tokens/s | transformers | tuned | bound | over transformers | over tuned | over bound |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        for kind in kinds:
            own, ratios = f"{kind}tokens_per_s", ("over_transformers", "over_tuned_transformers", "over_bound")
            speeds = (own, "transformers_tokens_per_s", "tuned_transformers_tokens_per_s", "bound_tokens_per_s")
            print(
                f"| {row['model']} ({row['parameters'] / 1e6:.1f} M) | {row['dtype']}{' compiled' if kind else ''} | "
                f"{' | '.join(f'{row[each]:.0f}' for each in speeds)} | "
                f"{' | '.join(f'{row[kind + each]:.2f}' for each in ratios)} |"
            )
    if arguments.json:
        print(json.dumps({"threads": torch.get_num_threads(), "rows": rows}))


if __name__ == "__main__":
    main()
