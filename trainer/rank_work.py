"""Work of one rank of a trainer, which has a part of the parameters and a share of the rows.

A trainer of one process has one rank, which does everything. With several ranks, rank 0 calls the methods of its `RankWork`.
Each method tells the other ranks, which run `serve`, to call the same method (`trainer.ranks`).
"""

from __future__ import annotations

import mmap
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from kernels.codecs.ladder import codec_named
from kernels.layout import Layouts, chunk_layouts, fragment_length, fragment_span
from kernels.schedule import Place
from protocol.formats.training import InnerConfig
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.device import OUT_OF_MEMORY, is_gpu
from trainer.memory import EXIT_NO_MEMORY
from trainer.models.llama.model import Decoder
from trainer.objective import ComparedObjective, Objective, StepRows, UnitLosses, objective_of
from trainer.optim import (
    ROLLOUTS,
    SHARE,
    STREAMED_SHARE,
    TEXT,
    InnerLoop,
    MicroBatches,
    MomentsFile,
    PendingLoss,
    part_of,
    units_at_once,
)
from trainer.parameters import F32, LocalParameters
from trainer.ranks import SETTLE_S, FollowingRank, Operation, OperationInbox, RankOrder, Ranks
from trainer.receipts import Receipts
from trainer.reference import HeldWeights, ReferenceWeights, ZeroFactors, write_reference
from trainer.rl.policy import PolicyObjective, adamw_config
from trainer.samples import next_tokens


class CourseName(Enum):
    """Name of a course of a run."""

    ROWS = "rows"
    ROLLOUTS = "rollouts"


@dataclass(frozen=True)
class Course:
    """Objective that a model is trained on, and the optimiser's settings.

    moments: file of the optimiser's moments, the same for all ranks; None to keep none.
    """

    objective: Objective[Any]
    inner: InnerConfig
    moments: MomentsFile | None = None


def courses_of(config: TrainingConfig, folder: Path | None) -> dict[CourseName, Course]:
    """Return the courses of a run.  folder: folder of the optimisers' moments; None to keep none."""
    share = STREAMED_SHARE if config.is_streamed else SHARE
    text, rollouts = (MomentsFile(folder / name, share) if folder is not None else None for name in (TEXT, ROLLOUTS))
    courses = {CourseName.ROWS: Course(objective_of(config), config.inner, text)}
    if config.rl is not None:
        courses[CourseName.ROLLOUTS] = Course(PolicyObjective(config.rl), adamw_config(config.rl), rollouts)
    return courses


def layouts_of(config: TrainingConfig) -> Layouts:
    """Return the chunks of a run's contributions, each of which is to a fragment.

    Raises ValueError for an unknown codec.
    """
    codec = codec_named(config.codec)
    values = fragment_length(config.parameters, codec.block, config.fragments)
    return chunk_layouts(codec, values, config.chunk_parameters)


def receipts_seed(config: TrainingConfig) -> int | None:
    """Return the seed of a run's receipts; None if it keeps none."""
    return config.seed if config.receipts else None


class RankWork:
    """Parameters and inner loop of one rank.

    layouts: the chunks of a contribution; each is encoded separately.
    """

    def __init__(
        self,
        parameters: LocalParameters,
        layouts: Layouts,
        courses: Mapping[CourseName, Course],
        ranks: Ranks | None = None,
        *,
        spares_memory: bool = False,
        receipts: int | None = None,
    ) -> None:
        """Make the work of a rank, which begins with the course of rows if the run has one.

        ranks: None for this process alone.  receipts: seed of the receipts of rows; None to keep none.
        """
        self.parameters, self.layouts = parameters, layouts
        count = parameters.model.count
        self._residual: F32 | None = np.zeros(count, np.float32) if layouts.codec.feedback is not None else None
        """Remainder of earlier contributions, in the flat vector; memory is taken only for this rank's rows."""
        self._courses, self._name = courses, next(iter(courses))
        self._ranks, self._spares_memory, self._receipts = ranks or Ranks(), spares_memory, receipts
        self._inner: InnerLoop | None = None
        self._shown: Decoder | None = None
        self._kept: int | None = None
        """Fragment of the last contribution, until its result is merged."""

    @property
    def inner(self) -> InnerLoop:
        """Inner loop of the present course, created at the first use."""
        if self._inner is None:
            course = self._courses[self._name]
            self._inner = InnerLoop(
                self.parameters, course.inner, course.objective, self._ranks, spares_memory=self._spares_memory
            )
            if course.moments is not None:
                course.moments.restore(self._inner.optimiser)
            if self._receipts is not None and self._name is CourseName.ROWS:
                self._inner.keep_receipts(self._receipts)
        return self._inner

    def take(self, name: CourseName) -> None:
        """Change to a course, dropping the optimiser of another course, because memory suffices for only one."""
        if name is not self._name:
            with self._ranks.operation("take", name):
                self._name, self._inner = name, None

    def load(self, theta: F32) -> None:
        """Set the parameters to `theta`, which may change afterwards."""
        with self._ranks.operation("load"):
            self.parameters.load(theta)
            self._kept = None
            self._ranks.collect(None)

    def go_on(self, theta: F32, fragment: int) -> None:
        """Continue from our own parameters, whose last contribution was to `fragment`; call `merge` before the next.

        A process that has not made that contribution begins with theta.
        """
        if self._kept != fragment:
            self.load(theta)
            self.keep(fragment)

    def keep(self, fragment: int) -> None:
        """Keep a copy of the parameters of a fragment, until `merge`."""
        with self._ranks.operation("keep", fragment):
            self.parameters.keep(self._span(fragment))
            self._kept = fragment
            self._ranks.collect(None)

    def merge(self, theta: F32) -> None:
        """Take over the result of the last contribution, which is in theta, without losing later training."""
        assert self._kept is not None
        with self._ranks.operation("merge"):
            self.parameters.merge(theta, self._span(self._kept))
            self._kept = None
            self._ranks.collect(None)

    def _span(self, fragment: int) -> range:
        return fragment_span(self.parameters.model.count, self.layouts.contribution.length, fragment)

    def step(self, rows: StepRows, place: Place) -> PendingLoss:
        """Take one inner step on rows, as `InnerLoop.step` does."""
        with self._ranks.operation("step", rows, place):
            return self.inner.step(rows, place)

    def take_receipts(self) -> Receipts:
        """Return the receipts of the last step's rows as `InnerLoop.take_receipts` does."""
        with self._ranks.operation("take_receipts"):
            return self.inner.take_receipts()

    def encode_difference(self, theta: F32, out: memoryview, fragment: int = 0) -> float:
        """Encode theta minus the parameters of a fragment into `out`; return the difference's norm.  Raises NotFinite."""
        with self._ranks.operation("encode", fragment):
            return self.parameters.encode_difference(theta, self.layouts, self._residual, out, self._span(fragment).start)

    def show(self, theta: F32) -> None:
        """Use the parameters `theta`, to measure losses between two steps, until `hide`."""
        with self._ranks.operation("show"):
            self._shown = self.parameters.show(theta)
            self._ranks.collect(None)

    def show_reference(self, path: str) -> None:
        """Use the reference weights in a file as `show` does; of a model with factors, the frozen model alone.

        Raises ValueError and OSError, for all ranks or none.
        """
        self.show_file(path if self.parameters.model.base is None else "")

    def show_version(self, version: HeldWeights) -> None:
        """Use the weights of a version as `show` does.  Raises OSError.

        Only rank 0 holds versions; other ranks read a file, which is removed at once.
        """
        if self._ranks.count == 1:
            self._shown = self.parameters.show(version)
            return
        moments = self._courses[self._name].moments
        with TemporaryDirectory(dir=moments.path.parent if moments is not None else None) as folder:
            path = Path(folder) / "version.bf16"
            write_reference(path, version)
            self.show_file(str(path))

    def show_file(self, path: str) -> None:
        """Use the parameters in a file of bf16 values as `show` does; without a path, factors that are 0.

        Raises ValueError and OSError, for all ranks or none.
        """
        model = self.parameters.model
        assert path or model.base is not None, "only factors may be 0"
        weights = ReferenceWeights(Path(path), model.count) if path else ZeroFactors(model.count)
        with self._ranks.operation("show_file", path):
            self._shown = self.parameters.show(weights)
            self._ranks.collect(None)

    @torch.no_grad()
    def measure(self, rows: Rows) -> list[UnitLosses]:
        """Return the losses of rows, at rank 0; call `show` first."""
        assert self._shown is not None
        with self._ranks.operation("measure", rows):
            objective, own = self._courses[CourseName.ROWS].objective, []
            units = len(rows) // objective.unit_rows
            for span in self._ranks.spans(units, units):
                some = part_of(rows, span, objective)
                loss = objective.loss(self._shown, some, 0.0)
                own += [objective.measured(some, loss)] if span else []
            return [losses for of_rank in self._ranks.collect(own) for losses in of_rank]

    def next_tokens(self, texts: Sequence[Sequence[int]], streams: Sequence[int], length: int) -> list[int]:
        """Choose the next tokens of texts as `trainer.samples.next_tokens` does; call `show` first."""
        assert self._shown is not None
        with self._ranks.operation("next_tokens", texts, streams, length):
            return next_tokens(self._shown, texts, streams, length)

    def log_probabilities(self, name: CourseName, rows: StepRows) -> F32 | None:
        """Return the log-probabilities of the rows of a course, (units, any), at rank 0; None at others.

        The parameters are those that are shown, otherwise the rank's own.
        """
        objective, model = self._courses[name].objective, self._shown or self.parameters.model
        assert isinstance(objective, ComparedObjective)
        with self._ranks.operation("log_probabilities", name, rows):
            units = len(rows) // objective.unit_rows

            def compute(part: int) -> list[F32]:
                found = []
                for span in self._ranks.spans(units, part):
                    values = objective.log_probabilities(model, part_of(rows, span, objective))
                    found += [values.float().cpu().numpy()] if span else []
                return found

            at_once = units_at_once(objective, rows, -(-units // self._ranks.count))
            own = MicroBatches(parameters=self.parameters if self._ranks.count > 1 else None).run(at_once, compute)
            parts = [values for of_rank in self._ranks.collect(own) for values in of_rank]
            return np.concatenate(parts) if parts else None

    def hide(self) -> None:
        """Use the own parameters again."""
        with self._ranks.operation("hide"):
            self._shown = None
            self.parameters.hide()

    def store_moments(self) -> None:
        """Write the moments to their file, for a later process."""
        moments = self._courses[self._name].moments
        if moments is not None and self._inner is not None:
            moments.store(self._inner.optimiser, self._ranks)

    def remove_moments(self) -> None:
        """Remove the file of the moments, so that a later process begins without moments."""
        if (moments := self._courses[self._name].moments) is not None:
            moments.remove()

    def write_moments(self, path: Path) -> None:
        """Write this rank's moments into the file that rank 0, in `MomentsFile.store`, has begun."""
        moments = self._courses[self._name].moments
        assert moments is not None
        with self._ranks.operation("write_moments", path):
            self._ranks.collect(moments.write(self.inner.optimiser, path))


def compile_layers(model: Decoder, config: TrainingConfig) -> None:
    """Have the layers compiled if the configuration asks for it and a compiler is available.

    Layers that are copied to the device are not compiled: a compiled backward pass would not wait for its copy.
    """
    if model.prefetches or config.compiles == "off" or (config.compiles == "auto" and not is_gpu(model.device)):
        return
    try:
        model.compile_layers()
    except OSError as error:
        print(f"the layers are not compiled: {error}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------------------------
# Process of a rank other than rank 0.


def serve(fd: int, theta_fd: int, contribution_fd: int) -> int:
    """Do the operations that rank 0 orders until it ends, which ends this process, or one fails; return the exit status."""
    if sys.platform == "linux":
        from trainer.environments.confinement import PR_SET_PDEATHSIG, prctl

        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends this process even if it is stopped, or a library holds all threads
    connection = Connection(fd)
    inbox = OperationInbox(connection)  # ends this process if rank 0 has already ended
    order: RankOrder = inbox.next()
    try:
        work = _joined(order, connection)
        count = order.config.parameters
        theta: F32 = np.frombuffer(mmap.mmap(theta_fd, 4 * count, access=mmap.ACCESS_READ), dtype="<f4", count=count)
        out = memoryview(mmap.mmap(contribution_fd, work.layouts.contribution.payload_bytes))
        while True:
            _perform(work, inbox.next(), theta, out)
    except Exception as error:  # noqa: BLE001 - a rank ends with any error, and all others with it
        threading.Event().wait(2 * SETTLE_S)  # if rank 0 met the same error or an end, it reports that and ends this process
        traceback.print_exc()
        print(f"rank {order.number}: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_NO_MEMORY if isinstance(error, OUT_OF_MEMORY) else 1


def _joined(order: RankOrder, connection: Connection) -> RankWork:
    """Meet the other ranks, and make this rank's work."""
    from trainer.sharding import join_group, ranks_parameters

    device, count = torch.device(order.devices[order.number]), len(order.devices)
    join_group(order.number, count, order.store, order.secret, device)
    parameters = ranks_parameters(order.config, device, order.dtype)
    compile_layers(parameters.model, order.config)
    courses, ranks = courses_of(order.config, order.folder), FollowingRank(order, connection)
    layouts, receipts = layouts_of(order.config), receipts_seed(order.config)
    return RankWork(parameters, layouts, courses, ranks, spares_memory=order.config.spares_memory, receipts=receipts)


def _perform(work: RankWork, operation: Operation, theta: F32, out: memoryview) -> None:
    name, threads, arguments = operation
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    match name:
        case "load" | "merge" | "show":
            getattr(work, name)(theta)
        case "encode":
            work.encode_difference(theta, out, *arguments)
        case "step":
            work.step(*arguments).read()
        case (
            "take"
            | "keep"
            | "take_receipts"
            | "show_file"
            | "measure"
            | "next_tokens"
            | "log_probabilities"
            | "hide"
            | "write_moments"
        ):
            getattr(work, name)(*arguments)
        case other:
            raise ValueError(f"unknown operation {other!r}")
