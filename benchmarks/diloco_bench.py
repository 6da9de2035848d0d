"""Training apart, as in a swarm, and data-parallel training, from a common warm start, for `benchmarks.diloco`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.text import text_data, text_places
from kernels import outer_step
from kernels.aggregate import Rule, aggregate, agreement_of, weighted_median
from kernels.codecs.format import Format, Squares
from kernels.codecs.ladder import BF16, INT2, INT4, INT8, LADDER, TOP64, TOP256, Codec
from kernels.layout import Layouts, chunk_layouts
from kernels.outer_step import OuterStep, automatic
from kernels.schedule import Place
from protocol.formats.model import ModelConfig
from protocol.formats.training import InnerConfig
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.worker import Task, Worker

F32 = npt.NDArray[np.float32]
OuterRule = Callable[[Sequence[int], int, Fraction], OuterStep]
"""From the members' tokens, H, and how far their differences agree, to rate and momentum."""
MODEL = ModelConfig(vocab=256, dim=48, layers=2, heads=2, kv_heads=1, ffn=144, rope_base=1e4, norm_eps=1e-5, tied=True)
CHUNK = 1 << 14
CODEC = "int8"
"""Codec of the tables' rows."""
FP32 = "fp32"
"""Instead of a codec: differences are averaged as they are."""
FORMATS: dict[str, Format] = {
    "int8": INT8,
    "int4": INT4,
    "int2": INT2,
    "top64": TOP64,
    "top256": TOP256,
    "bf16": BF16,
}
WARM_MEMBERS = 4
WARM_RATE, RATE = 3e-3, 1e-3
MEMBERS = (1, 2, 4, 8)
MOST = max(MEMBERS)
WAVE = 0
"""Instead of a number of members: they come and go."""
WAVE_ROUNDS = 30
"""Length of a wave, where the run has so many rounds."""
BAR_PERCENT = 0.5
LONGEST = 4600
"""Steps of a run, warm start included."""
LONG = 300
"""H from which a run has fewer rounds."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Settings:
    """Settings of one table.  Runs with other settings are not comparable.  Steps are inner steps of every member."""

    steps: int = 600
    rounds: int = 20
    """At least so many with H below `LONG`."""
    long_rounds: int = 8
    """At least so many with longer rounds."""
    warm_steps: int = 600
    sequences: int = 8
    sequence_length: int = 64
    evaluation_tokens: int = 1 << 17
    """More than a peer spends on it: differences of tenths of a percent must show."""

    def steps_of(self, inner_steps: int) -> int:
        """Return the steps of a run with H = `inner_steps`: whole rounds."""
        return max(self.steps // inner_steps, self.rounds if inner_steps < LONG else self.long_rounds) * inner_steps

    def config(self, seed: int, rate: float) -> TrainingConfig:
        """Return a configuration with one round as long as the longest run."""
        inner = InnerConfig(
            lr=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0, z_loss=2e-4, schedule="wsd",
            warmup_steps=30, cooldown=0.0, joiner_warmup_steps=10,
        )  # fmt: skip
        files, blocks = (text_places().sections[name] for name in ("files", "blocks"))
        return TrainingConfig(
            seed,
            MODEL,
            text_data(self.sequence_length, self.sequences),
            inner,
            LONGEST,
            chunk_parameters=CHUNK,
            codec=CODEC,
            files=files,
            blocks=tuple(blocks),
        )


QUICK = Settings(steps=12, rounds=2, warm_steps=8, sequences=2, evaluation_tokens=1 << 12)


@dataclass(frozen=True)
class Case:
    """One run.

    members: their number, or `WAVE`.  steps: the steps after which the held-out loss is measured.  inner_steps: H; 0 if it
    makes no difference.  outer: "auto", "RATE/MOMENTUM", or "" for data-parallel.  exchange: the codec as in `codec_of`, or
    fp32.  rate: the rate of the inner optimiser.  aggregation: the rule, unless the exchange is in fp32.
    """

    seed: int
    members: int
    steps: tuple[int, ...]
    inner_steps: int = 0
    outer: str = ""
    exchange: str = CODEC
    rate: float = RATE
    aggregation: Rule = "mean"

    def __str__(self) -> str:
        kind = f"diloco {self.outer} {self.exchange} {self.aggregation}" if self.outer else "data-parallel"
        return f"seed {self.seed}, {row_name(self.members)}, H {self.inner_steps}, {kind}, rate {self.rate:g}"


def row_name(members: int) -> str:
    return f"1 to {MOST} and back" if members == WAVE else str(members)


def size_in(members: int, round_number: int, rounds: int) -> int:
    """Return the number of members in a round of a run of `rounds` rounds."""
    if members != WAVE:
        return members
    length = min(WAVE_ROUNDS, rounds)
    place, top = round_number % length, length // 2
    height = place / top if place <= top else (length - 1 - place) / max(1, length - 1 - top)
    return 1 + round((MOST - 1) * height)


def codec_of(exchange: str) -> Codec:
    """Return a codec of the ladder by its name, or CONTRIBUTION[:FEEDBACK]/RESULT with formats, as in int4:1/int8.

    Raises ValueError.
    """
    if exchange in LADDER:
        return LADDER[exchange]
    sent, _, result = exchange.partition("/")
    sent, _, feedback = sent.partition(":")
    if sent not in FORMATS or result not in FORMATS:
        raise ValueError(f"{exchange} is neither one of {', '.join(LADDER)}, nor two of {', '.join(FORMATS)}")
    return Codec("int8", FORMATS[sent], FORMATS[result], float(feedback) if feedback else None)


def layouts_for(parameters: int, exchange: str = CODEC, chunk: int = CHUNK) -> Layouts:
    return chunk_layouts(codec_of(exchange), parameters, chunk)


def rule_named(name: str, exchange: str = CODEC) -> OuterRule:
    """Return the rule "auto", or "RATE/MOMENTUM" for any members; raises ValueError."""
    if name == "auto":
        codec = codec_of(CODEC if exchange == FP32 else exchange)
        return lambda tokens, inner_steps, agreement: automatic(tokens, inner_steps, codec, agreement)
    rate, momentum = (float(part) for part in name.split("/"))
    return lambda tokens, inner_steps, agreement: OuterStep(rate, momentum)


# -- training ----------------------------------------------------------------------------------------------------------


def rows_of(member: Worker, number: int, step: int) -> tuple[int, int]:
    """Return the rows that a member reads in a step of the swarm; they do not depend on H."""
    count = member.config.data.sequences_per_step
    first = (step * MOST + number) * count
    return first, first + count


class Bench:
    """The runs of one table."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._starts: dict[int, F32] = {}

    def member(self, seed: int, rate: float = RATE) -> Worker:
        return Worker(self.settings.config(seed, rate), CPU)

    def loss(self, theta: F32) -> float:
        return self.member(0).evaluate(theta, self.settings.evaluation_tokens)

    def start(self, seed: int) -> F32:
        """Return the parameters from which all runs of a seed start."""
        if seed not in self._starts:
            member = self.member(seed, WARM_RATE)
            theta = np.empty(member.config.model.parameters, dtype=np.float32)
            initial_parameters(MODEL, seed, theta)
            self._starts[seed] = data_parallel(member, theta, range(self.settings.warm_steps), lambda step: WARM_MEMBERS)
        return self._starts[seed]

    def run(self, case: Case) -> list[float]:
        """Return the held-out losses after the case's steps."""
        begin, last = self.settings.warm_steps, case.steps[-1]
        if case.outer:
            states = self.diloco(case, last // case.inner_steps)
            return [self.loss(theta) for number, theta in enumerate(states, 1) if number * case.inner_steps in case.steps]
        losses, member, theta = [], self.member(case.seed, case.rate), self.start(case.seed)
        rounds = last // max(1, case.inner_steps)
        for low, high in zip((0, *case.steps), case.steps, strict=False):
            theta = data_parallel(
                member,
                theta,
                range(begin + low, begin + high),
                lambda step: size_in(case.members, (step - begin) // max(1, case.inner_steps), rounds),
            )
            losses.append(self.loss(theta))
        return losses

    def diloco(self, case: Case, rounds: int) -> Iterator[F32]:
        """Train members apart and take the outer step after every round; yield the outer parameters after each."""
        rule, theta = rule_named(case.outer, case.exchange), self.start(case.seed).copy()
        layouts = None if case.exchange == FP32 else layouts_for(len(theta), case.exchange)
        momentum, scratch = np.zeros_like(theta), bytearray(layouts_for(len(theta)).contribution.payload_bytes)
        members: list[Worker] = []
        residuals: list[F32] = []
        for round_number in range(rounds):
            size = size_in(case.members, round_number, rounds)
            first = self.settings.warm_steps + round_number * case.inner_steps
            members = members[:size] + [self.member(case.seed, case.rate) for _ in range(size - len(members))]
            residuals = residuals[:size] + [np.zeros_like(theta) for _ in range(size - len(residuals))]
            differences, tokens = [], []
            for number, member in enumerate(members):
                rows = [rows_of(member, number, first + step) for step in range(case.inner_steps)]
                task = Task(0, rows, case.inner_steps, first)
                tokens.append(member.compute(task, theta, memoryview(scratch), lambda *_: False).tokens)
                differences.append(theta - member.model.flat.numpy())
            if layouts is not None:
                encoded = [encoded_with(layouts, *each) for each in zip(differences, residuals, strict=True)]
                step = partial(rule, tokens, case.inner_steps)
                apply_mean(layouts, theta, momentum, encoded, tokens, step, case.aggregation)
            else:
                apply_mean_in_fp32(theta, momentum, differences, partial(rule, tokens, case.inner_steps))
            yield theta


def data_parallel(member: Worker, theta: F32, steps: range, size: Callable[[int], int]) -> F32:
    """Train one model on the windows of all `size(step)` members; return the parameters at the end."""
    member.work.load(theta)
    for step in steps:
        rows = Rows.joined([member.batch(range(*rows_of(member, number, step))) for number in range(size(step))])
        member.inner.step(rows, Place(step, 0.0))
    return member.model.flat.numpy().copy()


def apply_mean_in_fp32(
    theta: F32, momentum: F32, differences: Sequence[F32], rule: Callable[[Fraction], OuterStep], chunk: int = CHUNK
) -> None:
    """Apply one round's exchange and outer step without a codec; the members agree as in the median chunk."""
    mean = np.asarray(np.stack(differences).mean(axis=0), dtype=np.float32)
    each = []
    for start in range(0, mean.size, chunk):
        parts = [np.square(one[start : start + chunk]).sum() for one in (mean, *differences)]
        each.append((Squares(float(parts[0]), float(np.mean(parts[1:]))).agreement, min(chunk, mean.size - start)))
    step = rule(weighted_median(each))
    outer_step.nesterov_update(theta, momentum, mean, step.rate, step.momentum)


def encoded_with(layouts: Layouts, difference: F32, residual: F32) -> bytearray:
    """Return an encoded contribution; its codec may replace the residual."""
    layout = layouts.contribution
    out = layout.zeros()
    for span in layout:
        part = memoryview(out)[span.encoded]
        layouts.codec.encode_range(difference[span.values], residual[span.values], part, span.count, 0)
    return out


def apply_mean(
    layouts: Layouts,
    theta: F32,
    momentum: F32,
    encoded: Sequence[bytearray],
    tokens: Sequence[int],
    rule: Callable[[Fraction], OuterStep],
    aggregation: Rule = "mean",
) -> None:
    """Apply one round's exchange and outer step, with the real codec."""
    whole = memoryview(bytearray(layouts.result.payload_bytes))
    for span, averaged in zip(layouts.contribution, layouts.result, strict=True):
        parts = [memoryview(data)[span.encoded] for data in encoded]
        aggregate(aggregation, layouts.codec, parts, tokens, span.count, whole[averaged.encoded])
    step, format = rule(agreement_of(whole, layouts.result)), layouts.result.format
    for span in layouts.result:
        result = whole[span.encoded]
        outer_step.apply_result(theta[span.values], momentum[span.values], result, format, span.count, step)


# -- the table ---------------------------------------------------------------------------------------------------------
