"""This peer's copy of the run: its manifest, its record chain, and the state that the chain leads to.

Other peers ask it for records, and fetch results and checkpoints from it as blobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.layout import Layouts
from protocol.blobs.blob import EvenSpans
from protocol.blobs.store import REMEMBERED, Held, Holding, LeavesMemory
from protocol.chain.base import Base, RoundSettings, round_settings
from protocol.chain.history import History
from protocol.chain.outer_state import OuterState
from protocol.chain.results import CheckpointName, ResultName
from protocol.chain.store import Store
from protocol.disk import in_turn
from protocol.offload import Offload
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.transport.handlers import answers
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Record
from protocol.wire.questions import (
    COMMITS_BYTES,
    CommitsReply,
    CommitsRequest,
    HaveReply,
    HaveRequest,
    TipsReply,
    TipsRequest,
)


@dataclass(frozen=True)
class Replica:
    """The manifest with the settings that follow from it, and all data that commits change.

    layouts: the chunks of contributions and results.  rounds: the manifest's settings of rounds.
    """

    signed: SignedManifest
    layouts: Layouts
    rounds: RoundSettings
    history: History
    store: Store
    state: OuterState

    @classmethod
    def open(cls, signed: SignedManifest, store: Store, state: OuterState) -> Replica:
        """Open the copy that `store` holds on disk; the outer state will be loaded into `state`."""
        manifest = signed.manifest
        rounds = round_settings(signed.run, manifest)
        return cls(signed, manifest.layouts, rounds, History(rounds, store), store, state)

    @property
    def manifest(self) -> RunManifest:
        """Manifest of the run."""
        return self.signed.manifest

    def result(self, record: Record, index: Sequence[ChunkEntry]) -> memoryview | None:
        """Return a stored result if its chunks match `index`; otherwise demote it and return None.  Blocking."""
        name, results = ResultName.of(record), self.store.results
        view = results.view(name, self.layouts.result.payload_bytes)
        if view is None:
            return None
        parts = in_turn(view, (span.encoded for span in self.layouts.result))
        if all(chunk_hash(part) == entry.hash for part, entry in zip(parts, index, strict=True)):
            return view
        results.demote(name)
        return None

    def named_losses(self, record: Record) -> dict[str, float]:
        """Return the training losses in a record, by the names of the sources."""
        return {self.manifest.data.sources[source].name: loss for source, loss in record.losses.items()}

    @property
    def _keeps_first(self) -> bool:
        """True if the state before the first round stays on disk, because members compare the model with it."""
        return self.manifest.initial_bytes > 0

    def make_room(self) -> None:
        """Remove older checkpoints to make room for a new one.  Blocking."""
        self.store.make_room(self.history, keeps_first=self._keeps_first)

    def prune(self) -> None:
        """Remove the files that are no longer needed.  Blocking."""
        self.store.prune(self.history, self.history.final, keeps_first=self._keeps_first)

    def name_state(self) -> bytes:
        """Return the name of the present state in READYs and records (`protocol.wire.messages.OnState.state`).  Blocking."""
        return self.state.digest() + (self.state.weights_root() if self.manifest.rl is not None else b"")

    @property
    def base(self) -> Base:
        """Base of the next round."""
        return self.history.base


# ------------------------------------------------------------------------------------------------------------------------
# The results and checkpoints of a run on disk, as blobs.
#
# A result is named by the root that its record names, a checkpoint by the digest of the state.  Whenever a chunk is read, it
# is checked against its hash if the hash is known: a disk may alter its data, and altered data must not be served.


class ReplicaShelf:
    """A `protocol.blobs.store.Shelf` of a replica's results and checkpoints."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._spans = [span.encoded for span in replica.layouts.result]
        self._hashes = LeavesMemory(REMEMBERED)
        """Hashes of results, for each of which a whole record is read."""

    def find(self, name: Hash) -> Held | None:
        """Return the blob as `Shelf.find` describes."""
        return self._result(name) or self._checkpoint(name)

    def holdings(self) -> list[Holding]:
        """Return the whole blobs as `Shelf.holdings` describes."""
        store, whole = self._replica.store, self._spans[-1].stop
        known = [(mark.rounds, index[0], size) for mark, index, size in self._checkpoints()]
        results = [(name.round, name.root, size) for name, size in sorted(store.results.sizes().items()) if size == whole]
        return [
            *(Holding("checkpoint", rounds, digest.hex(), size) for rounds, digest, size in known),
            *(Holding("result", round, root.hex(), size) for round, root, size in results),
        ]

    def _result(self, root: Hash) -> Held | None:
        results, history = self._replica.store.results, self._replica.history
        name = results.find(root)
        if name is None or results.sizes().get(name) != self._spans[-1].stop:
            return None
        hashes = self._hashes.get(root, lambda: self._hashes_of(name))
        is_urgent = hashes is None or name.round == history.length - 1
        return results.held(name, self._spans, hashes, is_urgent=is_urgent)

    def _hashes_of(self, name: ResultName) -> list[Hash] | None:
        """Return the hashes of a result's chunks; None if no record of our chain names the result."""
        commit = self._replica.history.kept(name.round)
        if commit is None or commit.record.result_root != name.root:
            return None
        return [Hash(entry.hash) for entry in commit.index]

    def _checkpoint(self, digest: Hash) -> Held | None:
        checkpoints = self._replica.store.checkpoints
        for mark, (root, leaves), size in reversed(self._checkpoints()):
            if root == digest:
                checkpoints.note_read(mark, self._replica.history.length)
                return checkpoints.held(mark, EvenSpans(size, self._replica.manifest.checkpoint_chunk_bytes), leaves)
        return None

    def _checkpoints(self) -> list[tuple[CheckpointName, tuple[Hash, list[Hash]], int]]:
        """Return the key, index and size of each checkpoint on disk whose hashes are on disk as well, ascending."""
        checkpoints, step = self._replica.store.checkpoints, self._replica.manifest.checkpoint_chunk_bytes
        checkpoints.check()  # a file that became shorter is not a checkpoint
        found = [(mark, checkpoints.index(mark), size) for mark, size in sorted(checkpoints.sizes().items())]
        return [(mark, index, size) for mark, index, size in found if index and len(index[1]) == -(-size // step)]


# ------------------------------------------------------------------------------------------------------------------------
# Answers to questions about the run's manifest, its records, and the blobs that we hold.
#
# Only data on disk is served, in pieces of at most `MAX_REQUEST_BYTES`; a question leaves no state in memory.


class Serving:
    """Server of answers from `replica`, in worker threads."""

    def __init__(self, replica: Replica, offload: Offload) -> None:
        self._replica, self._offload = replica, offload

    @answers("manifest", None, anyone=True)
    async def answer_manifest(self, peer: PeerId) -> bytes:
        """Return the signed manifest of the run."""
        return self._replica.signed.raw

    @answers("tips", TipsRequest)
    async def answer_tips(self, peer: PeerId, question: TipsRequest) -> bytes:
        """Return tips of our chain."""
        answer: bytes = await self._offload(self._tips, question)
        return answer

    @answers("commits", CommitsRequest)
    async def answer_commits(self, peer: PeerId, question: CommitsRequest) -> bytes:
        """Return the requested commits of our chain, from the first on, up to the limit of one answer."""
        answer: bytes = await self._offload(self._commits, question)
        return answer

    @answers("have", HaveRequest)
    async def answer_have(self, peer: PeerId, question: HaveRequest) -> bytes:
        """Return the rounds whose results and checkpoints we hold."""
        answer: bytes = await self._offload(self._have)
        return answer

    def _tips(self, question: TipsRequest) -> bytes:
        history = self._replica.history
        return TipsReply(length=history.length, tips=list(history.tips(question.start, question.count))).encode()

    def _commits(self, question: CommitsRequest) -> bytes:
        history = self._replica.history
        commits: list[bytes] = []
        size = 0
        for round, tip in enumerate(history.tips(question.start + 1, question.count), question.start):
            raw = history.encoded(round, tip)
            if raw is None:
                break  # branches are being exchanged: never serve records of both
            size += len(raw)
            if commits and size > COMMITS_BYTES:
                break
            commits.append(raw)
        return CommitsReply(commits=commits).encode()

    def _have(self) -> bytes:
        store, history = self._replica.store, self._replica.history
        return HaveReply(
            length=history.length, oldest_result=store.results.oldest(), checkpoints=store.checkpoints.of(history)[-16:]
        ).encode()
