"""Statements about versions are small, however large their fields."""

from __future__ import annotations

from protocol.wire.envelope import largest, seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.rollouts import MAX_BLOB_BYTES, MAX_STATEMENT_BYTES, BlobName, PatchName, Version


def test_the_largest_statement_fits_into_an_answer() -> None:
    identity = Identity.from_seed(bytes(32))
    root = b"\xff" * 32
    patch = BlobName(size=MAX_BLOB_BYTES - 1, chunk_bytes=1 << 24, root=root)
    body = Version(
        version=1 << 40,
        weights=BlobName(size=MAX_BLOB_BYTES, chunk_bytes=1 << 24, root=root),
        tensors=root,
        anchor=True,
        patch=PatchName(base=(1 << 40) - 1, base_root=root, blob=patch),
    )
    assert largest(Version).bytes < MAX_STATEMENT_BYTES - 300
    assert len(seal(identity, Hash(root), Version.KIND, body.encode()).raw) < MAX_STATEMENT_BYTES


def test_the_kind_says_whether_it_is_to_be_had_whole() -> None:
    blob = BlobName(size=10_000, chunk_bytes=4096, root=bytes(32))
    assert blob.count == 3
    patch = PatchName(base=1, base_root=bytes(32), blob=BlobName(size=10, chunk_bytes=4096, root=bytes(32)))
    versions = [Version(version=2, weights=blob, tensors=bytes(32), anchor=anchor, patch=patch) for anchor in (True, False)]
    assert [version.kind for version in versions] == ["anchor", "patch"]
