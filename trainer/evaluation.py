"""Held-out loss of the swarm's parameters, overall and by source, measured a few windows at a time.

An evaluation reads the parameters from the memory that the peer shares. For a device with its own memory, they take the
place of the gradients, which hold nothing between two training steps. So an evaluation needs no memory besides the
activations of a few windows, and does not change the local parameters. `trainer.service` decides when to measure a few more
windows, and when to interrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.config import TrainingConfig
from trainer.data.corpus import CorpusReading
from trainer.data.rows import Rows
from trainer.objective import RowsObjective, SourceTotals
from trainer.parameters import F32
from trainer.rank_work import RankWork
from trainer.samples import Samples

SHARE_OF_A_ROUND = 8
"""Number of tokens on which a member trains in a round for each held-out token of an evaluation. An evaluation takes 4 % of
the member's time, because a training step computes three times as much as a forward pass."""
LEAST_TOKENS = 1 << 11
"""Minimum tokens of an evaluation, even if rounds are tiny; a loss over fewer tokens would mean nothing."""
MOST_TOKENS = 1 << 15
"""Maximum tokens of an evaluation, even if rounds are huge; they are enough to show a change of 1 %."""
FEW_WINDOWS = 4
"""Minimum windows of a source, even if its weight is small or 0."""
BATCH_TOKENS = 1 << 10
"""Number of tokens in a batch. An evaluation can be interrupted between two batches."""
MOST_LOADS = 4
"""Maximum number of times that an evaluation may copy the parameters to a device with its own memory."""


def evaluation_tokens(config: TrainingConfig) -> int:
    """Return the number of held-out tokens of an evaluation.

    The number is equal for all rounds and members, so that losses can be compared.
    """
    return min(MOST_TOKENS, max(LEAST_TOKENS, config.inner_steps * config.tokens_per_step // SHARE_OF_A_ROUND))


@dataclass(frozen=True)
class EvaluationPlan:
    """Held-out windows to measure.

    shares: weight of each source in the overall loss.  batch: number of windows in a batch.
    """

    reading: CorpusReading
    windows: tuple[int, ...]
    shares: tuple[int, ...]
    batch: int

    @classmethod
    def of(cls, reading: CorpusReading, objective: RowsObjective, length: int, tokens: int, row: int = 0) -> EvaluationPlan:
        """Return windows that are spread over each source's held-out split.

        The sources share `tokens` tokens as the mixture does at this row of the run, and each source has at least a few
        windows.
        """
        shares, size = reading.weights(row), length * objective.unit_rows
        most = max(1, tokens // size)
        splits = [reading.held_out_of(source) for source in range(len(shares))]
        whole = sum(share for share, split in zip(shares, splits, strict=True) if split) or 1
        windows: list[int] = []
        for share, split in zip(shares, splits, strict=True):
            count = min(len(split), max(min(FEW_WINDOWS, most), round(most * share / whole)))
            windows += [split[number * len(split) // count] for number in range(count)]
        return cls(reading, tuple(windows), shares, max(1, BATCH_TOKENS // size))


class Evaluation:
    """Measurement of the mean loss of `theta` (fp32, unchanged until the end) on the windows of a plan, followed by samples.

    done, total: numbers of windows, and of tokens of the longest sample.
    """

    def __init__(
        self,
        work: RankWork,
        plan: EvaluationPlan,
        read: Callable[[Sequence[int]], Rows],
        theta: F32,
        samples: Samples | None = None,
    ) -> None:
        """Begin.  read: returns held-out windows; raises BlockMissing.  samples: the samples to write; None for none."""
        self.total, self.done = len(plan.windows) + (samples.tokens if samples is not None else 0), 0
        self._samples = samples
        self._plan, self._totals = plan, SourceTotals(plan.reading.names)
        self._work, self._read, self._theta = work, read, theta

    @property
    def loss(self) -> float:
        """Mean of the sources' losses by their shares, in nats per counted token, without the z-loss.

        For preferences, the loss is the mean over the pairs.  All windows and samples must be done.
        """
        assert self.done == self.total
        return self._totals.mean(self._plan.shares)

    @property
    def totals(self) -> SourceTotals:
        """Losses by source so far."""
        return self._totals

    @property
    def texts(self) -> tuple[str, ...]:
        """Completions of the run's prompts; none without samples."""
        return self._samples.texts if self._samples is not None else ()

    def share(self, opportunities: int) -> int:
        """Return the number of windows or tokens to do now; `opportunities` calls, including this one, should cover all."""
        left = self.total - self.done
        least = self._plan.batch if self._work.parameters.shows_in_place else -(-self.total // MOST_LOADS)
        return min(left, max(least, -(-left // opportunities)))

    def advance(self, count: int, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Measure `count` more windows; once all are measured, write as many tokens of each sample.

        Stop early if `interrupted` returns True after a batch or a token. Do not call this during a step.  Raises
        BlockMissing; windows measured before then count.
        """
        stop, windows = min(self.total, self.done + count), self._plan.windows
        self._work.show(self._theta)
        try:
            while self.done < stop:
                if self._samples is not None and self.done >= len(windows):
                    self._samples.grow(self._work.next_tokens)
                    self.done += 1
                else:
                    batch = windows[self.done : min(stop, self.done + self._plan.batch)]
                    for losses in self._work.measure(self._read(batch)):
                        self._totals.add(losses)
                    self.done += len(batch)
                if interrupted():
                    return
        finally:
            self._work.hide()
