"""Advance of the outer state to the end of a chain: state = checkpoint + replay.

All functions work from the disk: from a checkpoint, or genesis, and the results of the records after it.  Missing files are
fetched beforehand (`protocol.sync.fetchers`).  The same code serves a restart, a peer that is some rounds behind, a
newcomer, a repair and a change of branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from protocol.chain.credit import counted, named_in
from protocol.chain.history import Branch
from protocol.chain.outer_state import certified_digest
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName
from protocol.events.events import Desynced, RolledBack, StateApplied, StateLoaded
from protocol.offload import Offload
from protocol.sync.fetchers import StateFetcher
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Record

MOST_COUNTED = 500
"""Most rounds whose rollouts are reported after a move: the last rounds of the move."""


class WrongState(Exception):
    """The error for an outer state that does not match the certified chain."""


@dataclass
class CatchUp:
    """Changes to the chain and the state of `replica`.

    initialise: writes the parameters that follow from the seed; None if this peer cannot compute them, or if the manifest
    names a state at genesis, which is then a checkpoint.
    """

    session: Session
    replica: Replica
    offload: Offload
    fetcher: StateFetcher
    initialise: Callable[[memoryview], Awaitable[None]] | None
    _begun: bool = field(default=False, init=False)
    """True if the state after 0 rounds was loaded from a checkpoint."""

    def present(self, common: int) -> int | None:
        """Return the number of rounds of our state, if the state belongs to a chain that leaves ours after `common` rounds.

        Otherwise return 0 if we have, or can compute, the state at genesis; None if not.
        """
        rounds = self.replica.state.rounds
        if 0 < rounds <= common:
            return rounds
        return 0 if self.initialise is not None or 0 in self._checkpoints() else None

    @property
    def _holds_a_state(self) -> bool:
        """True if the outer state is a state of the run, and not only memory reserved for one."""
        return self.replica.state.rounds > 0 or self.initialise is not None or self._begun

    def _checkpoints(self) -> list[int]:
        return self.replica.store.checkpoints.of(self.replica.history)

    async def begin(self, sources: Sequence[PeerId]) -> bool:
        """Load the state before the first round, which the manifest names, from a peer; return False if no peer has it."""
        if 0 not in self._checkpoints() and not await self.fetcher.fetch_genesis(sources):
            return False
        await self.restore()
        return self._begun

    # -- branches -----------------------------------------------------------------------------------------------------

    async def take(self, branch: Branch, rounds: int, leader: PeerId | str) -> bool:
        """Make `branch`, up to `rounds`, our chain, and load its state, which is on disk.

        If that fails, our own chain is restored, and the caller has to restore its state.  Returns False if a file was
        missing; raises `WrongState` if the state does not match its records.
        """
        history, common = self.replica.history, branch.common
        abandoned = history.length - common
        kept = await self._switch(common, branch.slot, rounds)
        complete = False
        try:
            await self._load(common)
            complete = self.replica.state.rounds == history.length
        finally:
            if not complete:
                with trio.CancelScope(shield=True):
                    await self._switch(common, kept if abandoned else "", common + abandoned)
        if complete and abandoned:
            self.session.emit(RolledBack(common, abandoned, leader if leader != self.session.me else ""))
        if complete:
            await self.tell_rollouts(max(common, history.length - MOST_COUNTED))
        return complete

    async def _switch(self, common: int, slot: str, rounds: int) -> str:
        """Exchange branches as `History.switched` does, and apply the change; return the slot of our old records."""
        kept, change = await self.offload(self.replica.history.switched, common, slot, rounds)
        change()
        return str(kept)

    async def tell_rollouts(self, start: int) -> None:
        """Emit events for the rollouts in the rounds from `start` on, each batch once, even if several members name it."""
        history, rl = self.replica.history, self.replica.manifest.rl
        if rl is None:
            return
        before: deque[Record] = deque(maxlen=rl.max_async)
        for round in range(max(0, start - rl.max_async), history.length):
            record = (await self.offload(history.commit_at, round)).record
            if round >= start:
                for event in counted(record, self.session.me, named_in(before), rl.rollouts_per_batch):
                    self.session.emit(event)
            before.append(record)

    async def _load(self, shared: int) -> None:
        """Load the state at the end of our chain, or the state nearest to it that the disk allows.

        Loading starts from the present state if it has at most `shared` rounds applied.
        """
        if self.replica.state.rounds != self.present(shared):
            await self._load_start()
        await self.replay()

    # -- state --------------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Load the newest state on disk for our chain: from the newest checkpoint, else genesis, and the results on disk."""
        await self._load_start()
        await self.replay()

    async def replay(self) -> None:
        """Apply the results on disk, from the present state to the end of our chain.  Raises `WrongState`.

        If a result is missing, continue from a newer checkpoint.
        """
        history, state = self.replica.history, self.replica.state
        while state.rounds < history.length:
            commit = await self.offload(history.commit_at, state.rounds)
            result = await self.offload(self.stored_result, commit)
            if result is not None and self._holds_a_state:
                await self.apply(commit, result)
            elif not await self._load_newest(above=state.rounds if self._holds_a_state else -1):
                return

    async def _load_start(self) -> None:
        if await self._load_newest(above=-1):
            return
        await self.offload(self.replica.state.reset)
        self._begun = False
        if self.initialise is not None:
            await self.initialise(self.replica.state.theta)
        self.session.emit(StateLoaded(0))

    async def _load_newest(self, *, above: int) -> bool:
        for rounds in reversed(self._checkpoints()):
            if rounds > above and await self._load_checkpoint(rounds):
                self.session.emit(StateLoaded(rounds))
                return True
        return False

    async def _load_checkpoint(self, rounds: int) -> bool:
        history, checkpoints = self.replica.history, self.replica.store.checkpoints
        mark = CheckpointName(rounds, history.tip_at(rounds))
        index, view = checkpoints.index(mark), checkpoints.view(mark, self.replica.state.size_bytes)
        if index is not None and view is not None:
            digest = certified_digest(self.replica.manifest, history, rounds)
            if digest in (None, index[0]):
                await self.offload(self.replica.state.load, view, rounds)
                if await self.offload(self.replica.state.digest) == index[0]:
                    self._begun = rounds == 0
                    return True
        await self.offload(checkpoints.remove, mark)
        return False

    def stored_result(self, commit: Commit) -> memoryview | None:
        """Return the result of a certified record from the disk, checked; None if it is not here.  Blocking."""
        return self.replica.result(commit.record, commit.index)

    async def apply(self, commit: Commit, result: memoryview) -> Hash:
        """Apply the result of the next round to the outer state; return the new digest.

        Raises `WrongState`, before any change, if the present state is wrong.
        """
        record = commit.record
        assert record.round == self.replica.state.rounds, "each result is applied once, in order"
        digest = await self.offload(self.replica.state.digest)
        if digest != record.state_digest:
            assert isinstance(digest, bytes)
            self.session.emit(Desynced(record.round, digest.hex(), record.state_digest.hex()))
            raise WrongState(f"before round {record.round}")
        tokens = [member.tokens for member in record.members]
        step = await self.offload(self.replica.manifest.outer_step, record.round, tokens, result)
        await self.offload(self.replica.state.apply, result, record.fragment, step)
        digest = await self.offload(self.replica.state.digest)
        assert isinstance(digest, bytes)
        self.session.emit(StateApplied(self.replica.state.rounds, digest.hex()))
        return Hash(digest)
