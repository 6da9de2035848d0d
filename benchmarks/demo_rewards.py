"""Reward gained by `peer demo --rl` in a number of versions, over seeds, with one trainer in one process.

The run is the demo's own file, and the work is the trainer process's: warm-up rounds, batches made with the weights of the
previous version (proofs included), the learner, the codec, the outer step.  Nothing is verified, and nothing is sent.  A
seed draws the problems and the rollouts' noise, and the trainer's first lease for the warm-up.  At the points given, the
state answers the problems that the demo asks at its end, and so does the state after the warm-up; a line shows both means.

    python -m benchmarks.demo_rewards [--seeds 20] [--first-seed 1] [--per-start 1] [--points 8 16 24] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from benchmarks.diloco_bench import apply_mean
from kernels.outer_step import MEAN
from peer.demo.learning import F32, Comparison, Examiner
from peer.demo.swarm import learning_run
from peer.trainer_process.process import TrainerPlaces
from protocol.chain.leases import LeasePool, lease_terms
from protocol.run.manifest import RunManifest
from protocol.wire.identity import Identity
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters
from trainer.rl.learner import Learner
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutWorker
from trainer.worker import Task, Worker

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gain:
    """Reward gained with a seed after a number of versions.  error: the standard error of the difference."""

    seed: int
    versions: int
    start: float
    end: float
    error: float


@dataclass(frozen=True)
class Recipe:
    """The demo's run, and the folder of its corpus of examples."""

    manifest: RunManifest
    places: TrainerPlaces


class Run:
    """One run of the demo's recipe."""

    def __init__(self, recipe: Recipe, seed: int, folder: Path) -> None:
        manifest = recipe.manifest
        assert manifest.rl is not None
        config = TrainingConfig.from_sections(manifest.trainer_sections() | recipe.places.sections)
        assert config.rl is not None
        self._manifest, self._rl, self._seed, self._folder = manifest, manifest.rl, seed, folder
        self._worker = Worker(config, CPU)
        self._rollouts = RolloutWorker.of(config, CPU, self._worker.tokenizer)
        self._learner = Learner(config.rl, self._worker.work)
        self._layouts = manifest.layouts
        self._out = bytearray(manifest.layouts.contribution.payload_bytes)
        self.theta: F32 = np.empty(manifest.parameters, np.float32)
        self._momentum = np.zeros_like(self.theta)
        initial_parameters(config.model, manifest.seed, self.theta)
        self._draw = np.random.default_rng(seed)
        self.round = 0

    def begin_with(self, theta: F32) -> None:
        """Take the parameters after a warm-up."""
        self.theta[:], self.round = theta, self._rl.warm_rounds
        self._rollouts.keep_version(self.round, self.theta)

    def warm_up(self, first_slot: int) -> None:
        """Run the rounds that read solved examples.

        first_slot: the slot of the first round, which a peer's key draws in a run.
        """
        terms, inner, pool = lease_terms(self._manifest), self._manifest.rounds.inner_steps, LeasePool()
        for _ in range(self._rl.warm_rounds):
            slot = first_slot % terms.spares if self.round == 0 else 0
            task = Task(self.round, pool.lease(slot, terms.rows), inner, self.round * inner)
            pool = pool.after({slot: ((0, terms.rows),)}, terms.rows)
            done = self._worker.compute(task, self.theta, memoryview(self._out), lambda *progress: False)
            self._apply(done.tokens)
        self._rollouts.keep_version(self.round, self.theta)

    def learn(self) -> None:
        """Learn one version from rollouts of the previous version."""
        version = max(self.round - 1, self._rl.warm_rounds)
        paths = [self._batch(version, number) for number in range(self._rl.batches_per_round)]
        task = Task(
            self.round,
            (),
            self._manifest.steps_of(self.round),
            self.round * self._manifest.rounds.inner_steps,
            [path.name for path in paths],
            str(self._folder),
            versions=[version] * len(paths),
        )
        done = self._rollouts.learn(task, self._learner, self.theta, memoryview(self._out), lambda *progress: False)
        self._apply(done.tokens)
        self._rollouts.keep_version(self.round, self.theta)

    def _apply(self, tokens: int) -> None:
        apply_mean(self._layouts, self.theta, self._momentum, [self._out], [tokens], lambda squares: MEAN)
        self.round += 1

    def _batch(self, version: int, number: int) -> Path:
        problems = tuple(int(each) for each in self._draw.choice(1 << 20, self._rl.prompts_per_batch, replace=False))
        path = self._folder / f"{self.round}-{number}"
        run = hashlib.blake2b(f"{self._seed}/{self.round}".encode(), digest_size=32).digest()
        self._rollouts.generate(Assignment(run, version, f"maker {number}", problems, self._rl.group_size), path)
        return path


def starts(recipe: Recipe) -> Callable[[int], F32]:
    """Return the parameters after the warm-up that begins with a slot, made once for each slot."""

    @lru_cache(maxsize=1)
    def start(slot: int) -> F32:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(recipe, 0, Path(folder))
            run.warm_up(slot)
            return run.theta

    return start


def gains(recipe: Recipe, seed: int, theta: F32, points: Sequence[int]) -> Iterator[Gain]:
    """Yield the gain of a seed at each of the points, ascending numbers of versions.

    theta: the parameters after the warm-up.
    """
    examiner = Examiner(recipe.manifest, {})
    with tempfile.TemporaryDirectory() as folder:
        run = Run(recipe, seed, Path(folder))
        run.begin_with(theta)
        start = examiner.measure(run.round, run.theta)
        for versions in range(1, max(points) + 1):
            run.learn()
            if versions in points:
                compared = Comparison(start, examiner.measure(run.round, run.theta))
                yield Gain(seed, versions, start.mean, compared.end.mean, compared.error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo_rewards", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--per-start", type=int, default=1, help="seeds that share a warm-up")
    parser.add_argument("--points", type=int, nargs="+", default=[8, 16, 24])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    (manifest, brought), found = learning_run(Identity.generate()), list[Gain]()
    assert brought is not None and brought.corpora is not None
    recipe = Recipe(manifest, brought.corpora.places)
    start_of = starts(recipe)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        theta = start_of((seed - 1) // options.per_start + 1)
        for gain in gains(recipe, seed, theta, sorted(options.points)):
            found.append(gain)
            ratio = (gain.end - gain.start) / max(1e-9, gain.error)
            print(
                f"seed {gain.seed}  {gain.versions} versions  {gain.start:.3f} -> {gain.end:.3f}  {ratio:.1f} errors",
                flush=True,
            )
    for versions in sorted(options.points):
        of = [gain for gain in found if gain.versions == versions]
        risen = sum(gain.end > gain.start for gain in of)
        print(f"{versions} versions: higher in {risen} of {len(of)}")
    if options.json:
        print(json.dumps([asdict(gain) for gain in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
