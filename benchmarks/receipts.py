"""Receipts of rows: how far an audit tells honest members from members that did not train.

    python -m benchmarks.receipts --save FILE [--groups base,cheats,...] [--sizes 0.1M] [--seeds 0] [--json]

Members train in this process with the trainer's worker, which keeps receipts, the real codec, reduction and outer step; only
the network is left out.  All begin with the weights of a common warm start.  The first round gives each its moments and is
not audited.  An auditor recomputes a row of inner step j at weights that everybody can compute: the shared weights of that
moment, less j / H of the round's mean result.  In a streamed run each fragment has its own result and its own j.

A run's rows are audited once, and audits are drawn from their cosines: 8 rows, 2 of each of 4 inner steps, compared with 16
rows of an honest auditor from the same round; a suspect gets a second draw of 16 rows.  "false" counts honest contributions
that are suspect twice; "none" counts audits below the level from which there is a verdict.  "found" is the number of
contributions until a cheat is found with a probability of 95 %, if it is audited with probability 1/2, and always.

Cheats take part in their run: their contributions change the shared weights.  "forward" claims the gradient at the top of
the layers in place of that at the embedding; "map" claims a linear map of it and of its sums over later tokens, fitted by
least squares to the true gradients of `MAP_ROWS` rows at the start of each round.  `--groups` names the groups of runs
(`GROUPS`), `--cost` measures the time of a step with and without receipts.  `--save` keeps finished runs in a file, so that
an interrupted table continues from there, and the starts beside it.  The bar: no false verdict in 3000 honest contributions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import adapters
from benchmarks.adapters import Texts, corpus_at, data_of, inner_of
from benchmarks.diloco import numbers
from benchmarks.diloco_bench import apply_mean, rows_of, rule_named
from kernels.layout import fragment_spans
from kernels.outer_step import OuterStep
from kernels.schedule import Place
from peer.corpora.build import build
from peer.corpora.inputs import BuildInput
from peer.corpora.options import BuildOptions, TokenFormat
from peer.corpora.run_data import RunData
from protocol.corpora.manifest import CorpusKind
from protocol.formats.model import ModelConfig
from protocol.run.sections import SOURCE
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder
from trainer.rank_work import layouts_of
from trainer.receipts import (
    LARGEST,
    PARTS,
    RULE,
    WIDTH,
    GradientProjection,
    Receipts,
    ReceiptVerdict,
    part_cosines,
    receipts_at,
    receipts_of,
    verdict,
)
from trainer.worker import Task, Worker

F32, F64 = npt.NDArray[np.float32], npt.NDArray[np.float64]
CPU = torch.device("cpu")
SHAPE = ModelConfig(vocab=256, dim=64, layers=2, heads=2, kv_heads=1, ffn=192, rope_base=1e4, norm_eps=1e-5, tied=True)
MODELS = {
    "0.1M": SHAPE,
    "1M": SHAPE.changed(dim=128, layers=5, heads=4, kv_heads=2, ffn=384),
    "10M": adapters.MODELS["10m"],
}
RATES = {"0.1M": 1e-3, "1M": 5e-4, "10M": 2.5e-4}
"""Rates of the inner optimiser; the warm start has twice the rate."""
LENGTH, CHUNK, Z_LOSS, SEED = 128, 1 << 16, 2e-4, 5
"""Tokens of a row, values of a chunk, weight of the z-loss (as in `inner_of`), and seed of the projections."""
WARM_ROWS, WARM_PLACE, OTHER_STEP, MAP_ROWS = 16, 1 << 22, 1 << 16, 256
"""Rows of a step of the warm start, and their place; a step far from the run's; rows to which a map is fitted."""
POINTS, ROWS_AUDITED, AT_ONCE = 12, 4, 16
"""Inner steps of a contribution, and rows of each, that are audited once; rows computed at once."""
EVALUATION_TOKENS = 1 << 15
PATH, STATE = "path", "state"
"""Public weights: those along the path to the round's mean result, or the shared state as it stood."""


@dataclass(frozen=True)
class Case:
    """One run.

    rows: of a member's step.  steps: H.  kind: of the rows.  warm: steps of the warm start.  public: weights of an audit.
    early: some members stop early.  newcomers: one member is new in each round.  threads, dtype: of members, not of
    auditors.  cheat: of the first `hostile` members.  rate: times that of `RATES`.  rounds: audited ones, by whole passes.
    """

    seed: int = 0
    size: str = "0.1M"
    rows: int = 4
    steps: int = 30
    optimizer: str = "adamw"
    rate: float = 1.0
    fragments: int = 1
    delay: int = 0
    kind: str = "joined"
    warm: int = 500
    members: int = 4
    early: bool = False
    newcomers: bool = False
    threads: int = 1
    dtype: str = "float32"
    public: str = PATH
    cheat: str = ""
    hostile: int = 0
    rounds: int = 4

    @property
    def name(self) -> str:
        """All that differs from the base, without the seed."""
        base = asdict(Case(self.seed))
        changed = [f"{name} {value}" for name, value in asdict(self).items() if value != base[name] and name != "seed"]
        return ", ".join(changed) or "base"


# -- texts and starts ------------------------------------------------------------------------------------------------------


def chats_at(folder: Path, texts: Texts) -> RunData:
    """Return a corpus of chats in `folder`: the first third of the lines of each text asks, and the others answer."""
    if not folder.exists():
        path = folder.with_suffix(".jsonl")
        with path.open("w") as file:
            for document in texts.documents()[::2]:
                lines = document.text.splitlines(keepends=True)
                asked, answered = "".join(lines[: len(lines) // 3]).strip(), "".join(lines[len(lines) // 3 :]).strip()
                if asked and answered:
                    chat = [{"role": "user", "content": asked[:200]}, {"role": "assistant", "content": answered[:300]}]
                    file.write(json.dumps({"messages": chat}) + "\n")
        tokens = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=LENGTH + 1)
        build([BuildInput(SOURCE, path)], BuildOptions(tokens, workers=1), folder)
    return RunData((folder,), {})


class Bench:
    """Corpora and warm starts, kept in a folder."""

    def __init__(self, folder: Path, texts: Texts) -> None:
        self._folder, self._texts = folder, texts
        folder.mkdir(parents=True, exist_ok=True)

    @cache  # noqa: B019 - there is one bench
    def _places(self, kind: str) -> Mapping[str, Any]:
        make = chats_at if kind == "chat" else corpus_at
        return make(self._folder / ("chats" if kind == "chat" else "texts"), self._texts).places.sections

    def config(self, case: Case) -> TrainingConfig:
        places, data = self._places(case.kind), data_of(adapters.Rows(case.rows, LENGTH))
        inner = inner_of(RATES[case.size] * case.rate, weight_decay=0.1).changed(optimizer=case.optimizer)
        form = {"format": "chat"} if case.kind == "chat" else {"documents": case.kind}
        return TrainingConfig(
            case.seed,
            MODELS[case.size],
            data.changed(**form),
            inner,
            1 << 16,
            CHUNK,
            "int4",
            files=places["files"],
            blocks=tuple(places["blocks"]),
            fragments=case.fragments,
            delay=case.delay,
        )

    def start(self, case: Case) -> F32:
        """Return the weights after the warm start, on joined texts with AdamW."""
        path = self._folder / f"start-{case.size}-{case.warm}-{case.seed}.npy"
        if not path.exists():
            member = Worker(self.config(Case(case.seed, case.size, WARM_ROWS, rate=2.0)), CPU)
            theta = np.empty(member.config.model.parameters, np.float32)
            initial_parameters(member.config.model, case.seed, theta)
            member.work.load(theta)
            for step in range(case.warm):
                first = WARM_PLACE + step * WARM_ROWS
                member.inner.step(member.batch(range(first, first + WARM_ROWS)), Place(step, 0.0))
            np.save(path, member.model.flat.numpy())
        found: F32 = np.load(path, allow_pickle=False)
        return found


# -- a run ---------------------------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """What a member has sent in a round.

    places: audited inner steps.  rows, claims: the audited rows that were leased, and their receipts as claimed, step by
    step.
    """

    honest: bool
    encoded: bytearray
    tokens: int
    steps: int
    places: list[int]
    rows: list[Rows]
    claims: list[Receipts]


@dataclass
class Held:
    """A round.  theta, before: shared weights when it began, and before the last result.  result: mean of the round."""

    theta: F32
    before: F32
    result: F32
    sent: list[Sent]


def places_of(steps: int) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, steps - 1, min(steps, POINTS))})


def chosen(rows: int) -> list[int]:
    """Return the numbers of the rows of a step that are audited, spread over the step."""
    return sorted({round(row) for row in np.linspace(0, rows - 1, min(rows, ROWS_AUDITED))})


def picked(rows: Rows, some: Sequence[int]) -> Rows:
    return Rows.joined([rows[row : row + 1] for row in some])


class CheatWorker(Worker):
    """Worker that reads changed rows.  change: function of the rows of a step."""

    change: Callable[[Rows], Rows]

    def batch(self, numbers: Sequence[int]) -> Rows:
        return self.change(super().batch(numbers))


class Swarm:
    """The shared state of a run, and the members.

    A cheat's work beyond that of an honest member, such as the noise that it claims, is drawn from the case's seed.
    """

    def __init__(self, bench: Bench, case: Case) -> None:
        self.case, self.config, self.theta = case, bench.config(case), bench.start(case).copy()
        self.layouts, self._rule = layouts_of(self.config), rule_named("auto", "int4")
        block = self.layouts.codec.block
        self.spans = [slice(each.start, each.stop) for each in fragment_spans(self.theta.size, block, case.fragments)]
        self.momentum = np.zeros_like(self.theta)
        self.result, self._before = np.zeros_like(self.theta), self.theta.copy()
        self.workers = [self._member(number) for number in range(case.members)]
        self.keepers = [each.inner.keep_receipts(SEED) for each in self.workers]
        self.round_steps = case.steps // case.fragments
        self.random = np.random.default_rng([case.seed, 7])
        self.first_sent: dict[int, Sent] = {}

    def _member(self, number: int) -> Worker:
        dtype = getattr(torch, self.case.dtype)
        if number >= self.case.hostile or self.case.cheat not in CHANGES:
            return Worker(self.config, CPU, dtype=dtype)
        worker = CheatWorker(self.config, CPU, dtype=dtype)
        worker.change = CHANGES[self.case.cheat]
        return worker

    def steps_of(self, number: int) -> int:
        if not self.case.early:
            return self.round_steps
        return max(4, self.round_steps * (4, 3, 4, 2)[number % 4] // 4)

    def hold(self, round: int) -> Held:
        """Train all members for a round, and exchange the round's fragment."""
        case, fragment = self.case, round % self.case.fragments
        if case.newcomers and round:
            self.workers[-1] = self._member(case.members - 1)
            self.keepers[-1] = self.workers[-1].inner.keep_receipts(SEED)
        theta, before = self.theta.copy(), self._before
        torch.set_num_threads(case.threads)
        sent: dict[int, Sent] = {}
        for number in reversed(range(case.members)):  # cheats last, because they may copy
            if number < case.hostile and round > 0:
                found = CHEATS[case.cheat](self, number, round, sent)
                sent[number] = replace(found, honest=False, tokens=sent[case.hostile].tokens)
            else:
                sent[number] = self.train(number, round)
            self.first_sent.setdefault(number, sent[number])
        torch.set_num_threads(1)
        members = [sent[number] for number in range(case.members)]
        self._before, span, taken = theta, self.spans[fragment], list[OuterStep]()
        old, tokens = self.momentum[span].copy(), [each.tokens for each in members]

        def rule(agreement: Any) -> OuterStep:
            taken.append(self._rule(tokens, case.steps, agreement))
            return taken[0]

        apply_mean(self.layouts, self.theta[span], self.momentum[span], [each.encoded for each in members], tokens, rule)
        self.result[span] = self.momentum[span] - np.float32(taken[0].momentum) * old
        return Held(theta, before, self.result.copy(), members)

    def leased(self, number: int, round: int, step: int) -> tuple[int, int]:
        return rows_of(self.workers[number], number, self.case.warm + round * self.round_steps + step)

    def train(self, number: int, round: int, steps: int = 0, scale: float = 1.0, other: int = 0) -> Sent:
        """Train a member.

        steps: done in place of all.  scale: of its contribution.  other: added to the steps of which it reads the rows.
        Its claims are those of the steps and the rows that it did, again and again.
        """
        worker, keeper, case, full = self.workers[number], self.keepers[number], self.case, self.steps_of(number)
        done, kept, encoded, asked = steps or full, list[Receipts](), self.zeros(), count()
        task = Task(
            round,
            [self.leased(number, round, step + other) for step in range(done)],
            done,
            case.warm + round * self.round_steps,
            fragment=round % case.fragments,
            continues=self.config.is_streamed and round > 0,
        )

        def after_step(*_: Any) -> bool:
            kept.append(keeper.take())
            return False

        def applied(needed: bool) -> bool:
            return needed or next(asked) >= case.delay

        found = worker.compute(task, self.theta, memoryview(encoded), after_step, applied=applied)
        if scale != 1.0:
            encoded = self.encoded(np.float32(scale) * (self.theta - worker.model.flat.numpy()))
        places, some = places_of(full), chosen(case.rows)
        claims = [kept[place % done][[row % len(kept[0]) for row in some]] for place in places]
        return Sent(True, encoded, found.tokens, full, places, self._audited_rows(number, round, places), claims)

    def _audited_rows(self, number: int, round: int, places: Sequence[int]) -> list[Rows]:
        reader, some = self.workers[-1], chosen(self.case.rows)
        return [picked(reader.batch(range(*self.leased(number, round, place))), some) for place in places]

    def zeros(self) -> bytearray:
        return bytearray(self.layouts.contribution.payload_bytes)

    def encoded(self, difference: F32) -> bytearray:
        """Return a whole state's difference, encoded without error feedback."""
        out = self.layouts.contribution.zeros()
        for span in self.layouts.contribution:
            part, values = memoryview(out)[span.encoded], difference[span.values].copy()
            self.layouts.codec.encode_range(values, np.zeros_like(values), part, span.count, 0)
        return out

    def forged(self, number: int, round: int, encoded: bytearray, claim: Callable[[Rows, int], Receipts]) -> Sent:
        """Return what a cheat sends that does not train.  claim: the receipts of rows of an inner step."""
        places = places_of(self.round_steps)
        rows = self._audited_rows(number, round, places)
        claims = [claim(some, place) for some, place in zip(rows, places, strict=True)]
        return Sent(False, encoded, 0, self.round_steps, places, rows, claims)

    def guessed(self, place: int) -> F32:
        """Return the weights that a cheat expects at an inner step: along the path of the last result."""
        return self.theta - np.float32(place / self.round_steps) * self.result


# -- cheats --------------------------------------------------------------------------------------------------------------


Cheat = Callable[[Swarm, int, int, Mapping[int, Sent]], Sent]


def noise(swarm: Swarm, rows: int) -> Receipts:
    drawn = torch.from_numpy(swarm.random.standard_normal((rows, PARTS, WIDTH)))
    return receipts_of(torch.full((rows,), 2.0), drawn)


def zeros(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
    return swarm.forged(number, round, swarm.zeros(), lambda rows, place: noise(swarm, len(rows)))


def copied(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent], share: float = 0.0) -> Sent:
    """Copy an honest member.  share: of noise in the contribution and in the claims."""
    victim, encoded = sent[swarm.case.hostile], sent[swarm.case.hostile].encoded
    if share:
        drawn = swarm.random.standard_normal(swarm.theta.size).astype(np.float32)
        changed = swarm.result + np.float32(share * np.linalg.norm(swarm.result) / np.linalg.norm(drawn)) * drawn
        encoded = swarm.encoded(changed)
    claims = iter(victim.claims)

    def claim(rows: Rows, place: int) -> Receipts:
        projections = torch.from_numpy((claimed := next(claims))["projections"].astype(np.float64))
        drawn = share * LARGEST / 3 * torch.from_numpy(swarm.random.standard_normal(projections.shape))
        return receipts_of(torch.from_numpy(claimed["loss"].astype(np.float64)), projections + drawn)

    return swarm.forged(number, round, encoded, claim)


def stale(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
    first = swarm.first_sent[number]
    claims = iter(first.claims)
    return swarm.forged(number, round, first.encoded, lambda rows, place: next(claims))


def some_steps(share: float, scaled: bool) -> Cheat:
    def cheat(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
        return swarm.train(number, round, max(1, int(share * swarm.round_steps)), 1 / share if scaled else 1.0)

    return cheat


def half_of_each(rows: Rows) -> Rows:
    """Return rows of which only the first half counts, which is like reading no more than that half."""
    counts_bt = np.ones((len(rows), rows.length), np.bool_) if rows.counts_bt is None else rows.counts_bt.copy()
    counts_bt[:, rows.length // 2 :] = False
    return replace(rows, counts_bt=counts_bt)


def half_rows(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
    found = swarm.train(number, round)
    for claims in found.claims:
        claims["projections"][:, PARTS // 2 :] = claims["projections"][:, : PARTS // 2]
    return found


def unweighted(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
    """Compute true receipts along the expected path, without the gradients of weights; contribute the last result."""
    model = swarm.workers[number].model

    def claim(rows: Rows, place: int) -> Receipts:
        return audited(model, swarm.workers[number], swarm.guessed(place), rows)

    return swarm.forged(number, round, swarm.encoded(swarm.result), claim)


def gradients(worker: Worker, model: Decoder, rows: Rows, *, at_top: bool) -> tuple[Tensor, Tensor]:
    """Return the losses (B,) of rows, and the gradient at the layers' end or at the embedding, (B, T, dim)."""
    found: list[Tensor] = []

    def watch(values: Tensor) -> Tensor:
        found.append(values.detach().requires_grad_())
        return found[0]

    body = model.model
    if at_top:
        handle = body.norm.register_forward_pre_hook(lambda module, inputs: (watch(inputs[0]),))
    else:
        handle = body.embed_tokens.register_forward_hook(lambda module, inputs, output: watch(output))
    try:
        loss = worker.objective.loss(model, rows, Z_LOSS)
        loss.mean.backward()  # type: ignore[no-untyped-call]
    finally:
        handle.remove()
    assert found[0].grad is not None
    return loss.units_u.detach() / torch.from_numpy(worker.objective.weights_u(rows)).float(), found[0].grad


def features(model: Decoder, rows: Rows, top_btd: Tensor) -> Tensor:
    """Return the inputs of a map, (B, T, 6 dim), of gradients at the layers' end.

    They are the token's own gradient, also divided by the norm of its embedding, the next token's, and sums over all later
    tokens, which fall by half with 1 or 8 tokens, or do not.
    """
    tokens_bt = torch.from_numpy(rows.tokens_bt[:, :-1].astype(np.int64))
    sizes_bt = model.model.embed_tokens.weight[tokens_bt].float().norm(dim=-1, keepdim=True)
    following = torch.zeros_like(top_btd)
    following[:, :-1] = top_btd[:, 1:]
    ages = torch.arange(rows.length)
    ages = (ages[None, :] - ages[:, None]).float()
    sums = [torch.where(ages >= 0, decay ** ages.clamp(min=0), 0.0) @ top_btd for decay in (0.5, 0.5**0.125, 1.0)]
    return torch.cat([top_btd, top_btd * (sizes_bt.mean() / sizes_bt), following, *sums], dim=-1)


def forward_only(learned: bool) -> Cheat:
    def cheat(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
        worker, matrix = swarm.workers[number], None
        project = GradientProjection(SEED, worker.config.model.dim)
        if learned:
            matrix = fitted(worker, model_at(worker.model, swarm.theta), number)

        def claim(rows: Rows, place: int) -> Receipts:
            model = model_at(worker.model, swarm.guessed(place))
            losses, top_btd = gradients(worker, model, rows, at_top=True)
            return receipts_of(losses, project(top_btd if matrix is None else features(model, rows, top_btd) @ matrix))

        return swarm.forged(number, round, swarm.encoded(swarm.result), claim)

    return cheat


def fitted(worker: Worker, model: Decoder, number: int) -> Tensor:
    """Return the matrix, (6 dim, dim), that maps `features` to the gradient at the embedding, by ridge regression."""
    width = worker.config.model.dim
    square, product = torch.zeros(6 * width, 6 * width), torch.zeros(6 * width, width)
    for start in range(0, MAP_ROWS, AT_ONCE):
        first = WARM_PLACE - MAP_ROWS * (number + 1) + start
        rows = worker.batch(range(first, first + AT_ONCE))
        inputs = features(model, rows, gradients(worker, model, rows, at_top=True)[1]).flatten(0, 1)
        square += inputs.T @ inputs
        product += inputs.T @ gradients(worker, model, rows, at_top=False)[1].flatten(0, 1)
    ridge = 1e-3 * square.diagonal().mean()
    return torch.linalg.solve(square + ridge * torch.eye(6 * width), product)


CHEATS: Mapping[str, Cheat] = {
    "zeros": zeros,
    "copy": copied,
    "copy + noise": partial(copied, share=0.5),
    "stale": stale,
    "own data": lambda swarm, number, round, sent: swarm.train(number, round, other=OTHER_STEP),
    **{
        f"{int(100 * share)} %{', scaled' if scaled else ''}": some_steps(share, scaled)
        for share in (0.1, 0.5, 0.9)
        for scaled in (False, True)
    },
    "half batches": lambda swarm, number, round, sent: swarm.train(number, round),
    "half rows": half_rows,
    "forward": forward_only(False),
    "map": forward_only(True),
    "no weight gradients": unweighted,
}
CHANGES: Mapping[str, Callable[[Rows], Rows]] = {
    "half batches": lambda rows: rows[: len(rows) // 2],
    "half rows": half_of_each,
}
"""Rows that a cheat reads in place of its own."""


# -- audits of a run -------------------------------------------------------------------------------------------------------


def model_at(model: Decoder, theta: F32) -> Decoder:
    """Return a model without gradients in fp32."""
    made = model.over(torch.from_numpy(theta))
    made.compute_dtype = torch.float32
    return made


def audited(model: Decoder, worker: Worker, theta: F32, rows: Rows) -> Receipts:
    return receipts_at(model_at(model, theta), worker.objective, rows, Z_LOSS, SEED, AT_ONCE)


@dataclass(frozen=True)
class Contribution:
    """Audited rows of one member in one round, step by step.

    parts_jrp: cosines of the parts of rows; None for a part without gradient.  claimed_jr, found_jr: losses of the rows.
    """

    round: int
    member: int
    honest: bool
    parts_jrp: list[list[list[float | None]]]
    claimed_jr: list[list[float]]
    found_jr: list[list[float]]


@dataclass(frozen=True)
class Outcome:
    """Result of a run.  loss: held-out, nats per token."""

    loss: float
    contributions: list[Contribution]


def public_weights(swarm: Swarm, held: Sequence[Held], round: int, place: int) -> F32:
    """Return the weights at which an inner step of a round is audited.

    The mean steps of a round stand in for H, so members that stop early are audited where the others were then.
    """
    case, now, own = swarm.case, held[round], held[round].theta.copy()
    if case.public == STATE:
        return now.before.copy() if place < case.delay else own
    mean = statistics.fmean(each.steps for each in now.sent) * case.fragments
    for number, span in enumerate(swarm.spans):
        following = round + (number - round) % case.fragments
        sent = following - case.fragments
        since = (round - 1 - sent) * swarm.round_steps + place if sent >= 0 else round * swarm.round_steps + place
        if place < case.delay and sent == round - 1 >= 0:
            own[span] = now.before[span] - held[sent].result[span]
        if following < len(held):
            own[span] -= np.float32(since / mean) * held[following].result[span]
    return own


def run(bench: Bench, case: Case) -> Outcome:
    """Hold a run's rounds, and audit their rows."""
    swarm = Swarm(bench, case)
    burnt, passes = case.fragments, case.rounds
    held = [swarm.hold(round) for round in range(burnt + passes * case.fragments + case.fragments - 1)]
    judge, contributions = swarm.workers[-1], list[Contribution]()
    for round in range(burnt, len(held) - case.fragments + 1):
        wanted = sorted({place for each in held[round].sent for place in each.places})
        found = {}
        for place in wanted:
            which = [number for number, each in enumerate(held[round].sent) if place in each.places]
            some = [held[round].sent[number] for number in which]
            rows = Rows.joined([each.rows[each.places.index(place)] for each in some])
            receipts = audited(judge.model, judge, public_weights(swarm, held, round, place), rows)
            found |= {(number, place): part for number, part in zip(which, np.split(receipts, len(some)), strict=True)}
        for number, each in enumerate(held[round].sent):
            theirs = [found[number, place] for place in each.places]
            parts = [part_cosines(*pair).round(4) for pair in zip(each.claims, theirs, strict=True)]
            contributions.append(
                Contribution(
                    round,
                    number,
                    each.honest,
                    [[[None if math.isnan(x) else x for x in row] for row in step.tolist()] for step in parts],
                    *([step["loss"].astype(float).round(4).tolist() for step in some] for some in (each.claims, theirs)),
                )
            )
    return Outcome(judge.evaluate(swarm.theta, EVALUATION_TOKENS), contributions)


# -- audits drawn from runs ------------------------------------------------------------------------------------------------


FIRST, SECOND = (4, 2), (8, 2)
"""Inner steps, and rows of each, of the first and second draw."""
LEVEL_ROWS = 16
DRAWS = 3000
CHANCE = 0.5


@dataclass
class Pool:
    """Contribution as arrays: cosines of parts (J, R, PARTS), of rows (J, R), and differences of losses (J, R)."""

    source: Contribution
    parts: F64
    rows: F64
    losses: F64

    @classmethod
    def of(cls, source: Contribution) -> Pool:
        parts = np.array(source.parts_jrp, np.float64)  # None becomes nan
        known = ~np.isnan(parts)
        rows = np.where(known.any(-1), np.nansum(parts, -1) / np.maximum(known.sum(-1), 1), np.nan)
        return cls(source, parts, rows, np.array(source.claimed_jr) - np.array(source.found_jr))


@dataclass
class Draw:
    """Rows of an audit and of the auditor.  at, own_at: inner steps and rows."""

    checked: Pool
    own: Pool
    at: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
    own_at: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]

    @property
    def level(self) -> float:
        return float(np.nanmean(self.own.rows[self.own_at]))


def draw(random: np.random.Generator, checked: Pool, own: Pool, steps: int, rows: int) -> Draw:
    """Draw rows of a contribution, and of the auditor's own at the same shares of the round."""
    theirs, mine = checked.rows.shape, own.rows.shape
    places = random.choice(theirs[0], min(steps, theirs[0]), replace=False)
    picks = [random.choice(theirs[1], min(rows, theirs[1]), replace=False) for _ in places]
    own_places = np.round(places * (mine[0] - 1) / max(1, theirs[0] - 1)).astype(int)
    each = min(-(-LEVEL_ROWS // len(places)), mine[1])
    own_picks = [random.choice(mine[1], each, replace=False) for _ in places]
    return Draw(
        checked,
        own,
        (np.repeat(places, [len(pick) for pick in picks]), np.concatenate(picks)),
        (np.repeat(own_places, each), np.concatenate(own_picks)),
    )


def judged(drawn: Draw) -> ReceiptVerdict:
    return verdict(drawn.checked.rows[drawn.at], drawn.level)


@dataclass(frozen=True)
class Counts:
    """Verdicts of drawn audits.  suspect: after the first draw.  found: after the second."""

    draws: int
    none: int
    suspect: int
    found: int
    least_level: float
    mean_level: float

    @property
    def contributions(self) -> list[int | None]:
        """Contributions until a cheat is found with 95 %, audited with `CHANCE` and always; None if it is not found."""
        rates = [share * self.found / self.draws for share in (CHANCE, 1.0)]
        return [
            None if rate < 1e-4 else 1 if rate >= 0.95 else math.ceil(math.log(0.05) / math.log1p(-rate)) for rate in rates
        ]


def pairs(pools: Sequence[Pool], *, honest: bool) -> list[tuple[Pool, Pool]]:
    """Return the contributions with each of their honest auditors."""
    return [
        (one, other)
        for one in pools
        for other in pools
        if one.source.honest is honest and other.source.honest
        if one.source.round == other.source.round and one.source.member != other.source.member
    ]


def counted(pools: Sequence[Pool], *, honest: bool, draws: int = DRAWS) -> Counts | None:
    """Audit `draws` contributions as the rule says; None if there are none."""
    random, chosen_pairs = np.random.default_rng(1), pairs(pools, honest=honest)
    if not chosen_pairs:
        return None
    none = suspect = found = 0
    levels = []
    for number in random.integers(len(chosen_pairs), size=draws):
        first = draw(random, *chosen_pairs[number], *FIRST)
        levels.append(first.level)
        outcome = judged(first)
        none += outcome is ReceiptVerdict.NONE
        if outcome is ReceiptVerdict.SUSPECT:
            suspect += 1
            found += judged(draw(random, *chosen_pairs[number], *SECOND)) is ReceiptVerdict.SUSPECT
    return Counts(draws, none, suspect, found, min(levels), statistics.fmean(levels))


# -- other rules -----------------------------------------------------------------------------------------------------------


def over_level(drawn: Draw) -> float:
    return float(np.nanmean(drawn.checked.rows[drawn.at]) / drawn.level)


def by_step(drawn: Draw) -> float:
    """Mean over the rows of the cosine less the auditor's own mean at the same inner step."""
    own = {place: np.nanmean(drawn.own.rows[place]) for place in set(drawn.own_at[0].tolist())}
    scale = (len(drawn.own.rows) - 1) / max(1, len(drawn.checked.rows) - 1)
    places = np.round(drawn.at[0] * scale).astype(int)
    return float(np.nanmean(drawn.checked.rows[drawn.at] - np.array([own[place] for place in places.tolist()])))


def ranked(drawn: Draw) -> float:
    """Share of pairs in which the audited row is more alike than the auditor's (Mann-Whitney)."""
    one, other = drawn.checked.rows[drawn.at], drawn.own.rows[drawn.own_at]
    return float((one[:, None] >= other[None, :]).mean())


def low_rows(drawn: Draw) -> float:
    return -float((drawn.checked.rows[drawn.at] < RULE.low).mean()) + 1e-3 * over_level(drawn)


def low_parts(drawn: Draw) -> float:
    return -float((drawn.checked.parts[drawn.at] < RULE.low).mean()) + 1e-3 * over_level(drawn)


def quarter(drawn: Draw) -> float:
    """The mean of the lowest quarter of the rows, over the level."""
    rows = np.sort(drawn.checked.rows[drawn.at])
    return float(np.nanmean(rows[: max(1, len(rows) // 4)]) / drawn.level)


def last_part(drawn: Draw) -> float:
    """The least of the mean cosines of the four parts, over the level."""
    means = np.nanmean(drawn.checked.parts[drawn.at], axis=0)
    return float(np.nanmin(means) / drawn.level)


def losses(drawn: Draw) -> float:
    """Minus the root mean square of the losses' differences."""
    return -float(np.sqrt(np.mean(drawn.checked.losses[drawn.at] ** 2)))


SCORES: Mapping[str, tuple[Callable[[Draw], float], tuple[int, int]]] = {
    "mean over level, 4 rows": (over_level, (4, 1)),
    "mean over level, 8 rows": (over_level, FIRST),
    "mean over level, 16 rows": (over_level, SECOND),
    "mean less own of the step, 8": (by_step, FIRST),
    "rank among own rows, 8": (ranked, FIRST),
    "low rows, 8": (low_rows, FIRST),
    "low parts, 8": (low_parts, FIRST),
    "lowest quarter of rows, 8": (quarter, FIRST),
    "lowest of four parts, 8": (last_part, FIRST),
    "losses, 8": (losses, FIRST),
}
"""Scores of an audit, larger for honest members, and the draw."""
SCORE_DRAWS, FALSE_SHARE = 400, 1e-3


def scores(pools: Mapping[str, Sequence[Pool]]) -> Iterator[dict[str, Any]]:
    """Yield for each score the share of each cheat's audits below all but `FALSE_SHARE` of the honest ones of all runs."""
    random = np.random.default_rng(2)

    def of(score: Callable[[Draw], float], rows: tuple[int, int], chosen_pairs: Sequence[tuple[Pool, Pool]]) -> list[float]:
        picks = random.integers(len(chosen_pairs), size=SCORE_DRAWS)
        found = [draw(random, *chosen_pairs[number], *rows) for number in picks]
        return [score(each) for each in found if each.level >= RULE.least_level]

    for name, (score, rows) in SCORES.items():
        honest = [value for some in pools.values() for value in of(score, rows, pairs(some, honest=True))]
        if not honest:
            continue
        bound = float(np.quantile(honest, FALSE_SHARE, method="lower"))
        shares = {}
        for case, some in pools.items():
            if cheats := pairs(some, honest=False):
                values = of(score, rows, cheats)
                shares[case] = float(np.mean(np.array(values) < bound)) if values else None
        yield {"score": name, "bound": bound, "honest_audits": len(honest), "below": shares}


# -- the table ---------------------------------------------------------------------------------------------------------


BASE = Case()
EIGHT = replace(BASE, members=8, hostile=1)
GROUPS: Mapping[str, Sequence[Case]] = {
    "base": [BASE],
    "tokens": [replace(BASE, rows=rows) for rows in (32, 128)],
    "length": [replace(BASE, steps=10), replace(BASE, steps=100)],
    "optimizer": [replace(BASE, optimizer="muon")],
    "rate": [replace(BASE, rate=3.0)],
    "streamed": [replace(BASE, steps=40, fragments=4, delay=2, public=public) for public in (PATH, STATE)],
    "kind": [replace(BASE, kind="masked"), replace(BASE, kind="chat")],
    "stage": [replace(BASE, warm=100), replace(BASE, warm=2500)],
    "members": [replace(BASE, early=True), replace(BASE, newcomers=True)],
    "numerics": [replace(BASE, threads=2), replace(BASE, dtype="bfloat16")],
    "cheats": [replace(EIGHT, cheat=cheat) for cheat in CHEATS],
    "two": [replace(EIGHT, cheat=cheat, hostile=2) for cheat in CHEATS],
}


class Progress:
    """Finished runs, one JSON line each, in a file if one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes: dict[Case, Outcome] = {}
        for line in path.read_text().splitlines() if path and path.exists() else []:
            entry = json.loads(line)
            found = [Contribution(**each) for each in entry["contributions"]]
            self.outcomes[Case(**entry["case"])] = Outcome(entry["loss"], found)

    def add(self, case: Case, outcome: Outcome) -> None:
        self.outcomes[case] = outcome
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({"case": asdict(case), **asdict(outcome)}) + "\n")


def row_of(case: Case, outcome: Outcome) -> dict[str, Any]:
    """Return the line of a run."""
    pools = [Pool.of(each) for each in outcome.contributions]

    def cosine(honest: bool) -> float | None:
        rows = [pool.rows.ravel() for pool in pools if pool.source.honest is honest]
        return float(np.nanmean(np.concatenate(rows))) if rows else None

    row: dict[str, Any] = {"case": asdict(case), "name": case.name, "loss": outcome.loss, "honest_cosine": cosine(True)}
    row["honest_rows"] = sum(pool.rows.size for pool in pools if pool.source.honest)
    row["honest"] = asdict(counted(pools, honest=True) or Counts(0, 0, 0, 0, 0.0, 0.0))
    if (cheats := counted(pools, honest=False)) is not None:
        row |= {"cheat_cosine": cosine(False), "cheats": asdict(cheats), "contributions": cheats.contributions}
    return row


def print_rows(rows: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> None:
    print("| run | seed | loss | honest cosine | level, mean (least) | none | suspect | false, per 1000 |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        audits = row["honest"]
        none, suspect, false = (1000 * audits[name] / audits["draws"] for name in ("none", "suspect", "found"))
        print(
            f"| {row['name']} | {row['case']['seed']} | {row['loss']:.4f} | {row['honest_cosine']:.3f} | "
            f"{audits['mean_level']:.3f} ({audits['least_level']:.3f}) | {none:.0f} | {suspect:.1f} | {false:.2f} |"
        )
    if any("cheats" in row for row in rows):
        print("\n| cheat | of 8 | seed | size | cosine | none, per 1000 | found | contributions | always audited | loss |")
        print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "cheats" in row:
            case, audits = row["case"], row["cheats"]
            until = " | ".join("never" if each is None else str(each) for each in row["contributions"])
            print(
                f"| {case['cheat']} | {case['hostile']} | {case['seed']} | {case['size']} | {row['cheat_cosine']:.3f} | "
                f"{1000 * audits['none'] / audits['draws']:.0f} | {audits['found'] / audits['draws']:.3f} | {until} | "
                f"{row['loss']:.4f} |"
            )
    names = [name for line in lines for name in line["below"]]
    if names:
        columns = list(dict.fromkeys(names))
        print(f"\n| score | {' | '.join(columns)} |\n" + (1 + len(columns)) * "|---" + "|")
        for line in lines:
            shares = ("-" if share is None else f"{share:.2f}" for share in (line["below"].get(name) for name in columns))
            print(f"| {line['score']} | {' | '.join(shares)} |")


def cost(bench: Bench, case: Case, repeats: int) -> dict[str, Any]:
    """Return the processor time that receipts add to a step, and that of an audited row over that of a trained row."""
    workers = [Worker(bench.config(case), CPU) for _ in range(2)]
    workers[1].inner.keep_receipts(SEED)
    rows = workers[0].batch(range(case.rows))
    model = model_at(workers[0].model, bench.start(case))
    spent: list[list[float]] = [[], [], []]
    for repeat in range(repeats):
        for number, worker in enumerate(workers):
            if not repeat:
                worker.work.load(bench.start(case))
            began = time.process_time()
            worker.inner.step(rows, Place(case.warm + repeat, 0.0)).read()
            spent[number].append(time.process_time() - began)
        began = time.process_time()
        receipts_at(model, workers[0].objective, rows, Z_LOSS, SEED, AT_ONCE)
        spent[2].append(time.process_time() - began)
    plain, kept, seen = (statistics.median(each) for each in spent)
    ratios = [one / other for one, other in zip(spent[1], spent[0], strict=True)]
    return {
        "name": case.name,
        "step_ms": 1e3 * plain,
        "with_receipts_ms": 1e3 * kept,
        "more_percent": 100 * (statistics.median(ratios) - 1),
        "audited_over_trained": seen / plain,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receipts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--groups", type=lambda text: text.split(","), default=["base"], help=", ".join(GROUPS))
    parser.add_argument("--cheats", type=lambda text: text.split(","), default=list(CHEATS), help="of the groups of cheats")
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["0.1M"], help=", ".join(MODELS))
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--rounds", type=int, default=BASE.rounds, help="audited rounds of a run")
    parser.add_argument("--texts", default=f"{sysconfig.get_path('stdlib')}:.py", help="FOLDER:SUFFIX of the files to learn")
    parser.add_argument("--cost", type=int, default=0, metavar="REPEATS", help="measure the time of receipts instead")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [
        replace(case, seed=seed, size=size, rounds=options.rounds)
        for seed in options.seeds
        for size in options.sizes
        for group in options.groups
        for case in GROUPS[group]
        if not case.cheat or case.cheat in options.cheats
    ]
    with TemporaryDirectory() as folder:
        kept = options.save.with_name(f"{options.save.name}.folder") if options.save else Path(folder)
        bench, progress = Bench(kept, Texts.named(options.texts)), Progress(options.save)
        if options.cost:
            for case in cases:
                print(json.dumps(cost(bench, case, options.cost)), flush=True)
            return 0
        for number, case in enumerate(cases, 1):
            if case not in progress.outcomes:
                began = time.process_time()
                progress.add(case, run(bench, case))
                seconds = time.process_time() - began
                print(
                    f"{seconds:5.0f} s  {number} of {len(cases)}  {case.name}, seed {case.seed}", file=sys.stderr, flush=True
                )
    rows = [row_of(case, progress.outcomes[case]) for case in cases]
    pools = {case.name: [Pool.of(each) for each in progress.outcomes[case].contributions] for case in cases}
    lines = list(scores(pools)) if any(case.cheat for case in cases) else []
    print_rows(rows, lines)
    false = sum(row["honest"]["found"] for row in rows)
    if options.json:
        print(json.dumps({"rule": asdict(RULE), "false": false, "rows": rows, "scores": lines}))
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main())
