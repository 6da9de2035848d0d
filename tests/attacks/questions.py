"""The most expensive form of each question, for floods by whoever likes."""

from __future__ import annotations

from collections.abc import Callable

from protocol.allreduce.runner import ExchangeAsk
from protocol.blobs.blob import MAX_NEWS, BlobRequest, ChunkNews, ChunksRequest, LeavesRequest
from protocol.run.admission import make_hello
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import pack
from protocol.wire.presence import Goodbye, Role
from protocol.wire.questions import (
    MAX_COMMITS,
    MAX_TIPS,
    SLICE_BYTES,
    CommitsRequest,
    EvidenceRequest,
    HaveRequest,
    HoldingsRequest,
    PartRequest,
    ReceiptsRequest,
    TipsRequest,
)
from tests.attacks.statements import large_record_proposal

PLACES = 1000
"""Chunks of the blob and bytes of the proof that are asked for by turns."""


def dear_questions(by: Identity, run: Hash, checkpoint: Hash, proof: Hash) -> dict[str, Callable[[int], bytes]]:
    """By kind, the most expensive question that this key can ask; the argument numbers the questions.

    checkpoint, proof: names of data at the peer.  What follows a comma in a kind tells forms of one kind apart.
    """
    pushed = large_record_proposal(by, run, 0)
    return {
        "hello": lambda n: make_hello(run, Role.SEED, b"", "0").encode(),
        "manifest": lambda n: b"",
        "tips": lambda n: TipsRequest(start=0, count=MAX_TIPS).encode(),
        "commits": lambda n: CommitsRequest(start=0, count=MAX_COMMITS).encode(),
        "have": lambda n: HaveRequest().encode(),
        "blob": lambda n: BlobRequest(blob=checkpoint, chunks=b"").encode(),
        "leaves": lambda n: LeavesRequest(blob=checkpoint).encode(),
        "news": lambda n: ChunkNews(blob=checkpoint, chunks=list(range(MAX_NEWS))).encode(),
        "want": lambda n: ChunksRequest(blob=checkpoint, chunks=[n % PLACES]).encode(),
        "part": lambda n: PartRequest(root=ZERO_HASH, chunk=0, offset=0, length=SLICE_BYTES).encode(),
        "exchange": lambda n: ExchangeAsk(plan=ZERO_HASH, fragment=0, chunk=0).encode(),
        "evidence": lambda n: EvidenceRequest(evidence=proof, offset=n % PLACES, length=1).encode(),
        "evidence, 1 MiB": lambda n: EvidenceRequest(evidence=proof, offset=0, length=SLICE_BYTES).encode(),
        "receipts": lambda n: ReceiptsRequest(receipts=ZERO_HASH, offset=0, length=SLICE_BYTES).encode(),
        "holdings": lambda n: HoldingsRequest().encode(),
        "round": lambda n: pushed,
        "goodbye": lambda n: pack(by, run, Goodbye(incarnation=1, seq=n)).raw,
    }
