"""Answers to the questions others ask about the past: the run's manifest, records, and what we hold.

Only what is on disk is served, in pieces of at most `MAX_REQUEST_BYTES`; questions cost no state.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.network.interface import MALFORMED, Refused
from protocol.offload import Offload
from protocol.state.replica import Replica
from protocol.wire.body import Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.questions import (
    COMMITS_BYTES,
    CommitsReply,
    CommitsRequest,
    HaveReply,
    HaveRequest,
    TipsReply,
    TipsRequest,
)

MAX_QUESTION_BYTES = 4096
QUESTIONS: dict[str, type[Body]] = {
    "tips": TipsRequest,
    "commits": CommitsRequest,
    "have": HaveRequest,
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
            "manifest": self._manifest,
        }

    async def answer(self, kind: str, data: bytes) -> bytes:
        """The answer to a question; raises `Refused` with the reason when there is none."""
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
                break  # the newest, or branches are exchanged just now: never records of both
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
