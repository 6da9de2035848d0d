"""Does low-communication training cost loss?  DiLoCo against data-parallel at equal tokens, on the embedded corpus.

Runs in this process with the trainer's own worker, the real codec, reduction and outer update; only the network is left
out.  Every comparison is between runs that read the same windows: in round r, step s, member k reads lane k.  Data
parallel means one model that averages the members' gradients in every step.

Prints Markdown tables and saves nothing.  `--quick` shows that it works; only the full run says something.

    python -m benchmarks.diloco [--quick] [--seeds 3] [--steps 300] [--inner-steps 30] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from kernels import codec, outer, reduce
from trainer import corpus as corpora
from trainer.config import DataConfig, InnerConfig, ModelConfig, TrainingConfig
from trainer.initial import initial_parameters
from trainer.worker import Task, Worker, contribution_bytes

F32 = npt.NDArray[np.float32]

MODEL = ModelConfig(
    vocab=256, dim=128, layers=4, heads=4, kv_heads=2, ffn=384, rope_base=10_000.0, norm_eps=1e-5, tied=True
)
WARM_RATE, SCRATCH_RATE = 1e-3, 3e-3
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
BARS_PERCENT = {1: 0.5, 2: 1.5, 4: 2.5}
"""Workers to the loss they may add to data-parallel's, from a common warm start."""
CODEC_BAR_PERCENT = 0.3
EVALUATION_TOKENS = 1 << 18
"""More than a peer spends on it: differences of tenths of a percent must show."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recipe:
    """One training run.  workers: members of every round.  exchange: int8 (the real codec) or fp32."""

    workers: int
    outer_rate: float
    outer_momentum: float
    exchange: str = "int8"
    ramp_rounds: int = 0

    def momentum(self, round_number: int) -> float:
        if not self.ramp_rounds:
            return self.outer_momentum
        return self.outer_momentum * min(1.0, round_number / self.ramp_rounds)


def training_config(seed: int, rate: float, inner_steps: int, sequence_length: int) -> TrainingConfig:
    inner = InnerConfig(
        lr=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0, z_loss=2e-4, schedule="wsd",
        warmup_steps=30, stable_steps=1 << 30, total_steps=1 << 31, joiner_warmup_steps=10,
    )  # fmt: skip
    data = DataConfig(corpus="stdlib", sequence_length=sequence_length, sequences_per_step=4, held_out_percent=5)
    return TrainingConfig(
        seed=seed, model=MODEL, data=data, inner=inner, inner_steps=inner_steps, lanes=8, chunk_parameters=1 << 16
    )


def data_parallel(config: TrainingConfig, corpus: corpora.Corpus, theta: F32, rounds: range, workers: int) -> F32:
    """Train one model on all members' windows; the parameters at the end."""
    worker = Worker(config, CPU, corpus)
    worker.load(theta)
    for round_number in rounds:
        for step in range(config.inner_steps):
            rows = np.concatenate([worker.batch(round_number, lane, step) for lane in range(workers)])
            worker.inner.step(rows, round_number * config.inner_steps + step, 1.0)
    return worker.model.flat.numpy().copy()


def diloco(config: TrainingConfig, corpus: corpora.Corpus, theta: F32, rounds: range, recipe: Recipe) -> Iterator[F32]:
    """Train members apart and average after every round; yields the outer parameters after each."""
    theta, momentum = theta.copy(), np.zeros_like(theta)
    members = [Worker(config, CPU, corpus) for _ in range(recipe.workers)]
    encoded = [bytearray(contribution_bytes(len(theta), config.chunk_parameters)) for _ in members]
    for round_number in rounds:
        task_of = [
            Task(round_number, lane, config.inner_steps, round_number * config.inner_steps, 0)
            for lane in range(recipe.workers)
        ]
        tokens = [
            member.compute(task, theta, memoryview(out), lambda *_: False).tokens
            for member, task, out in zip(members, task_of, encoded, strict=True)
        ]
        mu = recipe.momentum(round_number)
        if recipe.exchange == "int8":
            _apply_int8(config, theta, momentum, encoded, tokens, recipe.outer_rate, mu)
        else:
            differences = np.stack([theta - member.model.flat.numpy() for member in members])
            mean = np.asarray(differences.mean(axis=0), dtype=np.float32)
            outer.nesterov_update(theta, momentum, mean, recipe.outer_rate, mu)
        yield theta


def _apply_int8(
    config: TrainingConfig,
    theta: F32,
    momentum: F32,
    encoded: Sequence[bytearray],
    tokens: Sequence[int],
    rate: float,
    mu: float,
) -> None:
    offset = 0
    for start in range(0, len(theta), config.chunk_parameters):
        stop = min(start + config.chunk_parameters, len(theta))
        size = codec.encoded_bytes(stop - start)
        parts = [memoryview(data)[offset : offset + size] for data in encoded]
        result = memoryview(bytearray(size))
        reduce.weighted_mean(parts, tokens, stop - start, result)
        outer.apply_result(theta[start:stop], momentum[start:stop], result, rate, mu)
        offset += size


@dataclass(frozen=True)
class Bench:
    """Sizes of a benchmark run."""

    seeds: int
    steps: int
    inner_steps: int
    sequence_length: int
    corpus: corpora.Corpus

    @property
    def rounds(self) -> int:
        return self.steps // self.inner_steps

    def config(self, seed: int, rate: float) -> TrainingConfig:
        return training_config(seed, rate, self.inner_steps, self.sequence_length)

    def loss(self, theta: F32) -> float:
        return Worker(self.config(0, WARM_RATE), CPU, self.corpus).evaluate(theta, EVALUATION_TOKENS)

    def start(self, seed: int) -> F32:
        theta = np.empty(len(Worker(self.config(seed, WARM_RATE), CPU, self.corpus).model.flat), dtype=np.float32)
        initial_parameters(MODEL, seed, theta)
        return theta

    def last(self, seed: int, rate: float, theta: F32, rounds: range, recipe: Recipe) -> float:
        *_, final = [theta, *diloco(self.config(seed, rate), self.corpus, theta, rounds, recipe)]
        return self.loss(final)

    def baseline(self, seed: int, rate: float, theta: F32, rounds: range, workers: int) -> float:
        return self.loss(data_parallel(self.config(seed, rate), self.corpus, theta, rounds, workers))


def warm_start_losses(bench: Bench, seed: int) -> dict[str, float]:
    """Held-out losses of one seed, all from the same parameters, trained 4-way data-parallel before."""
    scratch = bench.config(seed, SCRATCH_RATE)
    theta = data_parallel(scratch, bench.corpus, bench.start(seed), range(bench.rounds), 4)
    rounds = range(bench.rounds, 2 * bench.rounds)
    losses = {"warm start": bench.loss(theta)}
    for workers in BARS_PERCENT:
        losses[f"data-parallel {workers}"] = bench.baseline(seed, WARM_RATE, theta, rounds, workers)
        recipe = Recipe(workers, OUTER_RATE, OUTER_MOMENTUM)
        losses[f"diloco {workers}"] = bench.last(seed, WARM_RATE, theta, rounds, recipe)
    recipe = Recipe(4, OUTER_RATE, OUTER_MOMENTUM, exchange="fp32")
    losses["diloco 4 fp32"] = bench.last(seed, WARM_RATE, theta, rounds, recipe)
    return losses


def scratch_losses(bench: Bench, seed: int) -> dict[str, float]:
    """From random parameters, where few rounds favour plain averaging: for choosing a demo's recipe, not for the bars."""
    theta, rounds = bench.start(seed), range(bench.rounds)
    recipes = {
        "nesterov 0.7 / 0.9": Recipe(4, 0.7, 0.9),
        "averaging": Recipe(4, 1.0, 0.0),
        "momentum ramp 0.7 / 0 to 0.9 in 100 rounds": Recipe(4, 0.7, 0.9, ramp_rounds=100),
    }
    losses = {"data-parallel 4": bench.baseline(seed, SCRATCH_RATE, theta, rounds, 4)}
    for name, recipe in recipes.items():
        losses[f"diloco 4, {name}"] = bench.last(seed, SCRATCH_RATE, theta, rounds, recipe)
    return losses


def mean_and_spread(runs: Sequence[dict[str, float]], name: str) -> tuple[float, float]:
    values = [run[name] for run in runs]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def excess_percent(runs: Sequence[dict[str, float]], name: str, base: str) -> tuple[float, float]:
    """How much worse `name` is than `base`, seed by seed: mean and spread, in percent of the loss."""
    values = [100 * (run[name] / run[base] - 1) for run in runs]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def print_warm(runs: Sequence[dict[str, float]]) -> bool:
    """The table from the warm start; whether every bar holds."""
    print("\n| from a common warm start | held-out loss | spread | against | excess | bar | |")
    print("|---|---|---|---|---|---|---|")
    print(f"| warm start | {mean_and_spread(runs, 'warm start')[0]:.4f} | | | | | |")
    holds = True
    for workers, bar in BARS_PERCENT.items():
        base, name = f"data-parallel {workers}", f"diloco {workers}"
        loss, spread = mean_and_spread(runs, base)
        print(f"| {base} | {loss:.4f} | {spread:.4f} | | | | |")
        holds &= _print_compared(runs, name, base, bar)
    noise = 100 * mean_and_spread(runs, "diloco 4")[1] / mean_and_spread(runs, "diloco 4")[0]
    bar = min(CODEC_BAR_PERCENT, noise) if len(runs) > 1 else CODEC_BAR_PERCENT
    loss, spread = mean_and_spread(runs, "diloco 4 fp32")
    print(f"| diloco 4, fp32 exchange | {loss:.4f} | {spread:.4f} | | | | |")
    return _print_compared(runs, "diloco 4", "diloco 4 fp32", bar) and holds


def _print_compared(runs: Sequence[dict[str, float]], name: str, base: str, bar: float) -> bool:
    loss, spread = mean_and_spread(runs, name)
    excess, excess_spread = excess_percent(runs, name, base)
    verdict = "holds" if excess <= bar else "MISSED"
    print(
        f"| **{name}** | {loss:.4f} | {spread:.4f} | {base} "
        f"| {excess:+.2f} % ± {excess_spread:.2f} | ≤ +{bar:.2f} % | {verdict} |"
    )
    return excess <= bar


def print_scratch(runs: Sequence[dict[str, float]]) -> None:
    print("\n| from scratch | held-out loss | spread | against data-parallel |\n|---|---|---|---|")
    for name in runs[0]:
        loss, spread = mean_and_spread(runs, name)
        print(f"| {name} | {loss:.4f} | {spread:.4f} | {excess_percent(runs, name, 'data-parallel 4')[0]:+.2f} % |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.diloco", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: shows that it works")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="inner steps of every member")
    parser.add_argument("--inner-steps", type=int, default=30, help="inner steps in a round (H)")
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--skip-scratch", action="store_true", help="only the comparison that has bars")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(options.seeds, options.steps, options.inner_steps, options.sequence_length, corpora.load("stdlib", 5))
    if options.quick:
        bench = replace(bench, seeds=1, steps=12, inner_steps=4, sequence_length=64)
    began, warm, scratch = time.monotonic(), [], []
    for seed in range(bench.seeds):
        warm.append(warm_start_losses(bench, seed))
        if not options.skip_scratch:
            scratch.append(scratch_losses(bench, seed))
        print(f"seed {seed} done after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(
        f"{bench.steps} steps of {4 * bench.sequence_length} tokens a member, H = {bench.inner_steps}, "
        f"{bench.seeds} seed(s), {time.monotonic() - began:.0f} s"
    )
    holds = print_warm(warm)
    if scratch:
        print_scratch(scratch)
    return 0 if holds or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
