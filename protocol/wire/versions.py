"""Versions of the model's weights: a publisher's signed statement about each, and the question about all known ones.

The statement names bytes by the roots over the hashes of their chunks.  So it stays small, and all bytes that it names can
be checked chunk by chunk.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.wire.body import Body, HashField
from protocol.wire.questions import MAX_LEAVES

LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 1 << 12, 1 << 24
MAX_BLOB_BYTES = MAX_LEAVES * MOST_CHUNK_BYTES
MAX_STATEMENT_BYTES = 1024
"""Bytes of a signed `Version` as it travels; it has about 600."""
MAX_STATEMENTS = 256
"""Statements in one answer, at most."""

VersionNumber = Annotated[int, Field(ge=1, le=1 << 40)]


class BlobName(Body):
    """Name of some bytes: their number, the size of their chunks, and the root over the hashes of the chunks."""

    size: Annotated[int, Field(ge=1, le=MAX_BLOB_BYTES)]
    chunk_bytes: Annotated[int, Field(ge=LEAST_CHUNK_BYTES, le=MOST_CHUNK_BYTES, multiple_of=LEAST_CHUNK_BYTES)]
    root: HashField

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if self.count > MAX_LEAVES:
            raise ValueError("too many chunks")
        return self

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_bytes)


class PatchName(Body):
    """A patch (`protocol.versions.making`): it leads from the weights of the version `base`, whose root is `base_root`."""

    base: VersionNumber
    base_root: HashField
    blob: BlobName


class Version(Body):
    """A version of the weights: one safetensors file in bf16.

    weights: the whole file.  tensors: the root over the hashes of its tensors (`protocol.versions.making`).
    anchor: whether it can be fetched whole.  patch: leads to it from an earlier version; None if there is no patch.
    """

    KIND: ClassVar[str] = "version"
    BY_GOSSIP: ClassVar[bool] = True
    version: VersionNumber
    weights: BlobName
    tensors: HashField
    anchor: bool
    patch: PatchName | None

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if not self.anchor and self.patch is None:
            raise ValueError("neither whole nor by a patch")
        if self.patch is not None and self.patch.base >= self.version:
            raise ValueError("a patch that leads from a later version")
        if self.patch is not None and self.patch.blob.size >= self.weights.size:
            raise ValueError("a patch that is larger than the whole")
        return self

    @property
    def blobs(self) -> list[BlobName]:
        """All files that the statement names."""
        return [self.weights, *([self.patch.blob] if self.patch is not None else [])]

    @property
    def kind(self) -> str:
        """Kind of the version, in one word."""
        return "anchor" if self.anchor else "patch"


class VersionsRequest(Body):
    """Asks for the statements about all versions that a peer knows."""


class VersionsReply(Body):
    """Signed `Version` statements, in the order of their numbers."""

    statements: Annotated[list[Annotated[bytes, Field(max_length=MAX_STATEMENT_BYTES)]], Field(max_length=MAX_STATEMENTS)]
