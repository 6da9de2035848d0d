"""Answers to the questions others ask about the past: the run's manifest, records, and pieces of what we hold.

Only what is on disk is served, in pieces of at most `MAX_REQUEST_BYTES`; questions cost no state.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.content.blobs import ChunkRequest
from protocol.network.interface import Refused
from protocol.offload import Offload
from protocol.state.base import fragment_of
from protocol.state.replica import Replica
from protocol.wire.body import Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.questions import (
    COMMITS_BYTES,
    CommitsReply,
    CommitsRequest,
    HaveReply,
    HaveRequest,
    LeavesReply,
    LeavesRequest,
    TipsReply,
    TipsRequest,
)

MAX_QUESTION_BYTES = 4096
QUESTIONS: dict[str, type[Body]] = {
    "tips": TipsRequest,
    "commits": CommitsRequest,
    "have": HaveRequest,
    "leaves": LeavesRequest,
    "chunk": ChunkRequest,
    "manifest": HaveRequest,
}
"""What is answered here, by kind, and how it is asked."""


class Serving:
    """Serves from `replica`, in worker threads."""

    def __init__(self, replica: Replica, offload: Offload) -> None:
        self._replica, self._offload = replica, offload
        self._answers: dict[str, Callable[[bytes], bytes]] = {
            "tips": self._tips,
            "commits": self._commits,
            "have": self._have,
            "leaves": self._leaves,
            "chunk": self._chunk,
            "manifest": self._manifest,
        }

    async def answer(self, kind: str, data: bytes) -> bytes:
        """The answer to a question; raises `Refused` with the reason when there is none."""
        if len(data) > MAX_QUESTION_BYTES:
            raise Refused("the question is too long")
        try:
            answer = await self._offload(self._answers[kind], data)
        except Malformed as error:
            raise Refused(str(error)) from error
        assert isinstance(answer, bytes)
        return answer

    def _manifest(self, data: bytes) -> bytes:
        return self._replica.signed.raw

    def _tips(self, data: bytes) -> bytes:
        question = decode_body(TipsRequest, data)
        history = self._replica.history
        return TipsReply(length=history.length, tips=list(history.tips(question.start, question.count))).encode()

    def _commits(self, data: bytes) -> bytes:
        question = decode_body(CommitsRequest, data)
        commits: list[bytes] = []
        size = 0
        for round in range(question.start, min(question.start + question.count, self._replica.history.length)):
            raw = self._replica.history.commit_at(round).encode()
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

    def _leaves(self, data: bytes) -> bytes:
        question = decode_body(LeavesRequest, data)
        opened = self._checkpoint(question.rounds)
        if opened is None:
            raise Refused("that checkpoint is not here")
        return LeavesReply(leaves=list(opened[0])).encode()

    def _chunk(self, data: bytes) -> bytes:
        question = decode_body(ChunkRequest, data)
        piece = self._result_chunk(question) if question.what == "result" else self._checkpoint_chunk(question)
        if piece is None:
            raise Refused("that chunk is not here")
        return bytes(piece[question.offset : question.offset + question.length])

    def _result_chunk(self, question: ChunkRequest) -> memoryview | None:
        layout, root = self._replica.layout, Hash(question.root)
        if question.index >= len(layout):
            return None
        span = layout[question.index]
        fragment = fragment_of(question.round, self._replica.manifest.fragments)
        result = self._replica.store.results.open(question.round, fragment, root)
        if result is None:
            return None
        return result[span.encoded]

    def _checkpoint(self, rounds: int) -> tuple[list[Hash], memoryview] | None:
        history = self._replica.history
        return self._replica.store.checkpoints.open(rounds, history.tip_at(rounds)) if rounds <= history.length else None

    def _checkpoint_chunk(self, question: ChunkRequest) -> memoryview | None:
        opened = self._checkpoint(question.round)
        if opened is None or tree_root(opened[0]) != question.root:
            return None
        step = self._replica.manifest.checkpoint_chunk_bytes
        piece = opened[1][question.index * step : (question.index + 1) * step]
        return piece if len(piece) else None
