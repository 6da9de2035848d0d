"""Read-only access to a run's folder on disk, with or without a peer running beside it.

`protocol.chain.store` puts a folder in order when it opens it, and moves damaged files out of the way.  Only the running
peer may do that; this module changes nothing.  Everything is checked as after a restart: records by their chain, a
checkpoint against the digest that a record or the manifest names, results against the records' chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kernels.outer_step import OuterStep, apply_result
from protocol.blobs.store import leaves_of
from protocol.chain.base import round_settings
from protocol.chain.electorate import Roster
from protocol.chain.outer_state import certified_digest
from protocol.chain.records import genesis_tip, record_hash
from protocol.chain.results import CheckpointName, Checkpoints, ResultName, Results
from protocol.chain.store import Records
from protocol.disk import Disk, let_go, map_file
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.messages import Commit

F32: TypeAlias = npt.NDArray[np.float32]


class NotStored(Exception):
    """Error for a folder that does not contain the wanted state; the text is a sentence with the remedy."""


def _altered(round: int) -> NotStored:
    return NotStored(f"the result of round {round} on disk is damaged; fetch it again with `peer join`, then export again")


class ReadOnlyDisk(Disk):
    """A disk that moves and removes no files."""

    def move(self, source: Path, target: Path) -> None:
        """Do nothing."""

    def remove(self, path: Path) -> None:
        """Do nothing."""

    def sync_folder(self, folder: Path) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class _Step:
    """A result that leads from one state to the next, and the record that names it."""

    commit: Commit
    result: memoryview
    outer: OuterStep


@dataclass(frozen=True)
class StoredState:
    """The state after `rounds` rounds, as a checkpoint and the later results.

    start: the checkpoint's bytes; None for the parameters that follow from the seed, with zero momentum.
    """

    manifest: RunManifest
    rounds: int
    start: memoryview | None
    steps: tuple[_Step, ...]

    def parameters(self, seeded: F32 | None) -> Iterator[F32]:
        """Yield theta, chunk after chunk.  seeded: the parameters of the seed, needed if `start` is None.

        Raises `NotStored` if a result's bytes do not match its record.  Uses the memory of three chunks.
        """
        count = self.manifest.parameters
        momentum: F32 | None = None
        if self.start is not None:
            values = np.frombuffer(self.start, np.float32)
            theta, momentum = values[:count], values[count:]
        else:
            assert seeded is not None and len(seeded) == count
            theta = seeded
        format = self.manifest.layouts.result.format
        for fragment, within in enumerate(self.manifest.fragment_spans):
            steps = [step for step in self.steps if step.commit.record.fragment == fragment]
            for number, span in enumerate(self.manifest.layouts.result):
                part = slice(within.start + span.start, min(within.stop, within.start + span.start + span.count))
                chunk = theta[part].copy()
                moving = np.zeros_like(chunk) if momentum is None else momentum[part].copy()
                for step in steps:
                    encoded = step.result[span.encoded]
                    if chunk_hash(encoded) != step.commit.index[number].hash:
                        raise _altered(step.commit.record.round)
                    apply_result(chunk, moving, encoded, format, span.count, step.outer)
                    let_go(encoded)
                yield chunk


class StoredRun:
    """The records in a run's folder as a `protocol.chain.records.Chain`, and the states that they lead to.  Blocking."""

    def __init__(self, signed: SignedManifest, folder: Path) -> None:
        self._run, self._manifest = signed.run, signed.manifest
        self._payload = self._manifest.layouts.result.payload_bytes
        disk = ReadOnlyDisk()
        self._records = Records(disk, folder / "records")
        self._results = Results(disk, folder / "results")
        self._checkpoints = Checkpoints(disk, folder / "checkpoints")
        self._tips = [genesis_tip(signed.run)]
        for blobs in (self._results, self._checkpoints):
            if blobs.folder.is_dir():
                blobs.load()
        for round in range(self._records.length() if (folder / "records").is_dir() else 0):
            commit = self._records.at(round)
            if commit is None or commit.record.previous != self._tips[-1]:
                break
            self._tips.append(record_hash(commit.record))

    def is_final(self, rounds: int) -> bool:
        """Return True if, according to the records on this disk, the run ended after `rounds` rounds."""
        if rounds != self.length:
            return False
        roster = Roster.start(round_settings(self._run, self._manifest))
        for round in range(rounds):
            commit = self._records.at(round)
            if commit is None:
                return False
            roster = roster.after(commit)
        return roster.progress.is_over

    @property
    def length(self) -> int:
        """Number of rounds committed."""
        return len(self._tips) - 1

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most `length`."""
        return self._tips[rounds]

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round below `length`.  Raises `NotStored` if a running peer has just replaced it."""
        commit = self._records.at(round)
        if commit is None or record_hash(commit.record) != self._tips[round + 1]:
            raise NotStored("the running peer is switching to another branch of the run; export again in a moment")
        return commit

    def checkpoints(self) -> list[int]:
        """Return the numbers of rounds after which there are checkpoints, ascending."""
        return self._checkpoints.of(self)

    def checkpoint(self, rounds: int) -> StoredState:
        """Return the state in a checkpoint; reads the whole checkpoint to check it.  Raises `NotStored`."""
        if rounds not in self.checkpoints():
            there = ", ".join(map(str, self.checkpoints()))
            raise NotStored(
                f"there is no checkpoint after {rounds} rounds on disk; "
                + (f"there are some after {there} rounds" if there else "leave out --checkpoint for the newest state")
            )
        start = self._checked(rounds)
        if start is None:
            raise NotStored(f"the checkpoint after {rounds} rounds is damaged or was just removed; export the newest state")
        return StoredState(self._manifest, rounds, start, ())

    def newest(self) -> StoredState:
        """Return the state at the tip.  Raises `NotStored`."""
        starts = [*reversed(self.checkpoints()), *([] if self._manifest.genesis else [-1])]
        problem = "there is no checkpoint"
        for rounds in starts:
            first = max(rounds, 0)
            steps = self._steps(first)
            if len(steps) < self.length - first:
                problem = f"the result of round {first + len(steps)} is missing"
                continue
            start = self._checked(rounds) if rounds >= 0 else None
            if start is not None or rounds < 0:
                return StoredState(self._manifest, self.length, start, steps)
        kept = self.checkpoints()
        if not self.length and not kept:
            raise NotStored("the run's initial weights are not on this disk; fetch them with `peer join`")
        raise NotStored(
            f"the state after {self.length} rounds is not on disk ({problem}); let the peer catch up with `peer join`"
            + (f", or export an older one with --checkpoint {kept[-1]}" if kept else "")
        )

    def _steps(self, start: int) -> tuple[_Step, ...]:
        """Return the steps from the state after `start` rounds to the tip, or to the first missing result.

        Raises `NotStored`.
        """
        steps: list[_Step] = []
        for round in range(start, self.length):
            commit = self.commit_at(round)
            record = commit.record
            result = map_file(self._results.path(ResultName.of(record)))
            if result is None or len(result) != self._payload:
                break
            try:
                outer = self._manifest.outer_step(round, [member.tokens for member in record.members], result)
            except (ValueError, OverflowError) as error:  # the sums in the headers are not finite
                raise _altered(round) from error
            steps.append(_Step(commit, result, outer))
        return tuple(steps)

    def _checked(self, rounds: int) -> memoryview | None:
        """Return the bytes of a checkpoint; None if they do not match the certified digest."""
        mark, piece = CheckpointName(rounds, self.tip_at(rounds)), self._manifest.checkpoint_chunk_bytes
        index, view = self._checkpoints.index(mark), map_file(self._checkpoints.path(mark))
        if index is None or view is None or len(view) != self._manifest.state_bytes:
            return None
        if certified_digest(self._manifest, self, rounds) not in (None, index[0]):
            return None
        return view if leaves_of(view, piece) == index[1] else None
