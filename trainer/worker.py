"""Training of one round, from the swarm's parameters to an encoded difference.

`compute` reads theta, trains, and writes the encoded difference of theta and the local parameters. Between rounds the worker
keeps Adam's moments, which survive a restart in a file, and the residual of error feedback and, in a streamed run, its own
parameters, which do not survive it. `trainer.service` calls the worker, and decides which commands may interrupt it.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from kernels.layout import Layout
from kernels.outer_step import OuterStep
from kernels.schedule import Place
from protocol.formats.results import PolicyFigures, RatedAnswer, SourceLoss
from trainer.config import TrainingConfig
from trainer.data.corpus import BlockMissing
from trainer.data.rows import Rows
from trainer.device import default_dtype, is_gpu
from trainer.evaluation import Evaluation, EvaluationPlan, evaluation_tokens
from trainer.memory import REFERENCE_TOKENS
from trainer.models.llama.model import Decoder
from trainer.objective import ComparedObjective, RowsObjective, SourceTotals
from trainer.optim import InnerLoop
from trainer.parameters import F32, LocalParameters, NotFinite, WholeParameters
from trainer.rank_work import CourseName, RankWork, compile_layers, courses_of, layouts_of, receipts_seed
from trainer.ranks import LeadingRank
from trainer.reading import reading_of, tokenizer_of
from trainer.receipts import RECEIPT, Receipts, cosines, receipts_at
from trainer.reference import INITIAL, PublicWeights, ReferenceLog, write_reference
from trainer.samples import Samples
from trainer.weights.base import load_base


class BeyondLimits(NotFinite):
    """Error for a round whose loss or norm exceeds the limits of its task."""


@dataclass(frozen=True)
class Task:
    """Training task of one round, with the fields of `protocol.trainer_link.ComputeTask`.

    rollouts: file names of the batches, all in the folder `rollouts_in`, which is given only once to keep frames small.
    versions: number of the version that made each batch, or None if the peer has not given that version to this process.
    reference: path of the weights with which the KL term, or a loss of preferences, compares; empty if there are none.
    rate_factor: on the learning rate, if there are rollouts.
    fragment: the fragment whose difference is encoded.  continues: True to go on from the parameters where the last compute
    has ended.  most_loss, most_norm: limits beyond which a round is not contributed.
    """

    round: int
    rows: Sequence[Sequence[int]]
    steps: int
    first_step: int
    rollouts: Sequence[str] = ()
    rollouts_in: str = ""
    reference: str = ""
    shares: Sequence[float] = (0.0, 0.0)
    fragment: int = 0
    continues: bool = False
    most_loss: float = math.inf
    most_norm: float = math.inf
    versions: Sequence[int | None] = ()
    rate_factor: float = 1.0

    def check(self, loss: float, norm: float) -> None:
        """Raise BeyondLimits with a sentence for a round that exceeds the limits."""
        for name, value, most in (("loss", loss, self.most_loss), ("norm", norm, self.most_norm)):
            if value > most:
                raise BeyondLimits(
                    f"this try of round {self.round} is not contributed, because its {name} of {value:.3g} is above "
                    f"{most:.3g}, the limit by this peer's last rounds; the trainer starts again without its moments"
                )


@dataclass(frozen=True)
class AuditPoint:
    """Rows of one inner step to audit.

    share: of the way from the start of the round to its result, at which the rows' receipts are computed.  rows: numbers of
    the rows.  claimed: their receipts as their member claims them.
    """

    share: float
    rows: Sequence[int]
    claimed: bytes


@dataclass(frozen=True)
class AuditTask:
    """Audit of receipts of the last round.  result: path of its result.  rate, momentum: of its outer step."""

    result: str
    rate: float
    momentum: float
    points: Sequence[AuditPoint]


@dataclass(frozen=True)
class Done:
    """Statistics of a `compute`, which has written the contribution region.

    tokens: number of counted tokens. loss: mean over the steps. norm: norm of the difference. losses: losses by source,
    before each step. margin, accuracy: mean margin of the pairs, and share of pairs with a margin above 0; None without
    preferences.

    reward: mean over the trained rollouts, 0 to 1; None for text. kl: divergence of the policy from the reference weights,
    in nats per token; None in a run without a KL term. answers: the best and a typical answer; none for text.
    informative: number of problems whose answers had different rewards, so that they taught something; None for text.
    policy: figures on the policy that learned; None for text.
    """

    tokens: int
    steps: int
    loss: float
    norm: float
    reward: float | None = None
    kl: float | None = None
    losses: tuple[SourceLoss, ...] = ()
    margin: float | None = None
    accuracy: float | None = None
    answers: tuple[RatedAnswer, ...] = ()
    informative: int | None = None
    policy: PolicyFigures | None = None


Between = Callable[[BlockMissing | None], bool]
"""Function called while the worker waits for a block, with the block, and between parts of other work than steps, with None.
It may wait, or raise an exception to stop the work; it returns True if the round should end."""


Applied = Callable[[bool], bool]
"""Function that returns True once theta has the result of the last round; called with True, it waits for that, or raises an
exception to stop the work."""


def refuse_to_wait(missing: BlockMissing | None) -> bool:
    """Raise the exception for a block that is missing."""
    if missing is not None:
        raise missing
    return False


def _once_here(read: Callable[[], Rows], between: Between, *, may_stop: bool = False) -> Rows | None:
    """Return the rows once their blocks are here; None if the round should end earlier and `may_stop` is True."""
    while True:
        try:
            return read()
        except BlockMissing as missing:
            if between(missing) and may_stop:
                return None


class Worker:
    """Data, objective and work of one run, in this process and, if it is rank 0 of several, in the other ranks."""

    def __init__(
        self,
        config: TrainingConfig,
        device: torch.device,
        folder: Path | None = None,
        dtype: torch.dtype | None = None,
        ranks: LeadingRank | None = None,
    ) -> None:
        """Make a worker.

        folder: folder of the optimisers' moments, or None.  dtype: precision of products;
        None for the device's default.  ranks: processes that share the model, on devices like this one; None for this
        process alone.
        Raises ValueError for data that cannot be read on this computer.
        """
        self.config = config
        self.tokenizer = tokenizer_of(config)
        self.reading = reading_of(config)
        parameters = _parameters(config, device, dtype or default_dtype(device), shared=ranks is not None)
        compile_layers(parameters.model, config)
        courses = courses_of(config, folder)
        objective = courses[CourseName.ROWS].objective
        assert isinstance(objective, RowsObjective)
        self.objective = objective
        self.work = RankWork(
            parameters,
            layouts_of(config),
            courses,
            ranks,
            spares_memory=config.spares_memory,
            receipts=receipts_seed(config),
        )
        self.receipts = np.zeros(0, RECEIPT)
        """Receipts of the last round's rows, if the run keeps them."""
        self._log = ReferenceLog()
        self._initial = folder / INITIAL if folder is not None else None

    @property
    def model(self) -> Decoder:
        """Model that the worker trains."""
        return self.work.parameters.model

    @property
    def layout(self) -> Layout:
        """Chunks of a contribution."""
        return self.work.layouts.contribution

    @property
    def inner(self) -> InnerLoop:
        """Inner loop that trains on the run's data, created at the first use."""
        return self.work.inner

    @property
    def _compares(self) -> bool:
        """True if the loss on rows compares the model with other weights."""
        return isinstance(self.objective, ComparedObjective)

    def compute(
        self,
        task: Task,
        theta: F32,
        out: memoryview,
        after_step: Callable[[int, float, int, float], bool],
        between: Between = refuse_to_wait,
        applied: Applied = lambda needed: True,
    ) -> Done:
        """Train from `theta` and encode the difference into `out`; if the task continues, train from our own parameters.

        applied: called before each step of a continuing task until theta has the result of the last round.

        after_step(steps, mean loss, tokens, tokens per second) is called after every step; if it returns True, the round
        ends. Raises NotFinite, and passes on any exception of `after_step` and `between`.
        """
        if not 1 <= task.steps <= self.config.inner_steps:
            raise ValueError(f"a round has 1 to {self.config.inner_steps} steps, not {task.steps}")
        count, leased = self.config.data.sequences_per_step, sum(end - start for start, end in task.rows)
        if leased < task.steps * count:
            raise ValueError(f"{task.steps} steps read {task.steps * count} rows, but the task has {leased}")
        numbers = chain.from_iterable(range(start, end) for start, end in task.rows)
        self.work.take(CourseName.ROWS)
        if self._compares:
            leases = chain.from_iterable(range(start, end) for start, end in task.rows)
            if task.round == 0 and not task.reference and self._initial is not None and self.model.base is None:
                write_reference(self._initial, theta)
            self._compare(list(islice(leases, task.steps * count)), task.reference, between)
        owes = task.continues
        if owes:
            self.work.go_on(theta, (task.fragment - 1) % self.config.fragments)
        else:
            self.work.load(theta)
        losses, tokens, computed, totals = 0.0, 0, 0.0, SourceTotals(self.reading.names)
        steps, mean, rows, wanted = 0, 0.0, None, list(islice(numbers, count))
        kept: list[Receipts] = []
        for step in range(task.steps):
            rows = rows or _once_here(partial(self.batch, wanted), between, may_stop=steps > 0)
            if rows is None:
                break
            if owes and applied(step >= self.config.delay):
                self.work.merge(theta)
                owes = False
                if between(None) and steps:
                    break  # told to end while it waited
            began = time.monotonic()
            share = task.shares[0] + (task.shares[1] - task.shares[0]) * step / self.config.inner_steps
            pending = self.work.step(rows, Place(task.first_step + step, share))
            tokens, wanted = tokens + rows.counted, list(islice(numbers, count))
            rows = self._read_ahead(wanted) if step + 1 < task.steps else None
            loss = pending.read()
            if self.config.receipts:
                kept.append(self.work.take_receipts())
            losses, computed = losses + loss.mean, computed + time.monotonic() - began
            steps, mean = step + 1, losses / (step + 1)
            if not math.isfinite(mean):
                raise NotFinite(f"loss is {mean} at step {steps} of round {task.round}")
            for part in loss.parts:
                totals.add(part)
            if after_step(steps, mean, tokens, tokens / max(1e-9, computed)):
                break
        if owes and applied(True):
            self.work.merge(theta)
        self.receipts = np.concatenate(kept) if kept else np.zeros(0, RECEIPT)
        norm = self.work.encode_difference(theta, out, task.fragment)
        if self.config.is_streamed:
            self.work.keep(task.fragment)
        return Done(max(1, tokens), steps, mean, norm, losses=totals.losses, margin=totals.margin, accuracy=totals.accuracy)

    @property
    def audits(self) -> bool:
        """True if this trainer can audit receipts: it has the whole model, and one process."""
        return self.config.receipts and isinstance(self.work.parameters, WholeParameters) and self.work.parameters.ranks == 1

    def audit(self, task: AuditTask, state: F32, between: Between = refuse_to_wait) -> list[float | None]:
        """Return the cosine of each row's claimed receipt with the one computed here, None for rows that say nothing.

        state: theta and momentum after the round, (2 n,).  Uses the memory of the gradient.  Raises BlockMissing and
        exceptions of `between`, which is called before each point, and OSError or ValueError for a result that is not here.
        """
        step, layout, found = OuterStep(task.rate, task.momentum), self.work.layouts.result, list[float | None]()
        with open(task.result, "rb") as file:
            result = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if len(result) != layout.payload_bytes:
            raise ValueError("the result of the round has another size")
        for point in task.points:
            between(None)
            rows = _once_here(partial(self.batch, point.rows), between)
            assert rows is not None
            model = self.work.parameters.show(PublicWeights(state, result, layout, step, point.share))
            try:
                most, model.recomputed = self.inner.at_once(rows), self.model.recomputed
                audited = receipts_at(model, self.objective, rows, self.config.inner.z_loss, self.config.seed, most)
            finally:
                self.work.hide()
            alike = cosines(np.frombuffer(point.claimed, RECEIPT), audited)
            found += [None if np.isnan(each) else float(each) for each in alike]
        return found

    def _read_ahead(self, numbers: Sequence[int]) -> Rows | None:
        """Read the next step's rows while a GPU computes; None if a block is missing, or on a CPU, which is busy itself."""
        if not is_gpu(self.model.device):
            return None
        try:
            return self.batch(numbers)
        except BlockMissing:
            return None

    def _compare(self, windows: Sequence[int], path: str, between: Between, *, held_out: bool = False) -> None:
        """Compute the unknown log-probabilities of preferences under the reference weights.

        path: path of the reference weights; empty for the initial weights that this trainer has kept since round 0.  A model
        with factors is compared with its frozen base.  Raises ValueError if the weights are needed and there are none.
        """
        if not self._compares:
            return
        if not held_out:
            self._log.trim()
        pairs = {self.reading.pair(each, held_out=held_out): each for each in windows}
        missing = self._log.missing(pairs)
        if not path and self._initial is not None and self._initial.exists():
            path = str(self._initial)
        if missing and not path and self.model.base is None:
            raise ValueError(
                "preferences are compared with the weights at the beginning of the run, which are missing on this computer"
            )
        if not missing:
            return
        count = max(1, REFERENCE_TOKENS // (2 * self.config.data.sequence_length)) * self.work.parameters.ranks
        self.work.show_reference(path)
        try:
            for start in range(0, len(missing), count):
                some = missing[start : start + count]
                windows = [pairs[pair] for pair in some]
                rows = _once_here(partial(self.reading.rows, windows, held_out=held_out), between)
                assert rows is not None
                found = self.work.log_probabilities(CourseName.ROWS, rows)
                assert found is not None
                self._log.put(some, found)
                between(None)
        finally:
            self.work.hide()

    def evaluation(
        self, theta: F32, tokens: int | None = None, row: int = 0, reference: str = "", *, samples: bool = False
    ) -> Evaluation:
        """Begin an evaluation of `theta` on `tokens` held-out tokens, or on the `evaluation_tokens` of the run.

        row: row of the run, whose phase weighs the sources.  reference: path of the weights that preferences are compared
        with.  samples: True to complete the run's prompts as well.  Raises BlockMissing, and ValueError if the reference
        weights are needed and missing.
        """
        tokens = tokens or evaluation_tokens(self.config)
        length = self.config.data.sequence_length
        plan = EvaluationPlan.of(self.reading, self.objective, length, tokens, row)
        plan = replace(plan, batch=plan.batch * self.work.parameters.ranks)
        self._compare(plan.windows, reference, refuse_to_wait, held_out=True)
        written = Samples(self.config, self.tokenizer) if samples and self.config.samples is not None else None
        return Evaluation(self.work, plan, self._held_out, theta, written)

    def evaluate(self, theta: F32, tokens: int | None = None) -> float:
        """Return the held-out loss of `theta`, nats per token."""
        evaluation = self.evaluation(theta, tokens)
        evaluation.advance(evaluation.total)
        return evaluation.loss

    def batch(self, numbers: Sequence[int]) -> Rows:
        """Return the rows of the run with these numbers, with any known log-probabilities."""
        return self._known(self.reading.rows(numbers))

    def _held_out(self, windows: Sequence[int]) -> Rows:
        """Return held-out rows, with any known log-probabilities."""
        return self._known(self.reading.rows(windows, held_out=True))

    def _known(self, rows: Rows) -> Rows:
        """Return the rows; rows of preferences get their log-probabilities under the reference weights."""
        if rows.pairs_b is None:
            return rows
        return replace(rows, reference_b=self._log.get(rows.pairs_b[::2].tolist()).reshape(-1))


def _parameters(config: TrainingConfig, device: torch.device, dtype: torch.dtype, *, shared: bool) -> LocalParameters:
    if shared:
        from trainer.sharding import ranks_parameters  # loads torch's FSDP

        return ranks_parameters(config, device, dtype)
    base = load_base(config, device, dtype) if config.adapter is not None else None
    model = Decoder(config.model, device, base=base)
    model.compute_dtype = dtype
    return WholeParameters(model)
