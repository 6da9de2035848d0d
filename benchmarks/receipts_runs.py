"""Runs of `benchmarks.receipts`: members that train apart and keep receipts, cheats among them, and audits of their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import adapters
from benchmarks.adapters import Texts, corpus_at, data_of, inner_of
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
    WIDTH,
    GradientProjection,
    Receipts,
    mean_of_parts,
    part_cosines,
    receipts_at,
    receipts_of,
)
from trainer.worker import Task, Worker

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
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
    """Return a corpus of chats in `folder`: a line of a text asks, and the next lines answer."""
    if not folder.exists():
        path = folder.with_suffix(".jsonl")
        with path.open("w") as file:
            for document in texts.documents():
                lines = document.text.splitlines()
                for first in range(0, len(lines) - 4, 5):
                    asked, answered = lines[first].strip()[:30], "\n".join(lines[first + 1 : first + 5]).strip()[:80]
                    if asked and answered:
                        chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
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
        where: dict[str, Any] = {"files": places["files"], "blocks": tuple(places["blocks"])}
        exchange: dict[str, Any] = {"codec": "int4", "fragments": case.fragments, "delay": case.delay}
        return TrainingConfig(case.seed, MODELS[case.size], data.changed(**form), inner, 1 << 16, CHUNK, **where, **exchange)

    def start(self, case: Case) -> F32:
        """Return the weights after the warm start with AdamW, on joined texts or on chats."""
        kind = "chat" if case.kind == "chat" else "joined"
        path = self._folder / f"start-{case.size}-{case.warm}-{case.seed}{'-chat' if kind == 'chat' else ''}.npy"
        if not path.exists():
            member = Worker(self.config(Case(case.seed, case.size, WARM_ROWS, rate=2.0, kind=kind)), CPU)
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
        rows, first = (
            [self.leased(number, round, step + other) for step in range(done)],
            case.warm + round * self.round_steps,
        )
        streamed: dict[str, Any] = {"fragment": round % case.fragments, "continues": self.config.is_streamed and round > 0}
        task = Task(round, rows, done, first, **streamed)

        def after_step(*_: Any) -> bool:
            kept.append(keeper.take()[1])
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


LAST = 10**9
"""An inner step after all of a round."""
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


def untrained(place: int | None = None, share: float = 1.0) -> Cheat:
    """Compute receipts without the gradients of weights, and contribute the last result.

    place: the inner step at whose expected weights all are computed; None for each at its own.  share: of the layers.
    """

    def cheat(swarm: Swarm, number: int, round: int, sent: Mapping[int, Sent]) -> Sent:
        worker = swarm.workers[number]

        def claim(rows: Rows, at: int) -> Receipts:
            model = model_at(worker.model, swarm.guessed(at if place is None else min(place, swarm.round_steps)))
            model.model.layers = model.model.layers[: max(1, int(share * len(model.model.layers)))]
            return receipts_at(model, worker.objective, rows, Z_LOSS, SEED, AT_ONCE)

        return swarm.forged(number, round, swarm.encoded(swarm.result), claim)

    return cheat


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
    matrix: Tensor = torch.linalg.solve(square + ridge * torch.eye(6 * width), product)
    return matrix


CHEATS: Mapping[str, Cheat] = {
    "zeros": zeros,
    "copy": copied,
    "copy + noise": partial(copied, share=0.5),
    "stale": stale,
    "own data": lambda swarm, number, round, sent: swarm.train(number, round, other=OTHER_STEP),
    **{
        f"{int(100 * share)} %{' scaled' if scaled else ''}": some_steps(share, scaled)
        for share in (0.1, 0.5, 0.9)
        for scaled in (False, True)
    },
    "half batches": lambda swarm, number, round, sent: swarm.train(number, round),
    "half rows": half_rows,
    "forward": forward_only(False),
    "map": forward_only(True),
    "no weight gradients": untrained(),
    "first weights": untrained(0),
    "last weights": untrained(LAST),
    "half of the layers": untrained(share=0.5),
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
    """Audited rows of one member in one round.

    parts: cosines of the parts, (J, R, PARTS), nan for a part without gradient.  losses: claimed ones less those of the
    audit, (J, R).
    """

    round: int
    member: int
    honest: bool
    parts: F64
    losses: F64

    @cached_property
    def rows(self) -> F64:
        """Cosines of the rows, (J, R), as `trainer.receipts.cosines`."""
        return mean_of_parts(self.parts)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parts": self.parts.tolist(), "losses": self.losses.tolist()}

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> Contribution:
        return cls(**{**entry, "parts": np.array(entry["parts"]), "losses": np.array(entry["losses"])})


@dataclass(frozen=True)
class Outcome:
    """Result of a run.  loss: held-out, nats per token."""

    loss: float
    contributions: list[Contribution]


def public_weights(swarm: Swarm, held: Sequence[Held], case: Case, round: int, place: int) -> F32:
    """Return the weights at which an inner step of a round is audited.

    The mean of the members' steps, weighed by tokens as the result, stands in for H.
    """
    now, own = held[round], held[round].theta.copy()
    if case.public == STATE:
        return now.before.copy() if place < case.delay else own
    tokens = sum(each.tokens for each in now.sent)
    mean = sum(each.steps * each.tokens for each in now.sent) / tokens * case.fragments
    for number, span in enumerate(swarm.spans):
        following = round + (number - round) % case.fragments
        sent = following - case.fragments
        since = (round - 1 - sent) * swarm.round_steps + place if sent >= 0 else round * swarm.round_steps + place
        if place < case.delay and sent == round - 1 >= 0:
            own[span] = now.before[span] - held[sent].result[span]
        if following < len(held):
            own[span] -= np.float32(since / mean) * held[following].result[span]
    return own


@lru_cache(maxsize=1)
def held_rounds(bench: Bench, case: Case) -> tuple[Swarm, list[Held]]:
    """Hold a run's rounds; after those that are audited, each fragment is exchanged once more."""
    swarm, fragments = Swarm(bench, case), case.fragments
    return swarm, [swarm.hold(round) for round in range((1 + case.rounds) * fragments + fragments - 1)]


def run(bench: Bench, case: Case) -> Outcome:
    """Hold a run's rounds, and audit their rows, except in each fragment's first round."""
    swarm, held = held_rounds(bench, replace(case, public=PATH))
    judge, contributions = swarm.workers[-1], list[Contribution]()
    for round in range(case.fragments, len(held) - case.fragments + 1):
        wanted = sorted({place for each in held[round].sent for place in each.places})
        found: dict[tuple[int, int], Receipts] = {}
        for place in wanted:
            which = [number for number, each in enumerate(held[round].sent) if place in each.places]
            some = [held[round].sent[number] for number in which]
            rows = Rows.joined([each.rows[each.places.index(place)] for each in some])
            receipts = audited(judge.model, judge, public_weights(swarm, held, case, round, place), rows)
            found |= {(number, place): part for number, part in zip(which, np.split(receipts, len(some)), strict=True)}
        for number, each in enumerate(held[round].sent):
            theirs = [found[number, place] for place in each.places]
            parts = np.stack([part_cosines(*pair) for pair in zip(each.claims, theirs, strict=True)]).round(4)
            claimed, seen = (np.stack([step["loss"] for step in some]).astype(float) for some in (each.claims, theirs))
            contributions.append(Contribution(round, number, each.honest, parts, (claimed - seen).round(4)))
    return Outcome(judge.evaluate(swarm.theta, EVALUATION_TOKENS), contributions)
