"""Work of one rank of a trainer: on its part of the parameters, and on its share of the rows.

A trainer of one process has one rank, which does everything. With several, rank 0 calls the methods of its `RankWork`, each
of which tells the other ranks to call the same (`trainer.ranks`); these run in `serve`.
"""

from __future__ import annotations

import mmap
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

import numpy as np
import torch

from kernels.layout import chunk_layout, payload_bytes
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.device import OUT_OF_MEMORY
from trainer.memory import EXIT_NO_MEMORY
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, Objective, UnitLosses
from trainer.optim import InnerLoop, MomentsFile, PendingLoss, Place
from trainer.parameters import F32, LocalParameters
from trainer.ranks import SETTLE_S, FollowingRank, Operation, OperationInbox, RankOrder, Ranks


class RankWork:
    """Parameters and inner loop of one rank.

    layout: the chunks of a contribution; each is encoded separately.
    """

    def __init__(
        self,
        config: TrainingConfig,
        parameters: LocalParameters,
        objective: Objective,
        ranks: Ranks,
        moments: MomentsFile | None = None,
    ) -> None:
        """Make the work of a rank.  moments: file of the optimiser's moments, the same for all ranks, or None."""
        self._config, self._objective = config, objective
        self._ranks, self._moments = ranks, moments
        self.parameters = parameters
        self.layout = chunk_layout(config.model.parameters, config.chunk_parameters)
        self._inner: InnerLoop | None = None
        self._shown: Decoder | None = None

    @property
    def inner(self) -> InnerLoop:
        """Inner loop that trains on the run's data, created at the first use."""
        if self._inner is None:
            self._inner = InnerLoop(
                self.parameters, self._config.inner, self._objective, self._ranks, spares_memory=self._config.spares_memory
            )
            if self._moments is not None:
                self._moments.restore(self._inner.optimiser)
        return self._inner

    def load(self, theta: F32) -> None:
        """Set the parameters to `theta`, which may change afterwards."""
        self._ranks.tell("load")
        self.parameters.load(theta)
        self._ranks.collect(None)

    def step(self, rows: Rows, place: Place) -> PendingLoss:
        """Take one inner step on rows, as `InnerLoop.step` does."""
        self._ranks.tell("step", rows, place)
        return self.inner.step(rows, place)

    def encode_difference(self, theta: F32, out: memoryview) -> float:
        """Encode theta minus the parameters into `out`; return the norm of the difference.  Raises NotFinite."""
        self._ranks.tell("encode")
        return self.parameters.encode_difference(theta, self.layout, out)

    def show(self, theta: F32) -> None:
        """Use the parameters `theta`, to measure losses between two steps, until `hide`."""
        self._ranks.tell("show")
        self._shown = self.parameters.show(theta)
        self._ranks.collect(None)

    @torch.no_grad()
    def measure(self, rows: Rows) -> list[UnitLosses]:
        """Return the losses of rows, at rank 0; call `show` first."""
        assert self._shown is not None
        self._ranks.tell("measure", rows)
        own, unit, units = [], self._objective.unit_rows, len(rows) // self._objective.unit_rows
        for span in self._ranks.spans(units, units):
            some = rows[span.start * unit : span.stop * unit] if span else rows[:unit]
            loss = self._objective.loss(self._shown, some, 0.0)
            own += [self._objective.measured(some, loss)] if span else []
        return [losses for of_rank in self._ranks.collect(own) for losses in of_rank]

    def hide(self) -> None:
        """Use the own parameters again."""
        self._ranks.tell("hide")
        self._shown = None
        self.parameters.hide()

    def store_moments(self) -> None:
        """Write the moments to their file, for a later process."""
        if self._moments is not None and self._inner is not None:
            self._moments.store(self._inner.optimiser, self._ranks)

    def write_moments(self, path: str) -> None:
        """Write this rank's moments into the file that rank 0 has begun."""
        assert self._moments is not None
        self._ranks.collect(self._moments.write(self.inner.optimiser, path))

    def end_reading(self) -> None:
        """Drop the inner loop, because another optimiser needs its memory."""
        self._inner = None


# ------------------------------------------------------------------------------------------------------------------------
# Process of a rank other than rank 0.


def serve(fd: int, theta_fd: int, contribution_fd: int) -> int:
    """Do what rank 0 says until it ends, which ends this process, or until an operation fails; return the exit status."""
    if sys.platform == "linux":
        from trainer.environments.confinement import PR_SET_PDEATHSIG, prctl

        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends us even if we are stopped, or a library holds all threads
    connection = Connection(fd)
    inbox = OperationInbox(connection)  # ends us if rank 0 ended before
    order: RankOrder = inbox.next()
    try:
        work = _joined(order, connection)
        count = order.config.model.parameters
        theta: F32 = np.frombuffer(mmap.mmap(theta_fd, 4 * count, access=mmap.ACCESS_READ), dtype="<f4", count=count)
        out = memoryview(mmap.mmap(contribution_fd, payload_bytes(work.layout)))
        while True:
            _perform(work, inbox.next(), theta, out)
    except Exception as error:  # noqa: BLE001 - a rank ends with any error, and all others with it
        threading.Event().wait(2 * SETTLE_S)  # rank 0, if it met the same error or an end, reports that and ends us
        traceback.print_exc()
        print(f"rank {order.number}: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_NO_MEMORY if isinstance(error, OUT_OF_MEMORY) else 1


def _joined(order: RankOrder, connection: Connection) -> RankWork:
    """Meet the other ranks, and make this rank's work."""
    from torch._C._distributed_c10d import TCPStore

    from trainer.sharding import join_group, sharded_parameters

    device, count = torch.device(order.devices[order.number]), len(order.devices)
    join_group(order.number, count, TCPStore("127.0.0.1", order.port, count, False), device)
    parameters = sharded_parameters(order.config.model, device, order.dtype)
    moments = MomentsFile(order.moments) if order.moments is not None else None
    return RankWork(order.config, parameters, LanguageModelObjective(), FollowingRank(order, connection), moments)


def _perform(work: RankWork, operation: Operation, theta: F32, out: memoryview) -> None:
    name, threads, arguments = operation
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    match name:
        case "load":
            work.load(theta)
        case "step":
            work.step(*arguments).read()
        case "encode":
            work.encode_difference(theta, out)
        case "show":
            work.show(theta)
        case "measure":
            work.measure(*arguments)
        case "hide":
            work.hide()
        case "write_moments":
            work.write_moments(*arguments)
        case other:
            raise ValueError(f"unknown operation {other!r}")
