"""The most expensive form of each question and statement, for floods by whoever likes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from protocol.allreduce.runner import ExchangeAsk
from protocol.blobs.blob import MAX_NEWS, BlobRequest, ChunkNews, ChunksRequest, LeavesRequest
from protocol.formats.model import MAX_CHUNKS
from protocol.run.admission import make_hello
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Member, Provenance, Record, RecordProposal, pack
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
    TipsRequest,
)

PLACES = 1000
"""Chunks of the blob and bytes of the proof that are asked for by turns."""


@lru_cache(maxsize=64)
def _largest_motion(by: PeerId) -> RecordProposal:
    """A motion about a record of one member and as many chunks as there may be, none of which exists."""
    place = Member(
        peer=by,
        incarnation=0,
        serial=0,
        tokens=1,
        steps=1,
        loss=0.0,
        norm=0.0,
        root=ZERO_HASH,
        signature=bytes(64),
    )
    record = Record(
        round=1,
        fragment=0,
        previous=ZERO_HASH,
        members=[place],
        codec="int4",
        result_root=ZERO_HASH,
        state_digest=ZERO_HASH,
    )
    provenance = Provenance(owners=bytes(MAX_CHUNKS), signers=bytes(MAX_CHUNKS), signatures=[bytes(64)] * MAX_CHUNKS)
    index = [ChunkEntry(hash=os.urandom(32), mask=b"\x01") for _ in range(MAX_CHUNKS)]
    return RecordProposal(
        attempt=0, absent=[], record=record, index=index, provenance=provenance, rolls=[b"\x00"], proof=None
    )


def large_motion(by: Identity, run: Hash, attempt: int) -> bytes:
    """One of the largest statements, signed; another one for each attempt."""
    return pack(by, run, _largest_motion(by.peer_id).model_copy(update={"attempt": attempt})).raw


def dear_questions(by: Identity, run: Hash, checkpoint: Hash, proof: Hash) -> dict[str, Callable[[int], bytes]]:
    """By kind, the most expensive question that this key can ask; the argument numbers the questions.

    checkpoint, proof: names of data at the peer.  What follows a comma in a kind tells forms of one kind apart.
    """
    pushed = large_motion(by, run, 0)
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
        "holdings": lambda n: HoldingsRequest().encode(),
        "round": lambda n: pushed,
        "goodbye": lambda n: pack(by, run, Goodbye(incarnation=1, seq=n)).raw,
    }
