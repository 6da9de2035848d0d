"""What this peer has done in the running round: how far its compute is, and the contribution that came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from kernels.layout import ChunkSpan
from protocol.trainer_link import Contribution
from protocol.wire.hashes import Hash, tree_proof
from protocol.wire.messages import Ready
from protocol.wire.ready import Learned


@dataclass
class Work:
    """For heartbeats, status, and those who audit.  leaves: the hashes of the contribution's chunks.

    steps: done; wanted: in all.
    """

    layout: Sequence[ChunkSpan]
    steps: int = 0
    wanted: int = 0
    tokens: int = 0
    loss: float = 0.0
    ready: Ready | None = None
    ready_raw: bytes = b""
    contribution: Contribution | None = None
    leaves: list[Hash] = field(default_factory=list)
    rollouts: Learned | None = None
    """The batches that the contribution was made of, in a run with rollouts."""
    against: int | None = None
    """The sets of tasks for which it was made of none."""
    training: trio.Event = field(default_factory=trio.Event)
    """Set once the trainer has been told to train."""

    @property
    def data(self) -> memoryview | None:
        """The contribution's codec bytes; None before READY."""
        return self.contribution.data if self.contribution is not None else None

    def part(self, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """A chunk of the contribution with its tree proof; None when `root` is not its name."""
        if self.ready is None or self.data is None or self.ready.root != root or chunk >= len(self.layout):
            return None
        span = self.layout[chunk]
        return [*tree_proof(self.leaves, chunk)], self.data[span.encoded]
