"""Names of peers, and small blobs."""

from __future__ import annotations

from protocol.blobs.blob import Blob
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId

PEERS: list[PeerId] = [Identity.from_seed(bytes([40 + number]) * 32).peer_id for number in range(24)]
NAME = Hash(b"\x05" * 32)


def sized(*sizes: int) -> Blob:
    """A blob with chunks of these sizes."""
    return Blob(NAME, tuple(chunk_hash(bytes([chunk % 256])) for chunk in range(len(sizes))), sizes)


def even(count: int, size: int = 1000) -> Blob:
    """A blob of equal chunks."""
    return sized(*[size] * count)
