"""Curves and credits of a run, from the records in its folder.

A reader remembers what it has counted, so that a page that is kept current reads each record once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from pathlib import Path

from protocol.chain.credit import Ledger, reward_of
from protocol.chain.progress import RunProgress, extension_of
from protocol.chain.records import genesis_tip, record_hash
from protocol.chain.store import Records
from protocol.chain.stored_run import ReadOnlyDisk
from protocol.run.manifest import SignedManifest
from protocol.wire.messages import Commit


@dataclass(frozen=True)
class Round:
    """One committed round.

    rounds, tokens: done by all members up to the end of this round.  loss, losses: of its members, as they claim, the latter
    by source.  reward: of its rollouts, as its members claim; None without rollouts.
    """

    rounds: int
    tokens: int
    members: int
    loss: float
    losses: Mapping[str, float]
    reward: float | None


class ChainReader:
    """Rounds and credits of the run in `folder`, up to the newest record that `read` has seen.  Blocking.

    It changes nothing in the folder, so the peer may run.
    """

    def __init__(self, signed: SignedManifest, folder: Path) -> None:
        self._signed = signed
        self._folder = folder / "records"
        self._records = Records(ReadOnlyDisk(), self._folder)
        self._start()

    def _start(self) -> None:
        self.rounds: list[Round] = []
        self.ledger = Ledger()
        self.progress = RunProgress(self._signed.manifest.goal)
        self._tip = genesis_tip(self._signed.run)

    def read(self) -> None:
        """Count the records that were added; begin again if the peer has replaced records that were counted."""
        if self.rounds:
            last = self._records.at(len(self.rounds) - 1)
            if last is None or record_hash(last.record) != self._tip:
                self._start()
        while (commit := self._records.at(len(self.rounds))) is not None and commit.record.previous == self._tip:
            self._count(commit)

    def _count(self, commit: Commit) -> None:
        record, sources = commit.record, self._signed.manifest.data.sources
        self.ledger.add(commit)
        self.progress = self.progress.after(commit, extension_of(record))
        losses = {sources[source].name: loss for source, loss in record.losses.items() if source < len(sources)}
        self.rounds.append(
            Round(len(self.rounds) + 1, self.progress.tokens, len(record.members), record.loss, losses, reward_of(record))
        )
        self._tip = record_hash(record)


# ------------------------------------------------------------------------------------------------------------------------
# Curves with few points: each point stands for some rounds in a row.


@dataclass(frozen=True)
class CurvePoint:
    """Point of a curve that stands for some rounds in a row.

    rounds, tokens: done by all members up to the last of them.  value: mean.  low, high: least and largest value.
    """

    rounds: int
    tokens: int
    value: float
    low: float
    high: float


def curve(rounds: Sequence[Round], value: Callable[[Round], float | None], most: int) -> list[CurvePoint]:
    """Return at most `most` points; rounds without a finite value are left out."""
    step = max(1, -(-len(rounds) // most))
    points = []
    for start in range(0, len(rounds), step):
        part = rounds[start : start + step]
        values = [each for each in map(value, part) if each is not None and isfinite(each)]
        if values:
            mean = fsum(values) / len(values)
            points.append(CurvePoint(part[-1].rounds, part[-1].tokens, mean, min(values), max(values)))
    return points
