"""What leads to the state of a chain, fetched onto the disk: results of rounds, and checkpoints, each a blob of the swarm.

Every byte is checked against a root in a certified record.  Fetching touches neither our chain nor our outer state, so it
goes on beside a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import trio

from kernels.layout import payload_bytes
from protocol.content.blob import Blob, set_of
from protocol.content.leaves import fetch_leaves
from protocol.content.swarm import Swarm
from protocol.events import CheckpointWritten, SyncProgress
from protocol.network.interface import MAX_REQUEST_BYTES, NetworkError
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.chain_view import Chain
from protocol.state.genesis import certified_digest
from protocol.state.replica import Replica
from protocol.state.results import ResultFile
from protocol.wire.body import Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit
from protocol.wire.questions import HaveReply, HaveRequest

ASK_TIMEOUT_S = 10.0
CHECKPOINT_WORTH_ROUNDS = 8
"""A checkpoint is 8 bytes a parameter, a result about 1: further behind than this, the checkpoint is fewer bytes."""

R = TypeVar("R", bound=Body)


class Supplies:
    """Fetches from peers into the store of `replica`.  progressed_at: when something checked arrived last, in trio time."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, swarm: Swarm) -> None:
        self._session, self._replica, self._offload, self._swarm = session, replica, offload, swarm
        self.progressed_at = -1e9
        self._under_way: dict[Hash, trio.Event] = {}
        """Checkpoints that are being fetched, by digest."""

    async def bring(self, chain: Chain, present: int | None, sources: Sequence[PeerId]) -> int | None:
        """Have on disk what leads to the state of `chain` after as many rounds as can be had; returns how many.

        present: after how many of its rounds we have the state, or can make it; None when we cannot.  The answer is None
        when there is no state of this chain at all to be had.
        """
        newer = [rounds for rounds in self._replica.store.checkpoints.of(chain) if present is None or rounds > present]
        reached = newer[-1] if newer else present
        if reached is None or chain.length - reached > CHECKPOINT_WORTH_ROUNDS:
            fetched = await self.fetch_newest_checkpoint(chain, sources, at_least=0 if reached is None else reached + 1)
            reached = fetched if fetched is not None else reached
        while reached is not None and reached < chain.length:
            commit = await self._offload(chain.commit_at, reached)
            record = commit.record
            root = Hash(record.result_root)
            here = await self._offload(self._replica.result, record.round, record.fragment, root, commit.index)
            if here is not None or await self.fetch_result(commit, sources):
                reached += 1
                continue
            # everybody may have pruned it: checkpoints that make it superfluous are kept
            fetched = await self.fetch_newest_checkpoint(chain, sources, at_least=reached + 1)
            if fetched is None:
                break
            reached = fetched
        return reached

    # -- results ------------------------------------------------------------------------------------------------------

    async def fetch_result(self, commit: Commit, sources: Sequence[PeerId]) -> bool:
        """The result of a certified record from whoever has it, on disk when this returns; False when nobody has."""
        record = commit.record
        if not sources:
            return False
        file = await self._offload(
            self._replica.store.results.begin, record.round, record.fragment, payload_bytes(self._replica.layout)
        )
        assert isinstance(file, ResultFile)
        complete, root = False, Hash(record.result_root)
        try:
            missing = range(len(self._replica.layout))
            complete = await self.fetch_chunks(root, commit.index, missing, file.view, sources)
            if complete:
                await self._offload(file.commit, root)
        finally:
            if not complete:
                file.discard()
        return complete

    async def fetch_chunks(
        self,
        root: Hash,
        index: Sequence[ChunkEntry],
        missing: Sequence[int],
        into: memoryview,
        sources: Sequence[PeerId],
    ) -> bool:
        """Fetch the named chunks of a result into its buffer; True when all are there and checked."""
        blob = Blob(root, tuple(Hash(entry.hash) for entry in index), tuple(span.size for span in self._replica.layout))
        here = blob.all & ~set_of(missing)
        return await self._swarm.fetch(blob, into, sources, here=here, on_progress=lambda done, total: self._progress())

    def _progress(self) -> None:
        self.progressed_at = trio.current_time()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    async def fetch_genesis(self, sources: Sequence[PeerId]) -> bool:
        """The state before the first round, as the manifest names it, on disk at the end; False when nobody has it."""
        return await self._fetch_checkpoint(self._replica.history, 0, sources)

    async def fetch_newest_checkpoint(self, chain: Chain, sources: Sequence[PeerId], *, at_least: int) -> int | None:
        """The newest checkpoint of a chain that a source has and a record certifies; after how many rounds it is."""
        holders: dict[int, list[PeerId]] = {}
        for peer in sources:
            try:
                have = await self._ask(peer, "have", HaveRequest(), HaveReply)
            except (NetworkError, Malformed):
                continue
            for rounds in have.checkpoints:
                if at_least <= rounds < chain.length:
                    holders.setdefault(rounds, []).append(peer)
        for rounds in sorted(holders, reverse=True):
            if await self._fetch_checkpoint(chain, rounds, holders[rounds]):
                return rounds
        return None

    async def _fetch_checkpoint(self, chain: Chain, rounds: int, sources: Sequence[PeerId]) -> bool:
        """One download of a state at a time: who comes second lends its sources to the first, and looks again."""
        digest = await self._offload(certified_digest, self._replica.manifest, chain, rounds)
        assert isinstance(digest, bytes), "somebody vouches for the checkpoint"
        digest, tip = Hash(digest), chain.tip_at(rounds)
        while digest in self._under_way:
            self._swarm.add_sources(digest, sources)
            await self._under_way[digest].wait()
            if await self._offload(self._replica.store.checkpoints.open, rounds, tip) is not None:
                return True
        over = self._under_way[digest] = trio.Event()
        try:
            return await self._download(rounds, digest, tip, sources)
        finally:
            del self._under_way[digest]
            over.set()

    async def _download(self, rounds: int, digest: Hash, tip: Hash, sources: Sequence[PeerId]) -> bool:
        leaves = await fetch_leaves(self._session, digest, self._replica.state.leaf_count, sources, "checkpoint")
        if leaves is None:
            return False
        step, size = self._replica.manifest.checkpoint_chunk_bytes, self._replica.state.size_bytes
        download = await self._offload(self._replica.store.checkpoints.download, rounds, tip, leaves, size, step)
        blob = Blob.even(digest, leaves, size, step)

        def on_progress(done: int, total: int) -> None:
            self._progress()
            self._session.emit(SyncProgress("checkpoint", done, total))

        try:
            here = blob.all & ~set_of(await self._offload(download.missing))
            complete = await self._swarm.fetch(blob, download.view, sources, here=here, on_progress=on_progress)
            if complete:
                await self._offload(download.commit)
        finally:
            download.end()
        if complete:
            self._session.emit(CheckpointWritten(rounds, size))
        return complete

    async def _ask(self, peer: PeerId, kind: str, question: Body, reply: type[R]) -> R:
        answer = await self._session.network.request(peer, kind, question.encode(), timeout_s=ASK_TIMEOUT_S)
        return decode_body(reply, answer, max_bytes=MAX_REQUEST_BYTES)
