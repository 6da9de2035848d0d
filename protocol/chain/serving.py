"""The data of a run that this disk serves to others: answers about the past, and results and checkpoints as blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.blobs.blob import ChunkSet
from protocol.blobs.store import Held, Holding
from protocol.chain.replica import Replica
from protocol.chain.results import Mark
from protocol.offload import Offload
from protocol.transport.interface import MALFORMED, Refused
from protocol.wire.body import Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.questions import (
    COMMITS_BYTES,
    CommitsReply,
    CommitsRequest,
    HaveReply,
    HaveRequest,
    TipsReply,
    TipsRequest,
)

# ------------------------------------------------------------------------------------------------------------------------
# The results and checkpoints of a run on disk, as blobs.
#
# A result is named by the root that its record names, a checkpoint by the digest of the state.  Every chunk read is checked
# once more against its hash, if that is known: a disk may alter its data, and altered data is not served.


@dataclass(frozen=True)
class WholeBlob:
    """A complete blob on disk.  hashes: of its chunks; None if they are unknown.  is_urgent: as `Held.is_urgent`."""

    bytes_: memoryview
    spans: Sequence[slice]
    hashes: Sequence[Hash] | None
    is_urgent: bool

    @property
    def count(self) -> int:
        """Number of chunks of the blob."""
        return len(self.spans)

    @property
    def here(self) -> ChunkSet:
        """Set of all chunks."""
        return (1 << self.count) - 1

    def leaves(self) -> Sequence[Hash] | None:
        """See `Held.leaves`."""
        return self.hashes

    def read(self, chunk: int) -> bytes | None:
        """See `Held.read`."""
        data = bytes(self.bytes_[self.spans[chunk]])
        return data if self.hashes is None or chunk_hash(data) == self.hashes[chunk] else None


@dataclass(frozen=True)
class _Known:
    """Index of a checkpoint whose bytes are on disk.  stamp: of the file with its hashes.  digest: the root over them."""

    stamp: tuple[int, int]
    digest: Hash
    leaves: Sequence[Hash]
    spans: Sequence[slice]


class ReplicaShelf:
    """A `protocol.blobs.store.Shelf` over a replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._known: dict[Mark, _Known] = {}

    def find(self, name: Hash) -> Held | None:
        """See `Shelf.find`."""
        return self._result(name) or self._checkpoint(name)

    def holdings(self) -> list[Holding]:
        """See `ListedShelf.holdings`."""
        whole = self._replica.layout[-1].encoded.stop
        found = [each for each in self._replica.store.results.all() if each[2] == whole]
        results = [Holding("result", round, root.hex(), size) for round, root, size in found]
        known = [(mark, self._known_of(mark)) for mark in self._replica.store.checkpoints.marks()]
        return [
            *(Holding("checkpoint", mark[0], each.digest.hex(), each.spans[-1].stop) for mark, each in known if each),
            *results,
        ]

    def _result(self, root: Hash) -> Held | None:
        replica = self._replica
        found = replica.store.results.find(root)
        if found is None:
            return None
        round, view = found
        spans = [span.encoded for span in replica.layout]
        if len(view) != spans[-1].stop:
            return None
        commit = replica.history.kept(round)
        if commit is None or commit.record.result_root != root:
            return WholeBlob(view, spans, None, is_urgent=True)
        is_newest = round == replica.history.length - 1
        return WholeBlob(view, spans, [Hash(entry.hash) for entry in commit.index], is_urgent=is_newest)

    def _checkpoint(self, digest: Hash) -> Held | None:
        checkpoints = self._replica.store.checkpoints
        marks = checkpoints.marks()
        self._known = {mark: known for mark, known in [*self._known.items()] if mark in marks}  # find runs in threads
        for mark in reversed(marks):
            known = self._known_of(mark)
            if known is not None and known.digest == digest:
                checkpoints.note_read(mark, self._replica.history.length)
                view = checkpoints.view(*mark)  # anew each time: a mapping of a file that became shorter would kill us
                if view is not None and len(view) == known.spans[-1].stop:
                    return WholeBlob(view, known.spans, known.leaves, is_urgent=False)
        return None

    def _known_of(self, mark: Mark) -> _Known | None:
        known = self._known.get(mark)
        is_fresh = known is not None and known.stamp == self._replica.store.checkpoints.stamp(*mark)
        return known if is_fresh else self._look_at(mark)

    def _look_at(self, mark: Mark) -> _Known | None:
        """Read the hashes of a checkpoint, only once: there are tens of thousands, and their tree takes milliseconds."""
        stamp = self._replica.store.checkpoints.stamp(*mark)
        opened = self._replica.store.checkpoints.open(*mark)
        if opened is None:
            return None
        leaves, view = opened
        step = self._replica.manifest.checkpoint_chunk_bytes
        if len(leaves) != -(-len(view) // step):
            return None
        spans = [slice(at, min(at + step, len(view))) for at in range(0, len(view), step)]
        self._known[mark] = known = _Known(stamp, tree_root(leaves), leaves, spans)
        return known


# ------------------------------------------------------------------------------------------------------------------------
# Answers to questions about the past: the run's manifest, its records, and the blobs that we hold.
#
# Only data on disk is served, in pieces of at most `MAX_REQUEST_BYTES`; questions cost no state.


MAX_QUESTION_BYTES = 4096
QUESTIONS: dict[str, type[Body]] = {
    "tips": TipsRequest,
    "commits": CommitsRequest,
    "have": HaveRequest,
    "manifest": HaveRequest,
}
"""Kinds of questions answered here, and the message type that asks each."""


class Serving:
    """Server of answers from `replica`, in worker threads."""

    def __init__(self, replica: Replica, offload: Offload) -> None:
        self._replica, self._offload = replica, offload
        self._answers: dict[str, Callable[[bytes], bytes]] = {
            "tips": self._tips,
            "commits": self._commits,
            "have": self._have,
            "manifest": self._manifest,
        }

    async def answer(self, kind: str, data: bytes) -> bytes:
        """Return the answer to a question; raises `Refused` with the reason if there is none."""
        if len(data) > MAX_QUESTION_BYTES:
            raise Refused("the question is too long")
        try:
            answer = await self._offload(self._answers[kind], data)
        except Malformed as error:
            raise Refused(MALFORMED) from error
        assert isinstance(answer, bytes)
        return answer

    def _manifest(self, data: bytes) -> bytes:
        return self._replica.signed.raw

    def _tips(self, data: bytes) -> bytes:
        question = decode_body(TipsRequest, data)
        history = self._replica.history
        return TipsReply(length=history.length, tips=list(history.tips(question.start, question.count))).encode()

    def _commits(self, data: bytes) -> bytes:
        question, history = decode_body(CommitsRequest, data), self._replica.history
        commits: list[bytes] = []
        size = 0
        for round, tip in enumerate(history.tips(question.start, question.count), question.start):
            commit = history.kept(round)
            if commit is None or commit.record.previous != tip:
                break  # the newest, or an exchange of branches is under way: never serve records of both
            raw = commit.encode()
            size += len(raw)
            if commits and size > COMMITS_BYTES:
                break
            commits.append(raw)
        return CommitsReply(commits=commits).encode()

    def _have(self, data: bytes) -> bytes:
        decode_body(HaveRequest, data)
        store, history = self._replica.store, self._replica.history
        return HaveReply(
            length=history.length, oldest_result=store.results.oldest(), checkpoints=store.checkpoints.of(history)[-16:]
        ).encode()
