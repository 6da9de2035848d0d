"""Which batches a trainer learns from in a round, and when there are enough of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from protocol.events import RolloutsUsed
from protocol.network.session import Session
from protocol.rollouts.batch import Batch
from protocol.rollouts.pool import Pool
from protocol.rollouts.turn import Turn
from protocol.state.weight_files import WeightFiles
from protocol.wire.hashes import Hash, tree_root

LOOK_S = 0.25


@dataclass(frozen=True)
class Chosen:
    """Batches to learn from in a round, in the order of their names, and their files."""

    batches: Sequence[Batch]
    paths: tuple[Path, ...]

    @property
    def root(self) -> Hash:
        """Over their names: what READY says, and so the record."""
        return tree_root([batch.root for batch in self.batches])


class Selection:
    """Of one trainer.  wanted: batches of a round."""

    def __init__(self, session: Session, pool: Pool, files: WeightFiles, turn: Turn, wanted: int) -> None:
        self._session, self._pool, self._files, self._turn, self.wanted = session, pool, files, turn, wanted
        self._hurried = False

    def hurry(self) -> None:
        """The others wait for us: begin with what there is, if there is anything."""
        self._hurried = True

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Within, nobody else asks the trainer process for anything that takes it whole: of a round that reads text."""
        return self._turn.taken()

    @asynccontextmanager
    async def chosen(self, round: int, on_wait: Callable[[int], None]) -> AsyncIterator[Chosen]:
        """Wait for enough accepted batches that we have not learned from, and for the trainer process; they are ours within.

        on_wait: told how many batches there are so far.
        """
        self._hurried = False
        while len(usable := self._pool.usable(round)) < (1 if self._hurried else self.wanted):
            on_wait(len(usable))
            await trio.sleep(LOOK_S)
        batches = sorted(usable[: self.wanted], key=lambda batch: (batch.root, batch.author))
        roots = [batch.root for batch in batches]
        with self._files.using(*roots):
            async with self._turn.taken():
                yield Chosen(batches, tuple(self._files.path(root) for root in roots))

    def use(self, round: int, chosen: Chosen, reward: float | None) -> None:
        """A contribution was made of these batches, which are never learned from again, whatever becomes of it."""
        for batch in chosen.batches:
            batch.used = True
        rollouts, names = (
            sum(batch.body.rollouts for batch in chosen.batches),
            [batch.root.hex() for batch in chosen.batches],
        )
        self._session.emit(RolloutsUsed(round, names, rollouts, reward, chosen.root.hex()))
