"""Coming to the swarm's tip: records first, then the state they describe.

State = checkpoint + replay.  Records are taken from any peer and believed for their certificates; a fork is judged by
`chain.prefer`.  The outer state is then brought to the end of the chain: from the disk as far as it goes, with results
fetched from everyone who has them, or from a checkpoint when that is fewer bytes.  Every byte is checked against a root
in a certified record.  The same code serves a restart, a peer some rounds behind, a joiner and a repair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from protocol.blobs import BlobChunk, fetch_blob
from protocol.canonical import Malformed
from protocol.chain import prefer, record_hash, verify_commit
from protocol.events import CheckpointWritten, Desynced, Dropped, Event, Notice, RolledBack, StateApplied, SyncProgress
from protocol.exchange_plan import ChunkSpan, payload_bytes
from protocol.hashes import Hash, chunk_hash, tree_root
from protocol.history import History
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import Body, ChunkEntry, Commit, decode_body
from protocol.network import MAX_REQUEST_BYTES, Network, NetworkError
from protocol.outer_state import OuterState
from protocol.questions import (
    MAX_COMMITS,
    MAX_TIPS,
    CommitsReply,
    CommitsRequest,
    HaveReply,
    HaveRequest,
    LeavesReply,
    LeavesRequest,
    TipsReply,
    TipsRequest,
)
from protocol.round_terms import RoundSettings
from protocol.store import ResultFile, Store

ASK_TIMEOUT_S = 10.0
CHECKPOINT_WORTH_ROUNDS = 8
"""A checkpoint is 8 bytes a parameter, a result about 1: further behind than this, the checkpoint is fewer bytes."""

Offload = Callable[..., Awaitable[Any]]
Emit = Callable[[Event], None]
R = TypeVar("R", bound=Body)


class WrongState(Exception):
    """The outer state is not what the certified chain says it was."""


class Followed(Enum):
    """What came of looking at a peer's chain."""

    NOTHING = "nothing new"
    EXTENDED = "extended"
    SWITCHED = "switched"
    KEPT = "kept ours"


@dataclass
class CatchUp:
    """The parts it works on.  `initialise` writes the genesis parameters; None when this peer cannot make them."""

    manifest: RunManifest
    settings: RoundSettings
    history: History
    store: Store
    state: OuterState
    layout: Sequence[ChunkSpan]
    network: Network
    initialise: Callable[[memoryview], Awaitable[None]] | None
    offload: Offload
    emit: Emit

    # -- records ------------------------------------------------------------------------------------------------------

    async def follow(self, peer: PeerId) -> Followed:
        """Take over what `peer`'s chain has beyond ours, or judge the fork.  Raises `NetworkError`, `Malformed`."""
        common, length = await self._common_ancestor(peer)
        if common == length:
            return Followed.NOTHING
        if common == self.history.length:
            await self._extend(peer, length)
            return Followed.EXTENDED
        theirs = await self._commits_after(peer, common, length)
        ours = [self.history.commit_at(round) for round in range(common, self.history.length)]
        if not prefer(self.history.record_at(common - 1), ours, theirs):
            return Followed.KEPT
        await self._switch(common, theirs, peer)
        return Followed.SWITCHED

    async def _common_ancestor(self, peer: PeerId) -> tuple[int, int]:
        """(rounds both chains share, length of theirs).  Looks back in windows that double."""
        window = 64
        while True:
            start = max(0, self.history.length - window + 1)
            reply = await self._ask(peer, "tips", TipsRequest(start=start, count=min(window * 2, MAX_TIPS)), TipsReply)
            if reply.length < start:
                start = max(0, reply.length - window + 1)
                reply = await self._ask(peer, "tips", TipsRequest(start=start, count=window), TipsReply)
            mine = self.history.tips(start, len(reply.tips))
            shared = sum(1 for ours, theirs in zip(mine, reply.tips, strict=False) if ours == theirs)
            if shared or start == 0:
                if not shared:
                    raise Malformed("a chain that begins at another genesis")
                return start + shared - 1, reply.length
            window *= 2

    async def _extend(self, peer: PeerId, length: int) -> None:
        while self.history.length < length:
            for commit in await self._commits(peer, self.history.length):
                self._verify(commit, self.history.length, self.history.tip, self.history.last)
                await self.offload(self.history.append, commit)
            self.emit(SyncProgress("records", self.history.length, length))

    async def _commits_after(self, peer: PeerId, common: int, length: int) -> list[Commit]:
        """Their records from `common` on, verified."""
        commits: list[Commit] = []
        tip, last = self.history.tip_at(common), self.history.record_at(common - 1)
        while common + len(commits) < length:
            for commit in await self._commits(peer, common + len(commits)):
                self._verify(commit, common + len(commits), tip, last)
                commits.append(commit)
                tip, last = record_hash(commit.record), commit.record
        return commits

    async def _commits(self, peer: PeerId, start: int) -> list[Commit]:
        reply = await self._ask(peer, "commits", CommitsRequest(start=start, count=MAX_COMMITS), CommitsReply)
        if not reply.commits:
            raise Malformed("a peer without the records it announced")
        return [decode_body(Commit, raw) for raw in reply.commits]

    def _verify(self, commit: Commit, round: int, tip: Hash, last: object) -> None:
        verify_commit(self.settings.run, commit, last, round, tip, codec=self.settings.codec,  # type: ignore[arg-type]
                      chunks=self.settings.chunks, max_members=self.settings.max_members)

    async def _switch(self, common: int, theirs: list[Commit], peer: PeerId) -> None:
        abandoned = self.history.length - common
        await self.offload(self.history.roll_back, common)
        for commit in theirs:
            await self.offload(self.history.append, commit)
        self.emit(RolledBack(common, abandoned, peer))
        if self.state.rounds > common:
            await self.restore()

    # -- state --------------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """The newest state the disk gives for our chain: its checkpoint, else genesis, and the results that are here."""
        await self._load_start()
        while self.state.rounds < self.history.length:
            commit = self.history.commit_at(self.state.rounds)
            result = await self.offload(self._stored_result, commit)
            if result is None:
                return
            await self.apply(commit, result)

    async def _load_start(self) -> None:
        for rounds in sorted(self.store.checkpoints(), reverse=True):
            if rounds <= self.history.length and await self._load_checkpoint(rounds):
                return
        self.state.reset()
        if self.initialise is not None:
            await self.initialise(self.state.theta)

    async def _load_checkpoint(self, rounds: int) -> bool:
        opened = self.store.open_checkpoint(rounds)
        if opened is None:
            return False
        leaves, view = opened
        if rounds < self.history.length:
            if tree_root(leaves) != self.history.commit_at(rounds).record.state_digest:
                return False
        await self.offload(self.state.load, view, rounds)
        return bool(await self.offload(self.state.digest) == tree_root(leaves))

    def _stored_result(self, commit: Commit) -> memoryview | None:
        """A result from the disk, checked; one whose bytes were altered is dropped."""
        round, root = commit.record.round, Hash(commit.record.result_root)
        result = self.store.open_result(round, root)
        if result is None:
            return None
        whole = len(result) == payload_bytes(self.layout) and all(
            chunk_hash(result[span.offset : span.offset + span.size]) == entry.hash
            for span, entry in zip(self.layout, commit.index, strict=True))
        if not whole:
            self.store.drop_result(round, root)
        return result if whole else None

    async def replay(self, sources: Sequence[PeerId]) -> bool:
        """Bring the state to the end of the chain.  False when something is to be had from nobody now."""
        if not sources and self.state.rounds < self.history.length:
            return False
        while self.state.rounds < self.history.length:
            commit = self.history.commit_at(self.state.rounds)
            result = await self.offload(self._stored_result, commit)
            if result is None and await self._checkpoint_pays(sources):
                continue
            if result is None:
                result = await self.fetch_result(commit, sources)
            if result is None:  # everybody may have pruned it: checkpoints that make it superfluous are kept
                if await self.fetch_newest_checkpoint(sources, at_least=self.state.rounds + 1):
                    continue
                return False
            try:
                await self.apply(commit, result)
            except WrongState:
                if not await self.fetch_newest_checkpoint(sources, at_least=0):
                    raise
        return True

    async def apply(self, commit: Commit, result: memoryview) -> None:
        """Apply the result of the next round to the outer state.  Raises `WrongState` before touching a wrong one."""
        record = commit.record
        assert record.round == self.state.rounds, "results are applied in order, once"
        digest = await self.offload(self.state.digest)
        if digest != record.state_digest:
            assert isinstance(digest, bytes)
            self.emit(Desynced(record.round, digest.hex(), record.state_digest.hex()))
            raise WrongState(f"before round {record.round}")
        momentum = self.manifest.outer_momentum(record.round)
        await self.offload(self.state.apply, result, self.manifest.outer.lr, momentum)
        digest = await self.offload(self.state.digest)
        assert isinstance(digest, bytes)
        self.emit(StateApplied(self.state.rounds, digest.hex()))

    async def _checkpoint_pays(self, sources: Sequence[PeerId]) -> bool:
        if self.history.length - self.state.rounds <= CHECKPOINT_WORTH_ROUNDS and self._can_start():
            return False
        return await self.fetch_newest_checkpoint(sources, at_least=self.state.rounds + 1)

    def _can_start(self) -> bool:
        return self.initialise is not None or self.state.rounds > 0

    # -- fetching -----------------------------------------------------------------------------------------------------

    async def fetch_result(self, commit: Commit, sources: Sequence[PeerId]) -> memoryview | None:
        """The result of a certified record from whoever has it, on disk when this returns; None when nobody has."""
        record = commit.record
        file = await self.offload(self.store.result_writer, record.round, payload_bytes(self.layout))
        assert isinstance(file, ResultFile)
        complete = False
        try:
            complete = await self.fetch_chunks(record.round, Hash(record.result_root), commit.index,
                                               range(len(self.layout)), file.view, sources)
            if complete:
                await self.offload(file.commit, Hash(record.result_root))
        finally:
            if not complete:
                file.discard()
        return self.store.open_result(record.round, Hash(record.result_root)) if complete else None

    async def fetch_chunks(self, round: int, root: Hash, index: Sequence[ChunkEntry], missing: Sequence[int],
                           into: memoryview, sources: Sequence[PeerId]) -> bool:
        """Fetch the named chunks of a result into its buffer; True when all are there and checked."""
        wanted = [BlobChunk(chunk, self.layout[chunk].offset, self.layout[chunk].size, Hash(index[chunk].hash))
                  for chunk in missing]
        return await fetch_blob(self.network, sources, "result", round, root, wanted, into, offload=self.offload,
                                emit=self.emit, on_progress=lambda done, total: None)

    async def fetch_newest_checkpoint(self, sources: Sequence[PeerId], *, at_least: int) -> bool:
        """Load the newest checkpoint of our chain that a source has and a record certifies."""
        holders: dict[int, list[PeerId]] = {}
        for peer in sources:
            try:
                have = await self._ask(peer, "have", HaveRequest(), HaveReply)
            except (NetworkError, Malformed):
                continue
            for rounds in have.checkpoints:
                if at_least <= rounds < self.history.length:
                    holders.setdefault(rounds, []).append(peer)
        for rounds in sorted(holders, reverse=True):
            if await self._fetch_checkpoint(rounds, holders[rounds]):
                return True
        return False

    async def _fetch_checkpoint(self, rounds: int, sources: Sequence[PeerId]) -> bool:
        digest = Hash(self.history.commit_at(rounds).record.state_digest)
        leaves = await self._fetch_leaves(rounds, digest, sources)
        if leaves is None:
            return False
        download = await self.offload(self.store.checkpoint_download, rounds, leaves, self.state.size_bytes,
                                      self.manifest.checkpoint_chunk_bytes)
        step = self.manifest.checkpoint_chunk_bytes
        wanted = [BlobChunk(i, i * step, min(step, self.state.size_bytes - i * step), leaves[i])
                  for i in download.missing()]
        complete = await fetch_blob(
            self.network, sources, "checkpoint", rounds, digest, wanted, download.view,
            offload=self.offload, emit=self.emit,
            on_progress=lambda done, total: self.emit(SyncProgress("checkpoint", done, total)))
        if not complete:
            return False
        await self.offload(download.commit)
        self.emit(CheckpointWritten(rounds, self.state.size_bytes))
        return await self._load_checkpoint(rounds)

    async def _fetch_leaves(self, rounds: int, digest: Hash, sources: Sequence[PeerId]) -> list[Hash] | None:
        count = self.state.leaf_count
        for peer in sources:
            try:
                reply = await self._ask(peer, "leaves", LeavesRequest(rounds=rounds), LeavesReply)
            except (NetworkError, Malformed) as error:
                self.emit(Notice("debug", f"no checkpoint hashes from {peer}: {error}"))
                continue
            leaves = [Hash(leaf) for leaf in reply.leaves]
            if len(leaves) == count and tree_root(leaves) == digest:
                return leaves
            self.emit(Dropped(peer, "checkpoint hashes", "they do not match the certified digest"))
        return None

    async def _ask(self, peer: PeerId, kind: str, question: Body, reply: type[R]) -> R:
        answer = await self.network.request(peer, kind, question.encode(), timeout_s=ASK_TIMEOUT_S)
        return decode_body(reply, answer, max_bytes=MAX_REQUEST_BYTES)
