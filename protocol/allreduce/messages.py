"""The messages of an exchange that are not signed statements: the header of a push, and a successor's request."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from protocol.transport.interface import MAX_PUSH_HEADER_BYTES
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_CHUNKS, Body, FragmentNumber, HashField, decode_body
from protocol.wire.hashes import Hash

ChunkNumber = Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]


class PushHeader(Body):
    """Header of a push, which carries a part with its tree proof, or a result with its owner's statement.

    plan: hash of the plan.  fragment: the plan's.  proof: sibling hashes from the part's leaf to the root; empty for a
    result.  statement: the owner's envelope around a `ChunkResult`; None for a part.
    """

    plan: HashField
    fragment: FragmentNumber
    chunk: ChunkNumber
    proof: Annotated[list[HashField], Field(max_length=16)]
    statement: Annotated[bytes, Field(max_length=4096)] | None


class ExchangeAsk(Body):
    """Request to a member for the result of a chunk, or for its part.  plan: hash of the plan.  fragment: the plan's."""

    plan: HashField
    fragment: FragmentNumber
    chunk: ChunkNumber


@lru_cache(maxsize=256)
def read_header(raw: bytes) -> PushHeader:
    """Decode the header of a push; raise `Malformed` if that fails.  Cached, because one push asks several times."""
    return decode_body(PushHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)


def push_plan(header: bytes) -> Hash | None:
    """Return the hash of the plan that a push belongs to; None if the header is malformed."""
    try:
        return Hash(read_header(header).plan)
    except Malformed:
        return None
