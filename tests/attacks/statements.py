"""Well-formed record proposals that cost much to decode, signed by whoever likes."""

from __future__ import annotations

import os
from functools import lru_cache

from protocol.formats.model import MAX_CHUNKS
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Member, Provenance, Record, RecordProposal, pack


def record_proposal(by: PeerId, attempt: int, *, chunks: int, round: int = 1, previous: Hash = ZERO_HASH) -> RecordProposal:
    """A record proposal about a record of one member and so many chunks, none of which exists."""
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
        round=round,
        fragment=0,
        previous=previous,
        members=[place],
        codec="int4",
        result_root=ZERO_HASH,
        state_digest=ZERO_HASH,
    )
    provenance = Provenance(owners=bytes(chunks), signers=bytes(chunks), signatures=[bytes(64)] * chunks)
    index = [ChunkEntry(hash=os.urandom(32), mask=b"\x01") for _ in range(chunks)]
    return RecordProposal(
        attempt=attempt, absent=[], record=record, index=index, provenance=provenance, view_changes=[b"\x00"], proof=None
    )


@lru_cache(maxsize=64)
def _largest(by: PeerId) -> RecordProposal:
    return record_proposal(by, 0, chunks=MAX_CHUNKS)


def large_record_proposal(by: Identity, run: Hash, attempt: int) -> bytes:
    """One of the largest statements, signed; another one for each attempt."""
    return pack(by, run, _largest(by.peer_id).model_copy(update={"attempt": attempt})).raw
