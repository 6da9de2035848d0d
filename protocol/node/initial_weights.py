"""Weights that a run of preferences began with: the loss compares the model with them (`trainer.objective`).

A trainer of the first round writes them from its state.  Later ones fetch the state before the first round, which the
manifest names by its digest, from a peer; the peers of such a run keep that checkpoint.  A run whose initial parameters
follow from its seed has no such checkpoint, and takes only trainers of its first round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from protocol.chain.outer_state import BYTES_PER_VALUE, bf16_pieces
from protocol.chain.records import genesis_tip
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName
from protocol.disk import fill, size_of
from protocol.offload import Offload
from protocol.run.manifest import BF16_BYTES
from protocol.sync.fetchers import StateFetcher
from protocol.transport.interface import Session

INITIAL = "initial.bf16"
"""Name of the file, where the trainer also looks for it (`trainer.reference`)."""
RETRY_S, KEEP_RETRY_S = 2.0, 15.0
"""Seconds until we ask again for the weights: if the trainer waits for them, and if they are only to be kept for others."""
FETCHING = "fetching the weights that the run began with from trainers and seeds that were in the run before"
LOST = "no peer has the weights that the run began with; join such a run before its first round ends"


class InitialWeights:
    """Initial weights in bf16, in the file at `path`."""

    def __init__(self, session: Session, replica: Replica, fetcher: StateFetcher, offload: Offload, path: Path) -> None:
        self._session, self._replica, self._fetcher, self._offload = session, replica, fetcher, offload
        self._path = path

    async def run(self) -> None:
        """Fetch the state before the first round once there are records, to keep it for others; return once it is here.

        Raises `StoreFailed`.
        """
        history = self._replica.history
        while self._replica.manifest.genesis is not None and 0 not in self._replica.store.checkpoints.of(history):
            sources = sorted(self._session.network.connected())
            if not history.length or not await self._fetcher.fetch_genesis(sources):
                await trio.sleep(KEEP_RETRY_S)

    async def until_here(self, show: Callable[[str], None]) -> Path:
        """Wait until the file is here, and return its path.  show: called with the reason of the wait.

        Raises `StoreFailed`.
        """
        history, manifest = self._replica.history, self._replica.manifest
        while not await self._offload(lambda: size_of(self._path) == BF16_BYTES * manifest.parameters):
            if history.length == 0:
                await self._offload(lambda: self._write(self._replica.state.weights()))
                continue
            show(FETCHING if manifest.genesis is not None else LOST)
            sources = sorted(self._session.network.connected())
            if manifest.genesis is not None and await self._fetcher.fetch_genesis(sources):
                await self._offload(self._write_checkpoint)
            else:
                await trio.sleep(RETRY_S)
        return self._path

    def _write_checkpoint(self) -> None:
        """Write the weights from the checkpoint after 0 rounds, if it is here.  Blocking."""
        manifest = self._replica.manifest
        view = self._replica.store.checkpoints.view(CheckpointName(0, genesis_tip(self._session.run)))
        if view is not None:
            self._write(bf16_pieces(view[: BYTES_PER_VALUE * manifest.parameters], manifest.checkpoint_chunk_bytes))

    def _write(self, pieces: Iterable[bytes]) -> None:
        disk = self._replica.store.disk
        temporary = self._path.with_name(f".{self._path.name}.new")
        mapping = disk.allocate(temporary, BF16_BYTES * self._replica.manifest.parameters)
        fill(memoryview(mapping), pieces)
        disk.publish(temporary, mapping, self._path)
