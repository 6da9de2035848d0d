"""Questions of a peer to another about the past, and the form of the answers.

These travel over a connection that has proven both peer IDs and are not signed: nothing in an answer is believed.
Records carry certificates, chunks and leaf hashes are checked against roots that certified records name.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.wire.envelope import MAX_CHUNKS, Body, Count, HashField

MAX_TIPS = 1024
MAX_COMMITS = 64
MAX_LEAVES = 32_768
SLICE_BYTES = 1 << 20
"""Bytes of something large in one answer."""
COMMITS_BYTES = 1_500_000
"""An answer with records stops before it grows over this."""


class TipsRequest(Body):
    """Asks for the tips after rounds start, start + 1, … (the tip after 0 rounds is genesis)."""

    start: Count
    count: Annotated[int, Field(ge=1, le=MAX_TIPS)]


class TipsReply(Body):
    """The length of a peer's chain, and a window of its tips."""

    length: Count
    tips: Annotated[list[HashField], Field(max_length=MAX_TIPS)]


class CommitsRequest(Body):
    """Asks for the commits of rounds `start` to `start` + `count` - 1."""

    start: Count
    count: Annotated[int, Field(ge=1, le=MAX_COMMITS)]


class CommitsReply(Body):
    """Encoded `Commit` bodies of consecutive rounds."""

    commits: Annotated[list[bytes], Field(max_length=MAX_COMMITS)]


class RatificationRequest(Body):
    """Asks for the votes to ratify this round's record; the answer is a `Certificate`, complete or not."""

    round: Count
    record_hash: HashField


class HaveRequest(Body):
    """Asks what a peer can serve."""


class HaveReply(Body):
    """Data that a peer can serve: results of rounds from `oldest_result` on, checkpoints after so many rounds."""

    length: Count
    oldest_result: Count
    checkpoints: Annotated[list[Count], Field(max_length=16)]


class PartRequest(Body):
    """Asks for bytes [offset, offset + length) of a chunk of the contribution `root`, which the peer made in this round."""

    root: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


class PartReply(Body):
    """The bytes asked for.  proof: of the whole chunk, against the root."""

    proof: Annotated[list[HashField], Field(max_length=16)]
    data: Annotated[bytes, Field(max_length=SLICE_BYTES)]


class EvidenceRequest(Body):
    """Asks for bytes [offset, offset + length) of a proof."""

    evidence: HashField
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


class LeavesReply(Body):
    """The hashes of the chunks of a blob, in order."""

    leaves: Annotated[list[HashField], Field(min_length=1, max_length=MAX_LEAVES)]
