"""The branches that lie beside our chain, bounded: what a claimant has shown, and what we gave up ourselves.

One for each elector of our tip, one for all other members, some for strangers, and those that we left.  Coming back to one
of them needs no fetching of its records.  Each stranger has its own, or a fresh key could take away what another one has
shown so far; of too many the one used longest ago goes, and strangers' go before all others.
"""

from __future__ import annotations

from protocol.offload import Offload
from protocol.state.branch import Branch
from protocol.state.replica import Replica
from protocol.wire.identity import PeerId

HELD_BYTES = 256 << 20
"""Of records of all branches that nobody works on."""
HELD_BRANCHES = 64
STRANGERS_BRANCHES = 16
MEMBERS, STRANGER = "members", "stranger"


class Held:
    """`Branch`es by slot, those used last at the end."""

    def __init__(self, replica: Replica, offload: Offload) -> None:
        self._replica, self._offload = replica, offload
        self._branches: dict[str, Branch] = {}

    async def load(self) -> None:
        """Those that an earlier life left, as far as they begin on our chain; the others are removed."""
        for slot in await self._offload(self._replica.store.branches.slots):
            await self.note(slot)

    async def note(self, slot: str) -> None:
        """Look at what is in this slot now."""
        self._branches.pop(slot, None)
        if not slot:
            return
        branch = await self._offload(Branch.open, self._replica.history, self._replica.store.branches, slot)
        if branch is not None:
            self._branches[slot] = branch
        else:
            await self._offload(self._replica.store.branches.drop, slot)

    def leaving_at(self, common: int) -> list[Branch]:
        """Those that leave our chain after so many rounds, the longest first."""
        found = [
            branch for branch in self._branches.values() if branch.is_rooted and branch.common == common < branch.length
        ]
        return sorted(found, key=lambda branch: branch.length, reverse=True)

    def slot_of(self, peer: PeerId, *, known: bool) -> str:
        """Where a branch that this peer shows is held.  known: it is a member of our chain."""
        is_elector = peer in self._replica.history.roster.electorate.electors
        return peer if is_elector else MEMBERS if known else STRANGER + peer

    async def begin(self, slot: str, common: int) -> Branch:
        """A new branch, in place of the one that was in this slot."""
        self._branches.pop(slot, None)
        await self._offload(self._replica.store.branches.drop, slot)
        branch = Branch(self._replica.history, self._replica.store.branches, slot, common)
        self._branches[slot] = branch
        return branch

    async def trim(self, *keep: str) -> None:
        """Remove the branches used longest ago that are too many or too large, but not those in `keep`."""
        for slot in keep:
            if slot in self._branches:
                self._branches[slot] = self._branches.pop(slot)
        free = [slot for slot in self._branches if slot not in keep]
        for slot in sorted(free, key=lambda slot: not slot.startswith(STRANGER)):
            strangers = sum(other.startswith(STRANGER) for other in self._branches)
            size = sum(branch.size_bytes for other, branch in self._branches.items() if other not in keep)
            crowded = slot.startswith(STRANGER) and strangers > STRANGERS_BRANCHES
            if crowded or len(self._branches) > HELD_BRANCHES or size > HELD_BYTES:
                del self._branches[slot]
                await self._offload(self._replica.store.branches.drop, slot)
