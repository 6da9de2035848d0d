"""This peer's work in the running round: the progress of its compute, and the resulting contribution."""

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
    """Our work in one round, for heartbeats, status and auditors.  leaves: the hashes of the contribution's chunks.

    steps: inner steps done; wanted: inner steps in all.
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
    """The sets of tasks that our READY is against, if the contribution was made of no batches."""
    training: trio.Event = field(default_factory=trio.Event)
    """Set once the trainer has been told to train."""

    @property
    def data(self) -> memoryview | None:
        """The contribution's codec bytes; None before READY."""
        return self.contribution.data if self.contribution is not None else None

    def part(self, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """Return a chunk of the contribution with its tree proof; None if `root` is not the contribution's name."""
        if self.ready is None or self.data is None or self.ready.root != root or chunk >= len(self.layout):
            return None
        span = self.layout[chunk]
        return [*tree_proof(self.leaves, chunk)], self.data[span.encoded]
