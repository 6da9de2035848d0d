"""Questions from one peer to another about the past, and the form of the answers.

Questions and answers are sent over a connection that has proven both peer IDs, and are not signed: nothing in an answer is
trusted. Records carry certificates; chunks and leaf hashes are checked against roots that certified records name.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.formats.model import MAX_CHUNKS
from protocol.wire.envelope import Body, Count, HashField

MAX_TIPS = 1024
MAX_COMMITS = 64
MAX_LEAVES = 32_768
SLICE_BYTES = 1 << 20
"""Most bytes of a large object in one answer."""
COMMITS_BYTES = 1_500_000
"""Most bytes of records in one answer, unless a single record is larger."""


class TipsRequest(Body):
    """Request for the tips after `start`, `start` + 1, … rounds (the tip after 0 rounds is genesis)."""

    start: Count
    count: Annotated[int, Field(ge=1, le=MAX_TIPS)]


class TipsReply(Body):
    """The length of a peer's chain, and a window of its tips."""

    length: Count
    tips: Annotated[list[HashField], Field(max_length=MAX_TIPS)]


class CommitsRequest(Body):
    """Request for the commits of rounds `start` to `start` + `count` - 1."""

    start: Count
    count: Annotated[int, Field(ge=1, le=MAX_COMMITS)]


class CommitsReply(Body):
    """Encoded `Commit` bodies of consecutive rounds."""

    commits: Annotated[list[bytes], Field(max_length=MAX_COMMITS)]


class HaveRequest(Body):
    """Request for a list of the data that a peer can serve."""


class HaveReply(Body):
    """Data that a peer can serve: results of rounds from `oldest_result` on, and checkpoints, by their numbers of rounds."""

    length: Count
    oldest_result: Count
    checkpoints: Annotated[list[Count], Field(max_length=16)]


class PartRequest(Body):
    """Request for bytes [offset, offset + length) of a chunk of the contribution `root` that the peer made in this round."""

    root: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


class PartReply(Body):
    """The requested bytes.  proof: proof of the whole chunk, against the root."""

    proof: Annotated[list[HashField], Field(max_length=16)]
    data: Annotated[bytes, Field(max_length=SLICE_BYTES)]


class EvidenceRequest(Body):
    """Request for bytes [offset, offset + length) of a proof."""

    evidence: HashField
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


class ReceiptsRequest(Body):
    """Request for bytes [offset, offset + length) of the receipts to which a READY commits."""

    receipts: HashField
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


MAX_HOLDINGS_BYTES = 1 << 15


class HoldingsRequest(Body):
    """Request for a list of the run's data that a peer has on its disk."""


class HoldingsReply(Body):
    """Data on a peer's disk.

    files: True if it has all files of the run.  start: True if it has the weights with which the run compares its own, or if
    there are none.  blocks: bitmap of the first blocks of the run's corpora, in the order of their manifests.
    """

    files: bool
    start: bool
    blocks: Annotated[bytes, Field(max_length=MAX_HOLDINGS_BYTES)]


class LeavesReply(Body):
    """The hashes of the chunks of a blob, in order."""

    leaves: Annotated[list[HashField], Field(min_length=1, max_length=MAX_LEAVES)]
