"""Token-level measurements for `benchmarks.evidence`: honest peers and cheats, judged by validators of each precision.

In runs of adapters, cheats that round weights round those of the frozen model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.detection import run_of
from benchmarks.detection_adapters import ADAPTERS
from benchmarks.detection_forgeries import Steered, at_temperature
from benchmarks.detection_peers import FAMILIES, GROUP, ME, RUN, TOKENIZER, VERSION, Peer, Run
from kernels.toploc import Mismatch
from protocol.formats.model import ModelConfig, parameter_layout
from trainer.rl.rollout import Rollout
from trainer.rl.verification import Assignment, Choices, Verifier

FULL, HALF = torch.float32, torch.bfloat16
PRECISIONS = {"float32": FULL, "bfloat16": HALF}
TEMPERATURE, WITHIN = 0.98, 0.05


@dataclass(frozen=True)
class Measurements:
    """Measurements of one peer's rollouts by one validator.

    shortfalls, densities: one for each token that the model made.  lengths: number of these tokens of each rollout.
    mantissas: mean difference of mantissas of each chunk.  chunks: number of chunks of each rollout.
    """

    shortfalls: NDArray[np.float64]
    densities: NDArray[np.float64]
    lengths: NDArray[np.int64]
    mantissas: NDArray[np.float64]
    chunks: NDArray[np.int64]


class Meter(Verifier):
    """Verifier that keeps the measurements of each token."""

    def measure(self, rollouts: Sequence[Rollout], at_once: int = 8) -> Measurements:
        assignment = Assignment(RUN, VERSION, ME, tuple({each.problem for each in rollouts}), GROUP)
        found: list[tuple[list[Mismatch], Choices]] = []
        for start in range(0, len(rollouts), at_once):
            found += self._measure(assignment, rollouts[start : start + at_once])
        means = [[mismatch.mantissa_mean for mismatch in mismatches] for mismatches, _ in found]
        return Measurements(
            np.concatenate([choices.shortfalls.double().numpy() for _, choices in found]),
            np.concatenate([choices.densities.double().numpy() for _, choices in found]),
            np.array([len(choices.tokens) for _, choices in found]),
            np.array([mean for each in means for mean in each]),
            np.array([len(each) for each in means]),
        )


def by_channel(config: ModelConfig, theta: NDArray[np.float32], levels: int) -> NDArray[np.float32]:
    """Round the layers' matrices to `levels` steps on each side of 0, with a scale for each output channel."""

    def rounded(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        scale = np.abs(rows).max(axis=1, keepdims=True) / levels
        return np.asarray(np.rint(rows / np.where(scale > 0, scale, 1)) * scale)

    return _changed(config, theta, rounded)


def in_fp8(config: ModelConfig, theta: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round the layers' matrices to e4m3, with a scale for each output channel."""

    def rounded(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        values = torch.from_numpy(rows)
        scale = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 448
        return np.asarray(((values / scale).to(torch.float8_e4m3fn).float() * scale).numpy())

    return _changed(config, theta, rounded)


def _changed(
    config: ModelConfig, theta: NDArray[np.float32], change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    changed = theta.copy()
    for place in parameter_layout(config):
        if len(place.shape) == 2 and "layers." in place.name:
            rows = changed[place.offset : place.offset + place.count].reshape(place.shape)
            rows[:] = change(rows)
    return changed


def peers(run: Run) -> Iterator[tuple[str, str, Peer]]:
    """Yield (name, precision of the products, peer); names of honest peers begin with "honest"."""
    weights = run.theta if run.frozen is None else run.frozen.weights
    roundings = {
        "int8 per channel": by_channel(run.config, weights, 127),
        "fp8 e4m3": in_fp8(run.config, weights),
        "int4 per channel": by_channel(run.config, weights, 7),
    }
    for precision, dtype in PRECISIONS.items():
        options: dict[str, Any] = {"dtype": dtype}
        yield "honest", precision, Peer(run, **options)
        yield "honest, batch of 5, pieces of 7", precision, Peer(run, slots=5, prefill_tokens=7, **options)
        for name, flat in roundings.items():
            frozen = None if run.frozen is None else replace(run.frozen, weights=flat)
            theirs = replace(run, theta=flat) if frozen is None else replace(run, frozen=frozen)
            yield name, precision, Peer(theirs, **options)
        yield f"temperature {TEMPERATURE}", precision, Peer(run, choice=at_temperature(TEMPERATURE), **options)
        yield f"steering within {WITHIN}", precision, Peer(run, choice=Steered(WITHIN), **options)


def collect(family: str, length: int, honest: int, cheats: int, folder: Path, only: str = "") -> None:
    """Measure every peer of a family that is not in the folder yet."""
    run = run_of(family, length)
    meters = {name: Meter(run.model(dtype), run.environment, TOKENIZER, run.rl) for name, dtype in PRECISIONS.items()}
    for name, precision, peer in peers(run):
        paths = {validator: file_of(folder, family, length, name, precision, validator) for validator in meters}
        if only not in f"{name} {precision}" or all(path.exists() for path in paths.values()):
            continue
        began = time.process_time()
        rollouts = peer.rollouts(honest if name.startswith("honest") else cheats)
        for validator, path in paths.items():
            found = meters[validator].measure(rollouts)
            np.savez(path, **vars(found))
            rate = found.shortfalls.sum() / found.densities.sum()
            share = (found.shortfalls > 0).sum() / found.densities.sum()
            print(
                f"{family} {length} {name} in {precision}, validator {validator}: {len(found.shortfalls)} tokens, shortfall "
                f"{rate:.2e}, exchanges {share:.2e}, mantissas {found.mantissas.mean():.3f} of at most "
                f"{found.mantissas.max():.2f}; {time.process_time() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )


def file_of(folder: Path, family: str, length: int, name: str, precision: str, validator: str) -> Path:
    return folder / f"{family}+{length}+{name.replace(' ', '_')}+{precision}+{validator}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence_peers", description=__doc__)
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES, *ADAPTERS], default=list(FAMILIES))
    parser.add_argument("--lengths", type=int, nargs="+", default=[512])
    parser.add_argument("--honest", type=int, default=96, metavar="N", help="rollouts of each honest peer")
    parser.add_argument("--cheats", type=int, default=32, metavar="N", help="rollouts of each cheat")
    parser.add_argument("--only", default="", help="peers with this text in their name")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        for length in arguments.lengths:
            for family in arguments.families:
                collect(family, length, arguments.honest, arguments.cheats, arguments.folder, arguments.only)


if __name__ == "__main__":
    main()
