"""Loss with hostile members under each aggregation rule.

Eight members train a small decoder on the program's own text, round by round, with the trainer's own worker, the real codec,
`kernels.aggregate` and the outer update, from a common warm start; the first f of them are hostile.  The hostile members
know the honest contributions of the round (in a real round they would have to commit to theirs first) and act together.
They claim as many tokens as the others, or `--claims` times as many.  With `--speeds` the honest members take steps in these
proportions (1,2,4: the slowest a quarter of a round's), and so have different numbers of tokens.  Prints the final held-out
loss of every case against the loss of eight honest members under `mean`, and whether the bars hold:

    clip with f = 1, and trimmed or centered_clip with f = 2: at most 2 % above, for each attack of the bars

With one thread and fixed seeds, the same machine gives the same table.  `--save` keeps finished cases in a file, so that an
interrupted run continues from there.

    python -m benchmarks.byzantine [--save FILE] [--rules clip,trimmed] [--seed 0]
    python -m benchmarks.byzantine --claims 1,2,4 --attacks "zeros;inner product, honest norm" --most-hostile 2
    python -m benchmarks.byzantine --speeds 1,2,4 --most-hostile 0
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.text import text_data, text_places
from kernels import outer_step
from kernels.aggregate import Rule, aggregate
from kernels.codecs.format import norm
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from kernels.schedule import Place
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.parameters import NotFinite
from trainer.worker import Task, Worker

F32 = npt.NDArray[np.float32]

MODEL = ModelConfig(vocab=256, dim=32, layers=2, heads=2, kv_heads=1, ffn=96, rope_base=1e4, norm_eps=1e-5, tied=True)
CHUNK = 1 << 13
CODEC = "int8"
MEMBERS = 8
MOST_HOSTILE = 3
WARM_RATE, RATE = 3e-3, 1e-3
OUTER = outer_step.OuterStep(0.7, 0.9)
EVALUATION_TOKENS = 1 << 16
BAR_PERCENT = 2.0
BAR_ATTACKS = ("sign flip x -1000", "constant", "random, large", "random, honest norm", "copied", "delayed")
STALE_ROUNDS = 5
DIVERGED = 0.98 * math.log(MODEL.vocab)
"""As bad as guessing, or worse; training is not followed further."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Settings:
    """Settings of one table.  Cases with other settings are not comparable.

    speeds: the speeds of the members, in turns; the fastest members take all inner steps of a round.
    """

    rounds: int = 12
    inner_steps: int = 20
    warm_steps: int = 200
    sequences: int = 8
    seed: int = 0
    speeds: tuple[int, ...] = (1,)

    def steps_of(self, member: int) -> int:
        """Return the inner steps of this member in a round."""
        speed = self.speeds[member % len(self.speeds)]
        return max(1, self.inner_steps * speed // max(self.speeds))


@dataclass(frozen=True)
class Case:
    """One training run.  claim: the claimed tokens of a hostile member, as a multiple of an honest member's full round."""

    rule: Rule
    attack: str
    hostile: int
    claim: float = 1.0


HONEST = Case("mean", "none", 0)

# -- attacks -----------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """Knowledge of the hostile: the honest differences of this round and earlier ones, and a generator of their own."""

    honest: list[F32]
    past: list[F32]
    draw: np.random.Generator

    @property
    def mean(self) -> F32:
        return np.asarray(np.mean(self.honest, axis=0), dtype=np.float32)

    def noise(self) -> F32:
        return self.draw.standard_normal(self.honest[0].size, dtype=np.float32)


def honest_norm_noise(scene: Scene) -> F32:
    noise = scene.noise()
    return noise * np.float32(norm(scene.honest[0]) / norm(noise))


def little(scene: Scene) -> F32:
    """Forge as in Baruch et al. 2019, "A little is enough": off by 1.5 spreads against the direction in every coordinate."""
    mean, spread = scene.mean, np.std(scene.honest, axis=0).astype(np.float32)
    away: F32 = mean - np.float32(1.5) * spread * np.sign(mean)
    return away


def concentrated(scene: Scene, count: int) -> F32:
    """Forge against the mean, far beyond an honest norm, but in each chunk only in the `count` values that change most."""
    mean = scene.mean
    away = np.zeros_like(mean)
    for start in range(0, mean.size, CHUNK):
        part = mean[start : start + CHUNK]
        most = np.argsort(np.abs(part))[-count:]
        away[start + most] = np.float32(-1e6) * part[most]
    return away


ATTACKS: dict[str, Callable[[Scene], F32]] = {
    "sign flip x -1000": lambda scene: np.float32(-1000) * scene.mean,
    "constant": lambda scene: np.full_like(scene.mean, 1.0),
    "random, large": lambda scene: np.float32(1000) * scene.noise(),
    "random, honest norm": honest_norm_noise,
    "copied": lambda scene: scene.honest[0],
    "delayed": lambda scene: scene.past[-min(len(scene.past), STALE_ROUNDS + 1)],
    "zeros": lambda scene: np.zeros_like(scene.mean),
    "inner product, honest norm": lambda scene: -scene.mean,
    "a little is enough": little,
    "one parameter a chunk": lambda scene: concentrated(scene, 1),
    "as many as a row": lambda scene: concentrated(scene, MODEL.dim),
}
"""What one hostile member contributes; "constant" has no scale of its own, 1 is some hundred times an honest value."""

# -- training ----------------------------------------------------------------------------------------------------------


def config_for(settings: Settings, rate: float) -> TrainingConfig:
    inner = InnerConfig(
        lr=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0, z_loss=2e-4, schedule="wsd",
        warmup_steps=30, cooldown=0.0, joiner_warmup_steps=10,
    )  # fmt: skip
    files, blocks = (text_places().sections[name] for name in ("files", "blocks"))
    return TrainingConfig(
        seed=settings.seed,
        model=MODEL,
        data=text_data(64, settings.sequences),
        inner=inner,
        inner_steps=settings.inner_steps,
        chunk_parameters=CHUNK,
        codec=CODEC,
        files=files,
        blocks=tuple(blocks),
    )


class Diverged(Exception):
    """Raised if a member's mean loss in a round is as bad as guessing."""


class Bench:
    """The warm start that all cases share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config = config_for(settings, RATE)
        self.warm_rounds = settings.warm_steps // settings.inner_steps
        self.start = self._warm_start()
        self.layouts = chunk_layouts(LADDER[CODEC], len(self.start), CHUNK)

    def _warm_start(self) -> F32:
        worker = Worker(config_for(self.settings, WARM_RATE), CPU)
        theta = np.empty(worker.config.model.parameters, dtype=np.float32)
        initial_parameters(MODEL, self.settings.seed, theta)
        worker.work.load(theta)
        for round_number in range(self.warm_rounds):
            for step in range(self.settings.inner_steps):
                rows = Rows.joined([worker.batch(range(*self._rows(round_number, number, step))) for number in range(4)])
                worker.inner.step(rows, Place(round_number * self.settings.inner_steps + step, 0.0))
        return worker.model.flat.numpy().copy()

    def loss(self, theta: F32) -> float:
        return Worker(self.config, CPU).evaluate(theta, EVALUATION_TOKENS)

    def run(self, case: Case) -> float:
        """Return the held-out loss at the end; infinite if training diverged before (`Diverged`)."""
        theta, momentum = self.start.copy(), np.zeros_like(self.start)
        honest = {number: Worker(self.config, CPU) for number in range(case.hostile, MEMBERS)}
        draw = np.random.Generator(np.random.Philox(key=[self.settings.seed, case.hostile]))
        past: list[F32] = []
        try:
            for round_number in range(self.warm_rounds, self.warm_rounds + self.settings.rounds):
                encoded = [self._train(worker, round_number, number, theta) for number, worker in honest.items()]
                decoded = [self._decoded(data) for data in encoded]
                past.append(np.asarray(np.mean(decoded, axis=0), dtype=np.float32))
                scene = Scene(decoded, past, draw)
                hostile = [self._encoded(ATTACKS[case.attack](scene)) for _ in range(case.hostile)]
                full = self.settings.inner_steps * self.config.tokens_per_step
                tokens = [int(case.claim * full)] * case.hostile
                tokens += [self.settings.steps_of(number) * self.config.tokens_per_step for number in honest]
                self._outer_step(case.rule, theta, momentum, [*hostile, *encoded], tokens)
            loss = self.loss(theta)
        except (NotFinite, Diverged):
            return math.inf
        return loss if math.isfinite(loss) else math.inf

    def _rows(self, round_number: int, number: int, step: int) -> tuple[int, int]:
        """Return the rows that a member reads in a step of a round."""
        count = self.settings.sequences
        first = ((round_number * MEMBERS + number) * self.settings.inner_steps + step) * count
        return first, first + count

    def _train(self, worker: Worker, round_number: int, number: int, theta: F32) -> bytearray:
        steps = self.settings.steps_of(number)
        out = bytearray(self.layouts.contribution.payload_bytes)
        rows = [self._rows(round_number, number, step) for step in range(steps)]
        task = Task(round_number, rows, steps, round_number * self.settings.inner_steps)
        if worker.compute(task, theta, memoryview(out), lambda *_: False).loss > DIVERGED:
            raise Diverged
        return out

    def _outer_step(
        self, rule: Rule, theta: F32, momentum: F32, contributions: Sequence[bytearray], tokens: Sequence[int]
    ) -> None:
        codec, layout, averaged = self.layouts
        for span, place in zip(layout, averaged, strict=True):
            result, parts = bytearray(place.size), [memoryview(data)[span.encoded] for data in contributions]
            aggregate(rule, codec, parts, tokens, span.count, result)
            outer_step.apply_result(theta[span.values], momentum[span.values], result, averaged.format, span.count, OUTER)

    def _encoded(self, values: F32) -> bytearray:
        data = bytearray(self.layouts.contribution.payload_bytes)
        layout = self.layouts.contribution
        for span in layout:
            layout.format.encode(values[span.values], memoryview(data)[span.encoded])
        return data

    def _decoded(self, data: bytearray) -> F32:
        values = np.empty(len(self.start), np.float32)
        layout = self.layouts.contribution
        for span in layout:
            layout.format.decode(memoryview(data)[span.encoded], span.count, values[span.values])
        return values


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Cases of the table: every rule against every row of attack, hostile members and claim."""

    rules: Sequence[Rule]
    attacks: Sequence[str]
    claims: Sequence[float]
    most_hostile: int

    @property
    def rows(self) -> list[tuple[str, int, float]]:
        """Rows of attack, hostile members and claim; the honest row first."""
        numbers = range(1, self.most_hostile + 1)
        return [
            ("none", 0, 1.0),
            *((attack, number, claim) for attack in self.attacks for number in numbers for claim in self.claims),
        ]

    @property
    def cases(self) -> list[Case]:
        """All cases, first the honest ones, then by attack, so that an unfinished table is already useful."""
        wanted = [Case(rule, *row) for row in self.rows for rule in self.rules]
        return [HONEST, *(case for case in wanted if case != HONEST)]


class Progress:
    """Finished cases, one JSON line each, in a file if one is named."""

    def __init__(self, settings: Settings, path: Path | None) -> None:
        self._settings, self._path = asdict(settings), path
        self.losses: dict[Case, float] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["settings"] == json.loads(json.dumps(self._settings)):
                    self.losses[Case(**entry["case"])] = entry["loss"]

    def add(self, case: Case, loss: float) -> None:
        self.losses[case] = loss
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({"settings": self._settings, "case": asdict(case), "loss": loss}) + "\n")


def print_table(losses: dict[Case, float], table: Table) -> None:
    rules = table.rules
    print("| attack | f | claim | " + " | ".join(rules) + " |\n|---|---|---|" + "---|" * len(rules))
    for attack, hostile, claim in table.rows:
        shown = [_shown(losses, Case(rule, attack, hostile, claim)) for rule in rules]
        print(f"| {attack} | {hostile} | x{claim:g} | " + " | ".join(shown) + " |")


def _shown(losses: dict[Case, float], case: Case) -> str:
    if case not in losses:
        return ""
    loss, excess = losses[case], excess_percent(losses, case)
    if loss > DIVERGED:
        return "diverged"
    return f"{loss:.3f} ({excess:+.1f} %)"


def excess_percent(losses: dict[Case, float], case: Case) -> float:
    return 100 * (losses[case] / losses[HONEST] - 1)


def print_bars(losses: dict[Case, float]) -> bool:
    """Print which bars hold, among the bars with a case that was run; return True if none is missed."""
    holds = True
    for name, robust, hostile in (
        ("clip, f = 1", ("clip",), 1),
        ("trimmed or centered_clip, f = 2", ("trimmed", "centered_clip"), 2),
    ):
        found = {rule: excesses for rule in robust if (excesses := _worst(losses, rule, hostile))}
        if not found:
            continue
        worst = min((max(excesses), rule) for rule, excesses in found.items())
        holds &= worst[0] <= BAR_PERCENT
        print(
            f"{name}: at worst {worst[0]:+.2f} % ({worst[1]}); bar +{BAR_PERCENT} %: "
            f"{'holds' if worst[0] <= BAR_PERCENT else 'MISSED'}"
        )
    return holds


def _worst(losses: dict[Case, float], rule: str, hostile: int) -> list[float]:
    known = [case for case in losses if case.rule == rule and case.hostile == hostile and case.attack in BAR_ATTACKS]
    return [excess_percent(losses, case) for case in known]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.byzantine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--inner-steps", type=int, default=Settings.inner_steps, help="inner steps in a round (H)")
    parser.add_argument("--warm-steps", type=int, default=Settings.warm_steps)
    parser.add_argument("--sequences", type=int, default=Settings.sequences, help="windows of 64 bytes in an inner step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", default=",".join(get_args(Rule)))
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="separated by semicolons")
    parser.add_argument("--save", type=Path, help="file of finished cases; they are not run again")
    parser.add_argument("--claims", default="1", help="tokens that the hostile claim, in those of an honest member")
    parser.add_argument("--speeds", default="1", help="of the honest members, in turns; the fastest take all inner steps")
    parser.add_argument("--most-hostile", type=int, default=MOST_HOSTILE, help="hostile members at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rules: list[Rule] = [rule for rule in get_args(Rule) if rule in options.rules.split(",")]
    attacks = [attack for attack in ATTACKS if attack in options.attacks.split(";")]
    speeds = tuple(int(speed) for speed in options.speeds.split(","))
    settings = Settings(options.rounds, options.inner_steps, options.warm_steps, options.sequences, options.seed, speeds)
    table = Table(rules, attacks, [float(claim) for claim in options.claims.split(",")], options.most_hostile)
    began, progress = time.monotonic(), Progress(settings, options.save)
    bench = Bench(settings)
    print(f"warm start {bench.loss(bench.start):.4f} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for case in table.cases:
        if case not in progress.losses:
            progress.add(case, bench.run(case))
            print(
                f"{time.monotonic() - began:5.0f} s  {case.rule} {case.attack} f={case.hostile} x{case.claim:g}: "
                f"{progress.losses[case]:.4f} ({excess_percent(progress.losses, case):+.2f} %)",
                file=sys.stderr,
                flush=True,
            )
    print(
        f"{MEMBERS} members, {len(bench.start)} parameters, {settings.rounds} rounds of {settings.inner_steps} steps of "
        f"{64 * settings.sequences} tokens, from {bench.loss(bench.start):.3f}; {time.process_time():.0f} s of one core\n"
    )
    print_table(progress.losses, table)
    print()
    return 0 if print_bars(progress.losses) else 1


if __name__ == "__main__":
    sys.exit(main())
