"""A ballot: one attempt to agree on a record, with one proposer and one quorum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from protocol.state.base import Base
from protocol.state.chain import quorum_of
from protocol.state.electorate import tolerated
from protocol.wire.identity import PeerId
from protocol.wire.masks import mask_of

RATIFYING = 1 << 40
"""The last attempt of every tip: in it electors ratify a record (`protocol.consensus.ratification`), and hold no ballot."""


@dataclass(frozen=True)
class Ballot:
    """Attempt `attempt` on `base` without the `absent` electors (sorted).

    members: of the plan; they vote when all electors are absent, or there are none.  Ballots are ordered by attempt.  Each
    has one proposer, so no order among proposers is needed.
    """

    base: Base
    attempt: int
    absent: tuple[PeerId, ...] = ()
    members: tuple[PeerId, ...] = ()

    @cached_property
    def voters(self) -> tuple[PeerId, ...]:
        """The electors that are not absent; the members where none is left."""
        stay = tuple(peer for peer in self.base.electors if peer not in self.absent)
        return stay or self.members

    @property
    def quorum(self) -> int:
        """Votes of one step that certify."""
        return quorum_of(self.base, self.voters, self.absent)

    @property
    def some_honest(self) -> int:
        """So many voters cannot all be liars, where fewer than a third are."""
        return 1 if self.members else tolerated(len(self.voters)) + 1

    @cached_property
    def proposer(self) -> PeerId:
        """The voter whose turn it is."""
        voters = self.base.ranked(self.voters)
        return voters[self.attempt % len(voters)]

    def may_propose(self, peer: PeerId) -> bool:
        """Whether this peer's proposal may be followed.  Where members vote, they may see different peers ready and so draw
        different proposers: any member may propose then, and the votes decide."""
        return peer in self.members if self.members else peer == self.proposer

    @property
    def is_sound(self) -> bool:
        """Whether there may be such a ballot: `absent` names electors, sorted, each once."""
        names = list(self.absent) == sorted(set(self.absent)) and set(self.absent) <= set(self.base.electors)
        return names and self.attempt < RATIFYING


def held_mask(electors: Sequence[PeerId], held: Sequence[PeerId]) -> bytes:
    """Bit i for the i-th elector that is in `held`; empty where there is no elector."""
    return mask_of([number for number, peer in enumerate(electors) if peer in held], len(electors))


def held_in(electors: Sequence[PeerId], mask: bytes) -> set[PeerId] | None:
    """The electors of a mask; None when it is not of this many electors."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (len(electors) + 7) // 8 or bits >> len(electors):
        return None
    return {peer for number, peer in enumerate(electors) if bits >> number & 1}
