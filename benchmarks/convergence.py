"""Training apart against training together, with a model of 10 M parameters on a real corpus.

    peer data build --tokenizer bytes CORPUS code=FOLDER ...        (50 MB of text or more)
    python -m benchmarks.convergence CORPUS --save FILE [--json]

1, 2, 4 and 8 members train apart for H = 30 and 100 steps a round, with the real codec and outer step.  They are compared
with one model that averages their gradients in every step, by AdamW and by Muon, with one or several codecs of the ladder
(`--codecs`; if one of them is fp32, the last column shows the cost of each over an exchange in fp32).  All runs of a seed
start from the same parameters, which four members trained together, and read the same rows: in step s, member k reads the
same rows for every H.  The rates of both sides are tuned first, each with two members (H = 30), and the best is used for
all.

Besides the held-out loss, each result is judged by a task: the share of 512 new questions of the form "c=3;f=8;a=5;f?" that
the model answers after a short fine-tuning.  (arXiv 2511.13761 warns that equal losses can hide worse results after
fine-tuning.)

`--save` keeps finished runs and the common start, so that an interrupted table continues.  Asserts nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.diloco_bench import (
    CODEC,
    FP32,
    apply_mean,
    apply_mean_in_fp32,
    data_parallel,
    layouts_for,
    rows_of,
    rule_named,
)
from kernels.schedule import Place
from peer.corpora.folder import MANIFEST
from peer.corpora.run_data import RunData
from protocol.corpora.manifest import read_manifest
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from protocol.run.sections import CORPORA
from trainer.config import PhaseConfig, SourceConfig, TrainingConfig, TrainingData
from trainer.data.rows import Rows
from trainer.device import device_speed
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder, hidden_states
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.worker import Task, Worker

F32 = npt.NDArray[np.float32]
MODEL = ModelConfig(vocab=256, dim=384, layers=6, heads=6, kv_heads=3, ffn=1088, rope_base=1e4, norm_eps=1e-5, tied=True)
CHUNK = 1 << 18
ROWS, LENGTH = 1, 256
"""Rows of a member's step, and their tokens."""
STEPS, WARM_STEPS, WARM_MEMBERS, WARM_RATE = 300, 2000, 4, 1e-3
"""Steps of each member, after the common start of four members that train together by AdamW."""
MOST_STEPS = 4000
"""Steps of the longest run, common start included."""
MEMBERS, LENGTHS, TUNED_MEMBERS, TUNED_LENGTH = (1, 2, 4, 8), (30, 100), 2, 30
RATES = {"adamw": (6.25e-5, 1.25e-4, 2.5e-4), "muon": (2.5e-4, 5e-4, 1e-3)}
EVALUATION_TOKENS = 1 << 16
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One run.  inner_steps: H; 0 for data-parallel.  steps: each member's steps.  codec: the exchange's codec, or fp32."""

    seed: int
    optimizer: str
    rate: float
    members: int
    inner_steps: int
    steps: int = STEPS
    codec: str = CODEC

    def __str__(self) -> str:
        kind = f"H = {self.inner_steps}, {self.codec}" if self.inner_steps else "data-parallel"
        return f"seed {self.seed}, {self.optimizer} {self.rate:g}, {self.members} members, {self.steps} steps, {kind}"


@dataclass(frozen=True)
class Outcome:
    """Result of a run.  loss: held-out, nats per byte.  accuracy: the share of questions answered after fine-tuning."""

    loss: float
    accuracy: float


class Bench:
    """The runs of one corpus."""

    def __init__(self, corpus: Path, save: Path | None) -> None:
        """Open a corpus.  save: the file of finished runs; the common starts are kept beside it."""
        self._save = save
        manifest = read_manifest((corpus / MANIFEST).read_bytes())
        names = [source.name for source in manifest.sources]
        places = RunData((corpus,), {}).places
        self._files, self._blocks = places.sections["files"], tuple(places.sections["blocks"])
        self._data = TrainingData(
            sequence_length=LENGTH,
            sequences_per_step=ROWS,
            sources=[SourceConfig(name=name, corpus=f"{CORPORA}0", source=name) for name in names],
            phases=[PhaseConfig(start=0, weights=[1] * len(names))],
            documents="joined",
        )
        self.dtype = device_speed(CPU).dtype
        self._starts: dict[int, F32] = {}

    def member(self, seed: int, optimizer: str, rate: float, codec: str = CODEC) -> Worker:
        inner = InnerConfig(
            lr=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0, z_loss=2e-4, schedule="wsd",
            warmup_steps=20, cooldown=0.0, joiner_warmup_steps=10, optimizer=optimizer,  # type: ignore[arg-type]
        )  # fmt: skip
        config = TrainingConfig(
            seed, MODEL, self._data, inner, MOST_STEPS, CHUNK, codec, files=self._files, blocks=self._blocks
        )
        return Worker(config, CPU, dtype=self.dtype)

    @cached_property
    def _judge(self) -> Worker:
        return self.member(0, "adamw", 1e-3)

    def start(self, seed: int) -> F32:
        """Return the parameters from which all runs of a seed start."""
        kept = self._save.with_name(f"{self._save.name}.start-{seed}.npy") if self._save else None
        if seed not in self._starts and kept and kept.exists():
            self._starts[seed] = np.load(kept, allow_pickle=False)
        if seed not in self._starts:
            member = self.member(seed, "adamw", WARM_RATE)
            theta = np.empty(member.config.model.parameters, dtype=np.float32)
            initial_parameters(MODEL, seed, theta)
            self._starts[seed] = data_parallel(member, theta, range(WARM_STEPS), lambda step: WARM_MEMBERS)
            print(
                f"the start of seed {seed}: loss {self._judge.evaluate(self._starts[seed], EVALUATION_TOKENS):.4f}, "
                f"accuracy {task_accuracy(self._starts[seed], self.dtype):.3f}",
                file=sys.stderr,
                flush=True,
            )
            if kept:
                np.save(kept, self._starts[seed])
        return self._starts[seed]

    def run(self, case: Case) -> Outcome:
        member, theta = self.member(case.seed, case.optimizer, case.rate), self.start(case.seed)
        if case.inner_steps:
            theta = self._apart(case, theta.copy())
        else:
            theta = data_parallel(member, theta, range(WARM_STEPS, WARM_STEPS + case.steps), lambda step: case.members)
        return Outcome(self._judge.evaluate(theta, EVALUATION_TOKENS), task_accuracy(theta, self.dtype))

    def _apart(self, case: Case, theta: F32) -> F32:
        codec = CODEC if case.codec == FP32 else case.codec
        momentum, layouts, rule = np.zeros_like(theta), layouts_for(theta.size, codec, CHUNK), rule_named("auto", codec)
        members = [self.member(case.seed, case.optimizer, case.rate, codec) for _ in range(case.members)]
        for first in range(WARM_STEPS, WARM_STEPS + case.steps, case.inner_steps):
            encoded, tokens = [bytearray(layouts.contribution.payload_bytes) for _ in members], []
            for number, (member, out) in enumerate(zip(members, encoded, strict=True)):
                rows = [rows_of(member, number, first + step) for step in range(case.inner_steps)]
                task = Task(0, rows, case.inner_steps, first)
                tokens.append(member.compute(task, theta, memoryview(out), lambda *_: False).tokens)
            step = partial(rule, tokens, case.inner_steps)
            if case.codec == FP32:
                differences = [theta - member.model.flat.numpy() for member in members]
                apply_mean_in_fp32(theta, momentum, differences, step, CHUNK)
            else:
                apply_mean(layouts, theta, momentum, encoded, tokens, step)
        return theta


# -- the task ----------------------------------------------------------------------------------------------------------


PAIRS, QUESTIONS, TASK_STEPS, TASK_ROWS = 5, 512, 60, 16
TASK_INNER = InnerConfig(
    lr=5e-4,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.0,
    clip_norm=1.0,
    z_loss=0.0,
    schedule="wsd",
    warmup_steps=5,
    cooldown=0.5,
    joiner_warmup_steps=0,
)


def questions(count: int, seed: int) -> Rows:
    """Return rows such as "c=3;f=8;a=5;f?8", of which only the last byte counts."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        letters, digits = random.permutation(26)[:PAIRS], random.integers(0, 10, PAIRS)
        asked = int(random.integers(PAIRS))
        pairs = ";".join(f"{chr(97 + letter)}={digit}" for letter, digit in zip(letters, digits, strict=True))
        lines.append(f"\n{pairs};{chr(97 + letters[asked])}?{digits[asked]}".encode())
    tokens_bt = np.frombuffer(b"".join(lines), np.uint8).reshape(count, -1)
    counts_bt = np.zeros((count, tokens_bt.shape[1] - 1), np.bool_)
    counts_bt[:, -1] = True
    return Rows(tokens_bt, counts_bt)


def task_accuracy(theta: F32, dtype: torch.dtype) -> float:
    """Return the share of new questions that the model answers after `TASK_STEPS` steps on others."""
    model = Decoder(MODEL, CPU)
    model.flat.copy_(torch.from_numpy(theta))
    model.compute_dtype = dtype
    loop = InnerLoop(WholeParameters(model), TASK_INNER)
    for step in range(TASK_STEPS):
        loop.step(questions(TASK_ROWS, step + 1), Place(step, step / TASK_STEPS)).read()
    rows = questions(QUESTIONS, 0)
    tokens_bt = torch.from_numpy(rows.tokens_bt.astype(np.int64))
    with torch.no_grad():
        hidden_bd = hidden_states(model, tokens_bt[:, :-1])[:, -1].float()
        answers_b = (hidden_bd @ model.output_weight.T).argmax(dim=1)
    return float((answers_b == tokens_bt[:, -1]).float().mean())


# -- the table ---------------------------------------------------------------------------------------------------------


class Progress:
    """Finished runs, one JSON line each, in a file if one is named."""

    def __init__(self, corpus: Path, path: Path | None) -> None:
        root = hashlib.sha256((corpus / MANIFEST).read_bytes()).hexdigest()[:16]
        self._settings = {"warm": WARM_STEPS, "rows": ROWS, "length": LENGTH, "corpus": root}
        self._path = path
        self.outcomes: dict[Case, Outcome] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["settings"] == self._settings:
                    self.outcomes[Case(**entry["case"])] = Outcome(**entry["outcome"])

    def add(self, case: Case, outcome: Outcome) -> None:
        self.outcomes[case] = outcome
        if self._path:
            entry = {"settings": self._settings, "case": asdict(case), "outcome": asdict(outcome)}
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


@dataclass(frozen=True)
class Plan:
    """Runs of a table: seeds, optimisers, members and lengths of rounds."""

    seeds: Sequence[int]
    optimizers: Sequence[str]
    members: Sequence[int]
    lengths: Sequence[int]
    steps: int
    codecs: Sequence[str]

    def tuning(self, optimizer: str, *, apart: bool) -> list[Case]:
        """Return the runs from which a rate is chosen."""
        length = TUNED_LENGTH if apart else 0
        return [Case(self.seeds[0], optimizer, rate, TUNED_MEMBERS, length) for rate in RATES[optimizer]]

    def tuned(self, outcomes: dict[Case, Outcome], optimizer: str, *, apart: bool) -> float:
        """Return the rate with the lowest loss."""
        return min(self.tuning(optimizer, apart=apart), key=lambda case: outcomes[case].loss).rate

    def rows(self, outcomes: dict[Case, Outcome]) -> Iterator[tuple[Case, Case]]:
        """Yield each run apart with the run together that is compared with it; the rates are tuned for both."""
        for optimizer in self.optimizers:
            together, apart = (self.tuned(outcomes, optimizer, apart=each) for each in (False, True))
            for seed in self.seeds:
                for members in self.members:
                    for length in self.lengths:
                        for codec in self.codecs:
                            case = Case(seed, optimizer, apart, members, length, self.steps, codec)
                            yield case, replace(case, rate=together, inner_steps=0, codec=CODEC)


def complete(cases: Sequence[Case], progress: Progress, run: Callable[[Case], Outcome]) -> None:
    """Do the unfinished runs."""
    for case in dict.fromkeys(cases):
        if case not in progress.outcomes:
            began = time.monotonic()
            progress.add(case, run(case))
            outcome = progress.outcomes[case]
            print(
                f"{time.monotonic() - began:5.0f} s  {case}: loss {outcome.loss:.4f}, accuracy {outcome.accuracy:.3f}",
                file=sys.stderr,
                flush=True,
            )


def table_of(plan: Plan, outcomes: dict[Case, Outcome]) -> list[dict[str, Any]]:
    """Return one entry for each run apart."""
    return [
        {
            **asdict(apart),
            "together_rate": together.rate,
            "loss": outcomes[apart].loss,
            "together_loss": outcomes[together].loss,
            "excess_percent": 100 * (outcomes[apart].loss / outcomes[together].loss - 1),
            "over_fp32_percent": 100 * (outcomes[apart].loss / plain.loss - 1) if plain else None,
            "accuracy": outcomes[apart].accuracy,
            "together_accuracy": outcomes[together].accuracy,
        }
        for apart, together in plan.rows(outcomes)
        for plain in [outcomes.get(replace(apart, codec=FP32))]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--optimizers", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--members", nargs="+", type=int, default=list(MEMBERS))
    parser.add_argument("--inner-steps", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of every member, whole rounds")
    parser.add_argument("--codecs", nargs="+", default=[CODEC], help="of the exchange; fp32 is one, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lengths, steps = arguments.inner_steps, arguments.steps
    if any(steps % length for length in lengths) or steps > MOST_STEPS - WARM_STEPS:
        parser.error(f"{steps} steps are not whole rounds, or more than {MOST_STEPS - WARM_STEPS}")
    plan = Plan(arguments.seeds, arguments.optimizers, arguments.members, lengths, steps, arguments.codecs)
    bench, progress = Bench(arguments.corpus, arguments.save), Progress(arguments.corpus, arguments.save)
    for optimizer in plan.optimizers:
        for apart in (False, True):
            complete(plan.tuning(optimizer, apart=apart), progress, bench.run)
    complete([case for pair in plan.rows(progress.outcomes) for case in pair], progress, bench.run)
    rows = table_of(plan, progress.outcomes)
    print(
        "| optimiser | members | steps | H | codec | rates | together | apart | excess | accuracy, together | apart ", end=""
    )
    print("| over fp32 |\n" + 12 * "|---" + "|")
    for row in rows:
        over = "" if row["over_fp32_percent"] is None else f"{row['over_fp32_percent']:+.2f} %"
        print(
            f"| {row['optimizer']} | {row['members']} | {row['steps']} | {row['inner_steps']} | {row['codec']} "
            f"| {row['together_rate']:g}, {row['rate']:g} | "
            f"{row['together_loss']:.4f} | {row['loss']:.4f} | {row['excess_percent']:+.2f} % | "
            f"{row['together_accuracy']:.3f} | {row['accuracy']:.3f} | {over} |"
        )
    if arguments.json:
        print(json.dumps({"parameters": MODEL.parameters, "dtype": str(bench.dtype), "rows": rows}))


if __name__ == "__main__":
    main()
