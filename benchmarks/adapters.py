"""Loss of adapters that members train in rounds, over one process that trains the same factors on the same rows.

    python -m benchmarks.adapters --base FOLDER --pretrain FOLDER:.py --adapt FOLDER:.pm [--groups main,ranks,...] [--json]

A small decoder on bytes is first trained on one kind of text (`--pretrain`, a folder and the suffix of its files), and kept
in `--base` with both corpora, so that rows can be repeated.  Then it stays frozen, and factors beside it learn another kind
(`--adapt`).  Members run in this process with the trainer's worker, the real codec, reduction and outer step, streamed or
not; only the network is left out.  The reference is one process that averages the gradients of the members' batches in every
step: the same factors at the start, the same rows, as many tokens.  Rates are constant after 20 steps.

`--groups` names the groups of rows (`GROUPS`), each with the reference that it is compared with.  Bars, over the mean of the
seeds: four members at most 0.5 % over the reference; with int4 and four fragments with delay at most 0.3 % more than
without.  "of the gain" is the part of the reference's improvement on the frozen base that is missing.  `--save` keeps
finished runs in a file, so that an interrupted table continues from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import overlap
from benchmarks.builtin_text import pieces
from benchmarks.diloco import numbers
from benchmarks.diloco_bench import data_parallel
from kernels.aggregate import Rule
from peer.corpora.build import build
from peer.corpora.builtin import OPTIONS, builtin_input
from peer.corpora.inputs import Document
from peer.corpora.run_data import RunData
from protocol.formats.adapter import BASE_PREFIX, AdapterConfig, WeightFormatName
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from protocol.run.sections import CORPORA, SOURCE
from trainer.config import PhaseConfig, SourceConfig, TrainingConfig, TrainingData
from trainer.models.llama.initial import initial_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat
from trainer.worker import Worker

F32 = npt.NDArray[np.float32]
CPU = torch.device("cpu")
MODELS = {
    "tiny": ModelConfig(vocab=256, dim=32, layers=1, heads=2, kv_heads=1, ffn=64, rope_base=1e4, norm_eps=1e-5, tied=True),
    "small": ModelConfig(
        vocab=256, dim=128, layers=2, heads=4, kv_heads=2, ffn=352, rope_base=1e4, norm_eps=1e-5, tied=True
    ),
    "10m": ModelConfig(vocab=256, dim=384, layers=6, heads=6, kv_heads=3, ffn=1088, rope_base=1e4, norm_eps=1e-5, tied=True),
}
"""Shapes of the base, on bytes."""
CHUNK = 1 << 16
"""Values of a chunk: the default of runs."""
PRETRAIN_RATE, PRETRAIN_ROWS, PRETRAIN_SEED = 3e-3, 8, 1000
MOST_CHARACTERS = 6_000_000
"""Of a folder's text; a rate of two windows a second cannot read more."""
LONGEST = 1 << 16
"""Steps of the longest run."""


# -- texts and the base ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """Files below a folder whose names end with a suffix."""

    folder: Path
    suffix: str

    @classmethod
    def named(cls, text: str) -> Texts:
        """Return the texts that FOLDER:SUFFIX names."""
        folder, _, suffix = text.rpartition(":")
        return cls(Path(folder), suffix)

    def documents(self) -> list[Document]:
        """Return the texts in pieces, file after file by name, up to `MOST_CHARACTERS`."""
        found, characters = list[Document](), 0
        for path in sorted(path for path in self.folder.rglob("*") if path.suffix == self.suffix and path.is_file()):
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            found += [Document(f"{path}#{number}", piece) for number, piece in enumerate(pieces(text), 1)]
            characters += len(text)
            if characters >= MOST_CHARACTERS:
                break
        return found


def corpus_at(folder: Path, texts: Texts) -> RunData:
    """Return the corpus of bytes in `folder`, built from the texts if it is not there."""
    if not folder.exists():
        build([builtin_input(texts.documents())], OPTIONS, folder)
    return RunData((folder,), {})


@dataclass(frozen=True)
class Rows:
    """Rows of a member's step.  count: their number.  length: predicted tokens of each."""

    count: int = 2
    length: int = 128


def data_of(rows: Rows) -> TrainingData:
    source = SourceConfig(name=SOURCE, corpus=f"{CORPORA}0", source=SOURCE)
    return TrainingData(
        sequence_length=rows.length,
        sequences_per_step=rows.count,
        sources=[source],
        phases=[PhaseConfig(start=0, weights=[1])],
        documents="joined",
    )


def inner_of(rate: float, *, weight_decay: float, warmup_steps: int = 20) -> InnerConfig:
    return InnerConfig(
        lr=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=weight_decay, clip_norm=1.0, z_loss=2e-4, schedule="wsd",
        warmup_steps=warmup_steps, cooldown=0.0, joiner_warmup_steps=10,
    )  # fmt: skip


def pretrain(model: ModelConfig, corpus: RunData, steps: int, folder: Path) -> None:
    """Train a model on a corpus, and write it to `folder` in bf16.  Prints the held-out loss to stderr."""
    files, blocks = (corpus.places.sections[name] for name in ("files", "blocks"))
    rows = Rows(PRETRAIN_ROWS)
    config = TrainingConfig(
        PRETRAIN_SEED,
        model,
        data_of(rows),
        inner_of(PRETRAIN_RATE if model.dim < 256 else PRETRAIN_RATE / 3, weight_decay=0.1, warmup_steps=50),
        LONGEST,
        CHUNK,
        files=files,
        blocks=tuple(blocks),
    )
    worker, theta, began = Worker(config, CPU), np.empty(model.parameters, np.float32), time.process_time()
    initial_parameters(model, PRETRAIN_SEED, theta)
    theta = data_parallel(worker, theta, range(steps), lambda step: 1)
    print(
        f"base of {model.parameters} parameters, {steps * rows.count * rows.length} tokens, "
        f"{time.process_time() - began:.0f} s: held-out loss {worker.evaluate(theta, 1 << 15):.4f}",
        file=sys.stderr,
        flush=True,
    )
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True)
    write_folder(partial, model, [theta], ExportFormat.BF16, context=rows.length, eos=None)
    partial.rename(folder)


# -- a run ---------------------------------------------------------------------------------------------------------------


WHOLE = 0
"""Instead of a rank: the whole model is trained."""
TOGETHER = 0
"""Instead of H: the reference, one process."""
MEMBERS, INNER_STEPS, RANK, CODEC = 4, 20, 32, "int8"


@dataclass(frozen=True)
class Case:
    """One run.

    rank: of the factors, whose scale is 1, or `WHOLE`.  inner_steps: H, or `TOGETHER`.  base: format of the frozen matrices.
    outer: as in `diloco_bench.rule_named`.  rate: of the inner optimiser, for factors; the whole model has a tenth of it.
    """

    seed: int
    rate: float
    members: int = MEMBERS
    inner_steps: int = INNER_STEPS
    rank: int = RANK
    base: WeightFormatName = "bf16"
    codec: str = CODEC
    fragments: int = 1
    delay: int = 0
    outer: str = "auto"
    aggregation: Rule = "mean"

    @property
    def reference(self) -> Case:
        """The run of one process with the same rows."""
        return Case(self.seed, self.rate, self.members, TOGETHER, self.rank, self.base)

    @property
    def plain(self) -> Case:
        """The run with whole rounds in the usual codec."""
        return replace(self, codec=CODEC, fragments=1, delay=0)

    @property
    def name(self) -> str:
        """The run's columns in a table, without its seed."""
        what = "whole model" if self.rank == WHOLE else f"r {self.rank}, {self.base}"
        exchange = f"{self.codec}, F {self.fragments}, delay {self.delay} | {self.outer}, {self.aggregation}"
        return f"{self.members} | {self.inner_steps} | {what} | {self.rate:g} | {exchange}"


@dataclass(frozen=True)
class Settings:
    """Settings of a table.  Runs with other settings are not comparable.  steps: inner steps of every member."""

    size: str = "small"
    pretrain_steps: int = 1000
    steps: int = 300
    rows: Rows = Rows()
    evaluation_tokens: int = 1 << 15


class Bench:
    """The runs of one base and one adapted corpus."""

    def __init__(self, settings: Settings, folder: Path, pretrained: Texts, adapted: Texts) -> None:
        """Open the base and the corpora in `folder`, or make them there."""
        self.settings, self._model = settings, MODELS[settings.size]
        self._base = folder / f"base-{settings.size}-{settings.pretrain_steps}"
        self._adapted = corpus_at(folder / "adapt", adapted)
        self._start_losses: dict[WeightFormatName, float] = {}
        if not self._base.exists():
            pretrain(self._model, corpus_at(folder / "pretrain", pretrained), settings.pretrain_steps, self._base)

    def run(self, case: Case) -> float:
        """Return the held-out loss at the end of a run."""
        config, theta, steps = self._config(case), self.start(case), self.settings.steps
        if case.inner_steps == TOGETHER:
            theta = data_parallel(Worker(config, CPU), theta, range(steps), lambda step: case.members)
        else:
            exchange = overlap.Case(
                case.seed,
                case.inner_steps,
                case.fragments,
                case.delay,
                case.codec,
                case.members,
                outer=case.outer,
                aggregation=case.aggregation,
            )
            run = overlap.StreamedRun(exchange, theta, config, 0)
            for round in range(steps // case.inner_steps * case.fragments):
                run.hold(round, case.members)
        return self.loss(case, theta)

    def loss(self, case: Case, theta: F32) -> float:
        """Return the held-out loss of what a run has trained, nats per byte."""
        return Worker(self._config(case), CPU).evaluate(theta, self.settings.evaluation_tokens)

    def start_loss(self, base: WeightFormatName) -> float:
        """Return the held-out loss of the frozen base in a format: new factors change nothing."""
        if base not in self._start_losses:
            case = Case(0, 1.0, base=base)
            self._start_losses[base] = self.loss(case, self.start(case))
        return self._start_losses[base]

    def start(self, case: Case) -> F32:
        """Return the values from which a run begins: new factors, or the base."""
        config = self._config(case)
        if config.adapter is None:
            return np.concatenate(list(WeightsFolder(self._base).values()))
        theta = np.empty(config.parameters, np.float32)
        initial_parameters(config.model, config.seed, theta, config.adapter)
        return theta

    def _config(self, case: Case) -> TrainingConfig:
        places = self._adapted.places.sections
        is_whole = case.rank == WHOLE
        rate, decay = (case.rate / 10, 0.1) if is_whole else (case.rate, 0.0)
        return TrainingConfig(
            case.seed,
            WeightsFolder(self._base).config,
            data_of(self.settings.rows),
            inner_of(rate, weight_decay=decay),
            LONGEST,
            CHUNK,
            files={**places["files"], **{BASE_PREFIX + path.name: str(path) for path in self._base.iterdir()}},
            blocks=tuple(places["blocks"]),
            adapter=None if is_whole else AdapterConfig(rank=case.rank, alpha=case.rank),
            base_format=case.base,
        )


# -- the table -----------------------------------------------------------------------------------------------------------


GROUPS: Mapping[str, Callable[[Case], list[Case]]] = {
    "main": lambda case: [replace(case, inner_steps=steps) for steps in (30, 20, 10)],
    "streamed": lambda case: [
        replace(case, codec="int4"),
        replace(case, codec="int4", fragments=4, delay=4),
    ],
    "clip": lambda case: [replace(case, aggregation="clip")],
    "members": lambda case: [replace(case, members=members) for members in (8, 1)],
    "whole": lambda case: [replace(case, rank=WHOLE)],
    "ranks": lambda case: [replace(case, rank=rank) for rank in (8, 64)],
    "bases": lambda case: [replace(case, base=base) for base in ("int8", "int4")],
    "outer": lambda case: [replace(case, outer=outer) for outer in ("1/0", "1/0.5", "0.7/0.5", "0.7/0.9")],
    "rates": lambda case: [replace(case, rate=case.rate * factor) for factor in (1 / 3, 3)],
}
"""Groups of rows, from the usual case."""
BAR_PERCENT, STREAMED_BAR_PERCENT = 0.5, 0.3


@dataclass(frozen=True)
class Row:
    """One line of the table.  start: loss of the frozen base.  The other losses are seed by seed.

    plain: losses of the same runs with whole rounds in the usual codec, if the row has a bar over them.
    """

    case: Case
    start: float
    reference: Sequence[float]
    losses: Sequence[float]
    plain: Sequence[float] | None

    @property
    def excess(self) -> list[float]:
        """The loss over the reference, in percent, seed by seed."""
        return [100 * (loss / reference - 1) for loss, reference in zip(self.losses, self.reference, strict=True)]

    @property
    def missing(self) -> float:
        """The part of the reference's gain that is missing, in percent."""
        mean = statistics.fmean
        return 100 * (mean(self.losses) - mean(self.reference)) / (self.start - mean(self.reference))

    @property
    def over_plain(self) -> float | None:
        """The loss over the plain run, in percent."""
        if self.plain is None:
            return None
        return 100 * statistics.fmean(loss / plain - 1 for loss, plain in zip(self.losses, self.plain, strict=True))

    @property
    def holds(self) -> bool | None:
        """True if the bar holds; None for a row without one."""
        if self.case.members != MEMBERS or self.case.rank == WHOLE or self.case.outer != "auto":
            return None
        if self.over_plain is not None:
            return self.over_plain <= STREAMED_BAR_PERCENT
        return statistics.fmean(self.excess) <= BAR_PERCENT

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.case),
            "start": self.start,
            "reference": self.reference,
            "losses": self.losses,
            "excess_percent": self.excess,
            "of_the_gain_percent": self.missing,
            "over_plain_percent": self.over_plain,
            "holds": self.holds,
        }


class Runs:
    """Losses of finished runs, one JSON line each, in a file if one is named."""

    def __init__(self, bench: Bench, path: Path | None) -> None:
        self._bench, self._path, self._settings = bench, path, json.loads(json.dumps(asdict(bench.settings)))
        self._losses: dict[Case, float] = {}
        for line in path.read_text().splitlines() if path and path.exists() else []:
            entry = json.loads(line)
            if entry["settings"] == self._settings:
                self._losses[Case(**entry["case"])] = entry["loss"]

    def loss(self, case: Case) -> float:
        """Return the loss of a run, which is done if it is not finished."""
        if case not in self._losses:
            began = time.process_time()
            self._losses[case] = loss = self._bench.run(case)
            print(
                f"{time.process_time() - began:4.0f} s  seed {case.seed} | {case.name}: {loss:.4f}",
                file=sys.stderr,
                flush=True,
            )
            if self._path:
                with self._path.open("a") as file:
                    entry = {"settings": self._settings, "case": asdict(case), "loss": loss}
                    file.write(json.dumps(entry) + "\n")
        return self._losses[case]

    def row(self, case: Case, seeds: Sequence[int]) -> Row:
        """Return the line of a case."""
        runs = [replace(case, seed=seed) for seed in seeds]
        references, losses = ([self.loss(run) for run in some] for some in ([run.reference for run in runs], runs))
        plain = [self.loss(run.plain) for run in runs] if case.codec != CODEC or case.fragments > 1 else None
        return Row(case, self._bench.start_loss(case.base), references, losses, plain)


def print_table(rows: Sequence[Row]) -> None:
    print(
        "| members | H | trained | rate | exchange | outer step | start | reference | rounds | over it (each seed) ", end=""
    )
    print("| of the gain | over plain | |\n" + 13 * "|---" + "|")
    for row in rows:
        losses = " | ".join(f"{statistics.fmean(each):.4f}" for each in ([row.start], row.reference, row.losses))
        excess = f"{statistics.fmean(row.excess):+.2f} % ({', '.join(f'{each:+.2f}' for each in row.excess)})"
        over = "" if row.over_plain is None else f"{row.over_plain:+.2f} %"
        verdict = {None: "", True: "holds", False: "MISSED"}[row.holds]
        print(f"| {row.case.name} | {losses} | {excess} | {row.missing:.1f} % | {over} | {verdict} |")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.adapters", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="folder of the base and the corpora")
    parser.add_argument("--pretrain", type=Texts.named, required=True, metavar="FOLDER:.SUFFIX")
    parser.add_argument("--adapt", type=Texts.named, required=True, metavar="FOLDER:.SUFFIX")
    parser.add_argument("--size", choices=MODELS, default=Settings.size)
    parser.add_argument("--pretrain-steps", type=int, default=Settings.pretrain_steps)
    parser.add_argument("--steps", type=int, default=Settings.steps, help="inner steps of every member")
    parser.add_argument("--evaluation-tokens", type=int, default=Settings.evaluation_tokens)
    parser.add_argument("--groups", default="main,streamed,clip,members,whole,ranks,bases")
    parser.add_argument("--inner-steps", type=int, default=INNER_STEPS, help="H outside the group main")
    parser.add_argument("--rate", type=float, default=3e-3, help="inner rate of factors")
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    if strange := set(options.groups.split(",")) - set(GROUPS):
        parser.error(f"there is no group {sorted(strange)[0]}; there are {', '.join(GROUPS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    settings = Settings(options.size, options.pretrain_steps, options.steps, evaluation_tokens=options.evaluation_tokens)
    runs = Runs(Bench(settings, options.base, options.pretrain, options.adapt), options.save)
    usual = Case(0, options.rate, inner_steps=options.inner_steps)
    cases = list(dict.fromkeys(case for group in options.groups.split(",") for case in GROUPS[group](usual)))
    if strange := next((case for case in cases if settings.steps % case.inner_steps), None):
        raise SystemExit(f"{settings.steps} steps are not whole rounds of {strange.inner_steps} steps")
    rows = [runs.row(case, options.seeds) for case in cases]
    print(f"base of {MODELS[options.size].parameters} parameters, {settings.steps} steps, seeds {options.seeds}\n")
    print_table(rows)
    if options.json:
        print(json.dumps({"settings": asdict(settings), "rows": [row.as_json() for row in rows]}))
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
