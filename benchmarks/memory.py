"""Estimated memory of a run beside a real peer's memory: `python -m benchmarks.memory`.

For each configuration a real `peer join` trains one round alone, from a run file.  The peak of the peer is the kernel's own
(VmHWM).  The peak of its trainer, all ranks together, is sampled (RssAnon and RssFile), without the memory that it shares
with the peer, which counts there.  Two configurations hide the processor's instructions for bf16.  Prints a table; with
--json the last line is one object with the trainers' figures, in bytes.  Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.neighbours import events
from peer.joining.run_source import create_run
from peer.resources.computer import Need, memory_need, multiplies_bf16
from protocol.formats.model import ModelConfig
from trainer.memory import TrainerSetup
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

LOOK_EVERY_S = 0.01
END_DEADLINE_S = 60.0
PAIRS, BASE = "pairs.jsonl", "base"
ROUNDS = "[rounds]\ninner_steps = {steps}\ngrace_s = 1.0\n"
FP32 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
"""Environment without instructions for bf16, on a computer that has them."""


@dataclass(frozen=True)
class Case:
    """A configuration.

    file: sections of the run file.  options: options of the command.  environment: the variables.  base: shape of the frozen
    model in the folder `BASE`, with random weights; empty if there is none.
    """

    file: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    steps: int = 2
    base: Mapping[str, Any] = field(default_factory=dict)


SMALL = "[model]\ndim = 512\nlayers = 10\n"
PREFERENCES = f'[data]\nformat = "preference"\nfrom = "{PAIRS}"\nsequence_length = 512\nsequences_per_step = 4\n'
WIDE: dict[str, Any] = {"dim": 1024, "ffn": 2816, "heads": 16, "kv_heads": 8}
FROZEN = {"vocab": 256, "dim": 512, "layers": 10, "heads": 8, "kv_heads": 4, "ffn": 1408}


def adapted(name: str, adapter: str = "rank = 32\n", **shape: Any) -> Case:
    """Return a run that trains factors beside a frozen model, in fp32."""
    rows = "[data]\nsequence_length = {}\nsequences_per_step = {}\n"
    data = {"short": rows.format(256, 4), "long": rows.format(4096, 1), "pairs": PREFERENCES}[name]
    return Case(f'[model]\nfrom = "{BASE}"\n[adapter]\n{adapter}{data}', (), FP32, base=FROZEN | shape)


CASES = {
    "adapter of 30M": adapted("short"),
    "adapter of 30M, rank 8": adapted("short", "rank = 8\n"),
    "adapter of 30M, rank 256": adapted("short", "rank = 256\n"),
    "adapter of 30M, attention only": adapted("short", 'targets = "attention"\n'),
    "adapter of 30M, rows of 4096": adapted("long"),
    "adapter of 30M, preferences": adapted("pairs"),
    "adapter of 30M, offload": replace(adapted("short"), options=("--offload", "on")),
    "adapter of 59M": adapted("short", layers=20),
    "adapter of 118M": adapted("short", **WIDE),
    "adapter of 118M, offload": replace(adapted("short", **WIDE), options=("--offload", "on")),
    "adapter of 47M, a vocabulary of 32k": adapted("short", vocab=32_000),
    "adapter of 63M, untied, a vocabulary of 32k": adapted("short", vocab=32_000, tied=False),
    "30M": Case(SMALL),
    "30M, fp32": Case(SMALL, environment=FP32),
    "30M, 2 ranks": Case(SMALL, ("--processes", "2")),
    "30M, 3 ranks, fp32": Case(SMALL, ("--processes", "3"), FP32),
    "30M, offload": Case(SMALL, ("--offload", "on")),
    "30M, Muon": Case(SMALL + '[inner]\noptimizer = "muon"\n'),
    "30M, preferences": Case(SMALL + PREFERENCES),
    "16M, a vocabulary of 128k": Case("[model]\nvocab = 128256\ndim = 128\nlayers = 2\n"),
    "47M, some layers computed again, fp32": Case(
        "[model]\ndim = 512\nlayers = 16\n[data]\nsequence_length = 8192\nsequences_per_step = 1\n", (), FP32, steps=1
    ),
    "20M, all layers computed again, fp32": Case(
        "[model]\ndim = 256\nffn = 8192\nlayers = 3\n[data]\nsequence_length = 16384\nsequences_per_step = 1\n",
        (),
        FP32,
        steps=1,
    ),
}


@dataclass
class Peak:
    """Largest numbers of bytes so far."""

    peer: int = 0
    trainer: int = 0

    def look(self, process: psutil.Process) -> None:
        """Look at a running peer and its trainer."""
        self.peer = max(self.peer, resident(process.pid).get("VmHWM", 0))
        ranks = [resident(child.pid) for child in process.children(recursive=True)]
        self.trainer = max(self.trainer, sum(rank.get("RssAnon", 0) + rank.get("RssFile", 0) for rank in ranks))


def resident(pid: int) -> dict[str, int]:
    """Return the kernel's figures of a process's memory, in bytes; an empty map for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): 1024 * int(count) for name, count, _ in words}


def write_pairs(path: Path) -> None:
    """Write some hundred pairs, long enough for the rows of `PREFERENCES`."""
    text = "the quick brown fox jumps over the lazy dog and " * 9
    pairs = ({"prompt": f"{number} {text[:100]}", "chosen": text[:380], "rejected": text[20:390]} for number in range(300))
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def write_base(folder: Path, model: ModelConfig) -> None:
    """Write a model with random weights as a Hugging Face folder."""
    draws = np.random.default_rng(7)
    sizes = [1 << 20] * (model.parameters >> 20) + [model.parameters & ((1 << 20) - 1)]
    blocks = (0.02 * draws.standard_normal(size, np.float32) for size in sizes if size)
    folder.mkdir()
    write_folder(folder, model, blocks, ExportFormat.BF16, context=8192, eos=None)


def measure(what: str, case: Case, patience_s: float) -> tuple[int, Need, Peak]:
    """Return (parameters, estimate, peak) of one round."""
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        file, log = Path(folder) / "run.toml", Path(folder) / "log"
        write_pairs(Path(folder) / PAIRS)
        if case.base:
            write_base(Path(folder) / BASE, ModelConfig.from_mapping(case.base))
        file.write_text(f'name = "memory"\n{case.file}{ROUNDS.format(steps=case.steps)}')
        manifest = create_run(file, Path(folder) / "peer").manifest
        command = [sys.executable, "-m", "peer", "join", str(file), "--headless", "--log-format", "json", "--local"]
        command += ["--data-dir", str(Path(folder) / "peer"), *case.options]
        environment = {**os.environ, "PEER_RUNTIME_DIR": str(Path(folder) / "runtime"), **case.environment}
        peak, deadline = Peak(), time.monotonic() + patience_s
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None and time.monotonic() < deadline and not is_over(log):
                for _ in range(50):
                    peak.look(psutil.Process(process.pid))
                    time.sleep(LOOK_EVERY_S)
        finally:
            process.terminate()
            process.wait(END_DEADLINE_S)
        if not is_over(log):
            raise SystemExit(f"{what}: no round in {patience_s:.0f} s; the last words: {log.read_text()[-300:]}")
        return manifest.parameters, memory_need(manifest, setup=setup_of(case)), peak


def setup_of(case: Case) -> TrainerSetup:
    """Return the trainer's setup on this CPU."""
    options = dict(zip(case.options[::2], case.options[1::2], strict=True))
    processes, offload = int(options.get("--processes", 1)), options.get("--offload") == "on"
    return TrainerSetup("cpu", processes, multiplies_bf16() and case.environment != FP32, offload)


def is_over(log: Path) -> bool:
    """Return True if a round is committed and its state applied."""
    return any(event["event"] == "StateApplied" and event["rounds"] >= 1 for event in events(log))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="WHAT")
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds that a configuration may take")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print(
        "| what | parameters | peer, estimate MB | peer, peak MB | ratio | trainer, estimate MB | trainer, peak MB | "
        "ratio |\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    rows = []
    for what in arguments.only:
        parameters, need, peak = measure(what, CASES[what], arguments.patience)
        rows.append({"what": what, "estimate": need.trainer, "peak": peak.trainer})
        print(
            f"| {what} | {parameters / 1e6:.1f} M | {need.peer / 1e6:.0f} | {peak.peer / 1e6:.0f} | "
            f"{need.peer / peak.peer:.2f} | {need.trainer / 1e6:.0f} | {peak.trainer / 1e6:.0f} | "
            f"{need.trainer / peak.trainer:.2f} |",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
