"""The outer state before the first round, in runs whose manifest names it: what it is called, and how large it is.

Where the manifest names none, the initial parameters follow from the seed, and every trainer makes them.  Where it names
one, the state is fetched like a checkpoint, the one after 0 rounds, and the manifest vouches for it as a record does for
the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.run.manifest import RunManifest
from protocol.state.chain_view import Chain
from protocol.wire.hashes import Hash


@dataclass(frozen=True)
class NamedState:
    """An outer state as a blob.  digest: the root of the tree over its pieces; the last one may be shorter."""

    digest: Hash
    size_bytes: int
    piece_bytes: int

    @property
    def pieces(self) -> int:
        """How many there are."""
        return -(-self.size_bytes // self.piece_bytes)


def genesis_state(manifest: RunManifest) -> NamedState | None:
    """The state after 0 rounds; None where it follows from the seed."""
    if manifest.genesis is None:
        return None
    return NamedState(manifest.genesis, manifest.state_bytes, manifest.checkpoint_chunk_bytes)


def certified_digest(manifest: RunManifest, chain: Chain, rounds: int) -> Hash | None:
    """The digest of the state after `rounds` rounds of a chain; None where nothing says it yet.  Blocking.

    The manifest says it of genesis, and a record of the rounds before it.
    """
    if rounds == 0 and manifest.genesis is not None:
        return manifest.genesis
    return Hash(chain.commit_at(rounds).record.state_digest) if rounds < chain.length else None
