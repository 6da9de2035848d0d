"""A trainer that computes nothing but vectors: the difference is a pull towards a common target, plus noise of its own.

It takes simulated time, can be slow, stopped early, paused and killed, and is a pure function of (seed, round, steps, rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import trio

from kernels.codecs.format import norm
from protocol.chain.leases import Ranges, first_rows
from protocol.formats.training import RECEIPT_BYTES
from protocol.run.manifest import RunManifest
from protocol.trainer_link import ComputeTask, Contribution, EvaluatedLoss, Progress, ReceiptAudit, TrainerDied
from protocol.wire import canonical
from protocol.wire.hashes import Hash, hash_bytes

EVALUATION_PARTS = 4


def receipts_of(rows: Ranges) -> bytes:
    """What stands for the receipts of rows: their numbers."""
    numbers = np.concatenate([np.arange(start, end, dtype="<u8") for start, end in rows]) if rows else np.zeros(0, "<u8")
    receipts = np.zeros((len(numbers), RECEIPT_BYTES), np.uint8)
    receipts[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
    return receipts.tobytes()


class ArithmeticTrainer:
    """Implements `protocol.trainer_link.TrainerLink`.

    step_s: simulated seconds of one inner step.  on_contribution: told of each contribution, and of the rows that it read.
    """

    def __init__(
        self, manifest: RunManifest, seed: int, step_s: float, on_contribution: Callable[[memoryview, Ranges | None], None]
    ) -> None:
        self._manifest, self._seed = manifest, seed
        self.step_s = step_s
        self._on_contribution = on_contribution
        self._layout = manifest.layouts.contribution
        self._target = np.random.Generator(np.random.Philox(manifest.seed + 1)).standard_normal(
            manifest.parameters, dtype=np.float32
        )
        self._tokens_a_step = manifest.data.sequences_per_step * manifest.data.sequence_length
        self._finish = False
        self._resumed = trio.Event()
        self._resumed.set()
        self._deaths = 0
        self._dying = self._is_asked = False
        self.said: list[str] = []
        """What it was asked, and what it came to the end of."""

    figures = None
    busy_share = None
    joules_per_token = None
    ended = ""

    @property
    def pid(self) -> int | None:
        return 1000 + self._deaths

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        assert not self._is_asked, "the trainer does one thing at a time, apart from an evaluation"
        self._is_asked = True
        try:
            yield
        finally:
            self._is_asked = False

    async def initialise(self, theta: memoryview) -> None:
        with self._one_at_a_time():
            await trio.lowlevel.checkpoint()
            np.frombuffer(theta, np.float32)[:] = np.random.Generator(np.random.Philox(self._manifest.seed)).standard_normal(
                self._manifest.parameters, dtype=np.float32
            )

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        with self._one_at_a_time():
            return await self._compute(task, theta, on_progress, applied)

    async def _compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None,
    ) -> Contribution:
        self.said.append(f"compute {task.round}")
        self._finish, steps, deaths = False, 0, self._deaths
        while steps < task.steps and not (self._finish and steps):
            await self._resumed.wait()
            if applied is not None and steps >= self._manifest.rounds.delay:
                await applied.wait()
                if self._finish and steps:
                    break
            await trio.sleep(self.step_s)
            self._die_if_killed(deaths)
            steps += 1
            on_progress(Progress(task.round, steps, 1.0, steps * self._tokens_a_step, self._tokens_a_step / self.step_s))
        if applied is not None:
            await applied.wait()
        within = self._manifest.fragment_spans[task.fragment]
        values, target = (np.zeros(self._manifest.fragment_parameters, np.float32) for _ in range(2))
        values[: len(within)] = np.frombuffer(theta, np.float32)[within.start : within.stop]
        target[: len(within)] = self._target[within.start : within.stop]
        read = first_rows(task.rows, steps * self._manifest.data.sequences_per_step)
        drawn = hash_bytes("noise", canonical.encode([self._seed, task.round, steps, [list(each) for each in read]]))
        noise = np.random.Generator(np.random.Philox(key=int.from_bytes(drawn[:16], "big"))).standard_normal(
            values.size, dtype=np.float32
        )
        delta = (values - target) * np.float32(0.05 * steps / task.steps) + noise * np.float32(0.01)
        data = memoryview(bytearray(self._layout.payload_bytes))
        for span in self._layout:
            self._layout.format.encode(delta[span.values], data[span.encoded])
        self._on_contribution(data, read)
        loss = float(np.mean((values - target) ** 2))
        receipts = memoryview(self._receipts_of(read) if self.audits else b"")
        return Contribution(task.round, steps * self._tokens_a_step, steps, loss, norm(delta), data, receipts=receipts)

    @property
    def audits(self) -> bool:
        return self._manifest.receipt_bytes > 0

    def _receipts_of(self, rows: Ranges) -> bytes:
        """In place of receipts: the numbers of the rows."""
        return receipts_of(rows)

    async def audit(self, task: ReceiptAudit, state: memoryview) -> list[float]:
        """Takes as long as training on these rows."""
        assert task.result.exists() and len(state) == self._manifest.state_bytes
        found, deaths = list[float](), self._deaths
        with self._one_at_a_time():
            for point in task.points:
                await self._resumed.wait()
                await trio.sleep(self.step_s * len(point.rows) / self._manifest.data.sequences_per_step)
                self._die_if_killed(deaths)
                true = receipts_of(tuple((row, row + 1) for row in point.rows))
                for start in range(0, len(true), RECEIPT_BYTES):
                    span = slice(start, start + RECEIPT_BYTES)
                    found.append(0.9 if point.claimed[span] == true[span] else 0.0)
        self.said.append("audited")
        return found

    def finish(self) -> None:
        self._finish = True

    async def evaluate(
        self, theta: memoryview, on_progress: Callable[[int, int], None], row: int = 0, *, samples: bool = False
    ) -> EvaluatedLoss:
        """Takes as long as some inner steps, beside which it goes on."""
        self.said.append("evaluate")
        before, deaths = bytes(theta), self._deaths
        for part in range(1, EVALUATION_PARTS + 1):
            await self._resumed.wait()
            await trio.sleep(self.step_s)
            self._die_if_killed(deaths)
            on_progress(part, EVALUATION_PARTS)
        assert theta == before, "the parameters were changed while they were measured"
        self.said.append("evaluated")
        prompts = self._manifest.samples.prompts if samples and self._manifest.samples is not None else []
        written = tuple(f"{prompt}\n{np.frombuffer(theta, np.float32)[0]:.6f}" for prompt in prompts)
        return EvaluatedLoss(float(np.mean((np.frombuffer(theta, np.float32) - self._target) ** 2)), samples=written)

    def _die_if_killed(self, deaths: int) -> None:
        """deaths: at the beginning of what is asked now; all that goes on dies together."""
        if self._dying:
            self._dying = False
            self._deaths += 1
        if self._deaths != deaths:
            raise TrainerDied("killed by signal 9")

    def pause(self) -> None:
        self._resumed = trio.Event()

    def report_missing(self, report: Callable[[Hash, int], None]) -> None:
        """Nothing is ever missing: it reads no data."""

    def resume(self) -> None:
        self._resumed.set()

    def kill(self) -> None:
        """As by SIGKILL: the running compute fails at its step."""
        self._dying = True
