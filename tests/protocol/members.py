"""Members of a round, and their plan, for tests in which nobody looks at their READYs."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.wire.hashes import ZERO_HASH
from protocol.wire.messages import Member, Plan


def a_member(peer: str, tokens: int = 1, root: bytes = ZERO_HASH) -> Member:
    """A member whose READY is signed by nobody."""
    return Member(
        peer=peer, incarnation=1, serial=1, tokens=tokens, steps=1, loss=1.5, norm=1.0, root=root, signature=bytes(64)
    )


def a_plan_of(peers: Sequence[str], owners: Sequence[int]) -> Plan:
    """The plan of round 0 with these members, who own the chunks by their places."""
    members = [a_member(peer) for peer in peers]
    return Plan(round=0, fragment=0, base=ZERO_HASH, members=members, owners=bytes(owners), state_digest=ZERO_HASH)
