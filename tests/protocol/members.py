"""Members of a round, for tests in which nobody looks at their READYs."""

from __future__ import annotations

from protocol.wire.hashes import ZERO_HASH
from protocol.wire.messages import Member


def a_member(peer: str, tokens: int = 1, root: bytes = ZERO_HASH) -> Member:
    """A member whose READY is signed by nobody."""
    return Member(
        peer=peer, incarnation=1, serial=1, tokens=tokens, steps=1, loss=1.5, norm=1.0, root=root, signature=bytes(64)
    )
