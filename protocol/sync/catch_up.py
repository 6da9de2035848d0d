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
from typing import TypeVar

from kernels.layout import payload_bytes
from protocol.content.blobs import BlobChunk, fetch_blob
from protocol.events import CheckpointWritten, Desynced, Dropped, Notice, RolledBack, StateApplied, SyncProgress
from protocol.network.interface import MAX_REQUEST_BYTES, NetworkError
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.chain import is_full, prefer, record_hash, verify_commit
from protocol.state.replica import Replica
from protocol.state.results import ResultFile
from protocol.state.roster import base_on
from protocol.sync.standpoints import Standpoints
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import Body, ChunkEntry, Commit, decode_body
from protocol.wire.questions import (
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

ASK_TIMEOUT_S = 10.0
BRANCH_BYTES = 64 << 20
"""A fork with more records than this is not looked at: they are held in memory until it is judged."""
ENTRY_BYTES = 128
YOUNG_ROUNDS = 100
"""A run that anybody may begin may be begun twice.  A chain of so many rounds is not given up for another beginning."""
LOOK_AHEAD = 256
"""Records that are verified before it is judged which of them we take over."""
CHECKPOINT_WORTH_ROUNDS = 8
"""A checkpoint is 8 bytes a parameter, a result about 1: further behind than this, the checkpoint is fewer bytes."""

R = TypeVar("R", bound=Body)


class WrongState(Exception):
    """The outer state is not what the certified chain says it was."""


class Followed(Enum):
    """What came of looking at a peer's chain."""

    NOTHING = "nothing new"
    EXTENDED = "extended"
    SWITCHED = "switched"
    KEPT = "kept ours"
    WAITING = "not taken over now"


@dataclass
class CatchUp:
    """Brings `replica` to the tip.  `initialise` writes the genesis parameters; None when this peer cannot make them."""

    session: Session
    replica: Replica
    offload: Offload
    standpoints: Standpoints
    initialise: Callable[[memoryview], Awaitable[None]] | None

    # -- records ------------------------------------------------------------------------------------------------------

    async def follow(self, peer: PeerId) -> Followed:
        """Take over what `peer`'s chain has beyond ours, or judge the fork.  Raises `NetworkError`, `Malformed`."""
        common, length = await self._common_ancestor(peer)
        if common == length:
            return Followed.NOTHING
        if common == self.replica.history.length:
            return Followed.EXTENDED if await self._extend(peer, length) else Followed.WAITING
        theirs = await self._winning_branch(peer, common, length)
        if not theirs:
            return Followed.KEPT
        await self._switch(common, theirs, peer)
        return Followed.SWITCHED

    async def scout(self, peer: PeerId) -> bool:
        """Whether `follow` would lead to certified records that we lack.  Raises `NetworkError`, `Malformed`."""
        common, length = await self._common_ancestor(peer)
        if common == length:
            return False
        if common < self.replica.history.length:
            return bool(await self._winning_branch(peer, common, length))
        return bool(self._taken(common, await self._commits_after(peer, common, min(length, common + LOOK_AHEAD))))

    async def _winning_branch(self, peer: PeerId, common: int, length: int) -> list[Commit]:
        """Their records after the last common one, as far as we take them over, if the fork choice prefers them to ours."""
        history = self.replica.history
        theirs = await self._commits_after(peer, common, length)
        ours = history.commit_at(common)
        if common < history.final and not self._is_second_beginning(common):
            if is_full(theirs[0].certificate):
                self.session.emit(Notice("warning", f"{peer} shows another final record of round {common}; ours is kept"))
            return []
        if not prefer(history.roster_at(common).electorate.electors, ours, theirs[0]):
            return []
        return [theirs[0], *self._taken(common + 1, theirs[1:], theirs[0])]

    def _is_second_beginning(self, common: int) -> bool:
        """Whether two peers began a run that anybody may begin, and ours is young enough to be given up for the other."""
        return common == 0 and self.replica.rounds.founders is None and self.replica.history.length < YOUNG_ROUNDS

    def _taken(self, start: int, theirs: list[Commit], before: Commit | None = None) -> list[Commit]:
        """Of verified records that follow one another from `start` on, those before the first provisional one that the
        electors, as they are heard now, do not stand on.  before: the record before them, if it is not ours."""
        history = self.replica.history
        roster = history.roster_at(start if before is None else start - 1)
        tip = history.tip_at(start) if before is None else record_hash(before.record)
        if before is not None:
            roster = roster.after(before)
        tips = [record_hash(commit.record) for commit in theirs]
        for number, commit in enumerate(theirs):
            electors = roster.electorate.electors
            if not is_full(commit.certificate) and not self.standpoints.follow(electors, tips[number:], tip):
                return theirs[:number]
            roster, tip = roster.after(commit), tips[number]
        return theirs

    async def _common_ancestor(self, peer: PeerId) -> tuple[int, int]:
        """(rounds both chains share, length of theirs).  Looks back in windows that double."""
        window = 64
        while True:
            start = max(0, self.replica.history.length - window + 1)
            reply = await self._ask(peer, "tips", TipsRequest(start=start, count=min(window * 2, MAX_TIPS)), TipsReply)
            if reply.length < start:
                start = max(0, reply.length - window + 1)
                reply = await self._ask(peer, "tips", TipsRequest(start=start, count=window), TipsReply)
            mine = self.replica.history.tips(start, len(reply.tips))
            shared = sum(1 for ours, theirs in zip(mine, reply.tips, strict=False) if ours == theirs)
            if shared or start == 0:
                if not shared:
                    raise Malformed("a chain that begins at another genesis")
                return start + shared - 1, reply.length
            window *= 2

    async def _extend(self, peer: PeerId, length: int) -> bool:
        """Take over what their chain has beyond ours; whether there was any of it to take."""
        history, began = self.replica.history, self.replica.history.length
        while history.length < length:
            ahead = await self._commits_after(peer, history.length, min(length, history.length + LOOK_AHEAD))
            taken = self._taken(history.length, ahead)
            for commit in taken:
                await self.offload(history.append, commit)
            self.session.emit(SyncProgress("records", history.length, length))
            if len(taken) < len(ahead):
                break
        return history.length > began

    async def _commits_after(self, peer: PeerId, common: int, length: int) -> list[Commit]:
        """Their records from `common` to `length`, verified."""
        commits: list[Commit] = []
        size = 0
        roster = self.replica.history.roster_at(common)
        base = base_on(self.replica.rounds, common, self.replica.history.tip_at(common), roster)
        while common + len(commits) < length:
            for commit in (await self._commits(peer, base.round))[: length - base.round]:
                await self.offload(verify_commit, self.replica.rounds, commit, base)
                commits.append(commit)
                size += len(commit.index) * ENTRY_BYTES
                if size > BRANCH_BYTES:
                    raise Malformed(f"a fork of over {BRANCH_BYTES >> 20} MiB of records")
                roster = roster.after(commit)
                base = base_on(self.replica.rounds, base.round + 1, record_hash(commit.record), roster)
        return commits

    async def _commits(self, peer: PeerId, start: int) -> list[Commit]:
        reply = await self._ask(peer, "commits", CommitsRequest(start=start, count=MAX_COMMITS), CommitsReply)
        if not reply.commits:
            raise Malformed("a peer without the records it announced")
        return [decode_body(Commit, raw) for raw in reply.commits]

    async def go_back(self, rounds: int) -> None:
        """Give up our provisional records from `rounds` on."""
        await self._switch(rounds, [], self.session.me)

    async def _switch(self, common: int, theirs: list[Commit], peer: PeerId) -> None:
        abandoned = self.replica.history.length - common
        await self.offload(self.replica.history.roll_back, common)
        for commit in theirs:
            await self.offload(self.replica.history.append, commit)
        self.session.emit(RolledBack(common, abandoned, peer))
        if self.replica.state.rounds > common:
            await self.restore()

    # -- state --------------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """The newest state the disk gives for our chain: its checkpoint, else genesis, and the results that are here."""
        await self._load_start()
        while self.replica.state.rounds < self.replica.history.length:
            commit = self.replica.history.commit_at(self.replica.state.rounds)
            result = await self.offload(self._stored_result, commit)
            if result is None:
                return
            await self.apply(commit, result)

    async def _load_start(self) -> None:
        for rounds in sorted(self.replica.store.checkpoints.rounds(), reverse=True):
            if rounds <= self.replica.history.length and await self._load_checkpoint(rounds):
                return
        self.replica.state.reset()
        if self.initialise is not None:
            await self.initialise(self.replica.state.theta)

    async def _load_checkpoint(self, rounds: int) -> bool:
        opened = self.replica.store.checkpoints.open(rounds)
        if opened is None:
            return False
        leaves, view = opened
        if rounds < self.replica.history.length:
            if tree_root(leaves) != self.replica.history.commit_at(rounds).record.state_digest:
                return False
        await self.offload(self.replica.state.load, view, rounds)
        return bool(await self.offload(self.replica.state.digest) == tree_root(leaves))

    def _stored_result(self, commit: Commit) -> memoryview | None:
        """A result from the disk, checked; one whose bytes were altered is dropped."""
        record, root = commit.record, Hash(commit.record.result_root)
        result = self.replica.store.results.open(record.round, record.fragment, root)
        if result is None:
            return None
        whole = len(result) == payload_bytes(self.replica.layout) and all(
            chunk_hash(result[span.encoded]) == entry.hash
            for span, entry in zip(self.replica.layout, commit.index, strict=True)
        )
        if not whole:
            self.replica.store.results.drop(record.round, record.fragment, root)
        return result if whole else None

    async def replay(self, sources: Sequence[PeerId]) -> bool:
        """Bring the state to the end of the chain.  False when something is to be had from nobody now."""
        if not sources and self.replica.state.rounds < self.replica.history.length:
            return False
        while self.replica.state.rounds < self.replica.history.length:
            commit = self.replica.history.commit_at(self.replica.state.rounds)
            result = await self.offload(self._stored_result, commit)
            if result is None and await self._checkpoint_pays(sources):
                continue
            if result is None:
                result = await self.fetch_result(commit, sources)
            if result is None:  # everybody may have pruned it: checkpoints that make it superfluous are kept
                if await self.fetch_newest_checkpoint(sources, at_least=self.replica.state.rounds + 1):
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
        assert record.round == self.replica.state.rounds, "results are applied in order, once"
        digest = await self.offload(self.replica.state.digest)
        if digest != record.state_digest:
            assert isinstance(digest, bytes)
            self.session.emit(Desynced(record.round, digest.hex(), record.state_digest.hex()))
            raise WrongState(f"before round {record.round}")
        step = self.replica.manifest.outer_step([member.tokens for member in record.members])
        await self.offload(self.replica.state.apply, result, step)
        digest = await self.offload(self.replica.state.digest)
        assert isinstance(digest, bytes)
        self.session.emit(StateApplied(self.replica.state.rounds, digest.hex()))

    async def _checkpoint_pays(self, sources: Sequence[PeerId]) -> bool:
        if self.replica.history.length - self.replica.state.rounds <= CHECKPOINT_WORTH_ROUNDS and self._can_start():
            return False
        return await self.fetch_newest_checkpoint(sources, at_least=self.replica.state.rounds + 1)

    def _can_start(self) -> bool:
        return self.initialise is not None or self.replica.state.rounds > 0

    # -- fetching -----------------------------------------------------------------------------------------------------

    async def fetch_result(self, commit: Commit, sources: Sequence[PeerId]) -> memoryview | None:
        """The result of a certified record from whoever has it, on disk when this returns; None when nobody has."""
        record = commit.record
        file = await self.offload(
            self.replica.store.results.begin, record.round, record.fragment, payload_bytes(self.replica.layout)
        )
        assert isinstance(file, ResultFile)
        complete = False
        try:
            complete = await self.fetch_chunks(
                record.round, Hash(record.result_root), commit.index, range(len(self.replica.layout)), file.view, sources
            )
            if complete:
                await self.offload(file.commit, Hash(record.result_root))
        finally:
            if not complete:
                file.discard()
        if not complete:
            return None
        return self.replica.store.results.open(record.round, record.fragment, Hash(record.result_root))

    async def fetch_chunks(
        self,
        round: int,
        root: Hash,
        index: Sequence[ChunkEntry],
        missing: Sequence[int],
        into: memoryview,
        sources: Sequence[PeerId],
    ) -> bool:
        """Fetch the named chunks of a result into its buffer; True when all are there and checked."""
        layout = self.replica.layout
        wanted = [BlobChunk(chunk, layout[chunk].offset, layout[chunk].size, Hash(index[chunk].hash)) for chunk in missing]
        return await fetch_blob(
            self.session.network,
            sources,
            "result",
            round,
            root,
            wanted,
            into,
            offload=self.offload,
            emit=self.session.emit,
            on_progress=lambda done, total: None,
        )

    async def fetch_newest_checkpoint(self, sources: Sequence[PeerId], *, at_least: int) -> bool:
        """Load the newest checkpoint of our chain that a source has and a record certifies."""
        holders: dict[int, list[PeerId]] = {}
        for peer in sources:
            try:
                have = await self._ask(peer, "have", HaveRequest(), HaveReply)
            except (NetworkError, Malformed):
                continue
            for rounds in have.checkpoints:
                if at_least <= rounds < self.replica.history.length:
                    holders.setdefault(rounds, []).append(peer)
        for rounds in sorted(holders, reverse=True):
            if await self._fetch_checkpoint(rounds, holders[rounds]):
                return True
        return False

    async def _fetch_checkpoint(self, rounds: int, sources: Sequence[PeerId]) -> bool:
        digest = Hash(self.replica.history.commit_at(rounds).record.state_digest)
        leaves = await self._fetch_leaves(rounds, digest, sources)
        if leaves is None:
            return False
        step = self.replica.manifest.checkpoint_chunk_bytes
        download = await self.offload(
            self.replica.store.checkpoints.download, rounds, leaves, self.replica.state.size_bytes, step
        )
        wanted = [
            BlobChunk(i, i * step, min(step, self.replica.state.size_bytes - i * step), leaves[i])
            for i in download.missing()
        ]
        complete = await fetch_blob(
            self.session.network,
            sources,
            "checkpoint",
            rounds,
            digest,
            wanted,
            download.view,
            offload=self.offload,
            emit=self.session.emit,
            on_progress=lambda done, total: self.session.emit(SyncProgress("checkpoint", done, total)),
        )
        if not complete:
            return False
        await self.offload(download.commit)
        self.session.emit(CheckpointWritten(rounds, self.replica.state.size_bytes))
        return await self._load_checkpoint(rounds)

    async def _fetch_leaves(self, rounds: int, digest: Hash, sources: Sequence[PeerId]) -> list[Hash] | None:
        count = self.replica.state.leaf_count
        for peer in sources:
            try:
                reply = await self._ask(peer, "leaves", LeavesRequest(rounds=rounds), LeavesReply)
            except (NetworkError, Malformed) as error:
                self.session.emit(Notice("debug", f"no checkpoint hashes from {peer}: {error}"))
                continue
            leaves = [Hash(leaf) for leaf in reply.leaves]
            if len(leaves) == count and tree_root(leaves) == digest:
                return leaves
            self.session.emit(Dropped(peer, "checkpoint hashes", "they do not match the certified digest"))
        return None

    async def _ask(self, peer: PeerId, kind: str, question: Body, reply: type[R]) -> R:
        answer = await self.session.network.request(peer, kind, question.encode(), timeout_s=ASK_TIMEOUT_S)
        return decode_body(reply, answer, max_bytes=MAX_REQUEST_BYTES)
