"""Whom the owners of an exchange leave out of their averages: what gives nothing to anybody will give us nothing."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.wire.identity import PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import ChunkEntry


class Omissions:
    """Reads the masks of the averages that are here.  chunks: how many a contribution has."""

    def __init__(self, members: Sequence[PeerId], chunks: int) -> None:
        self._members, self._chunks = members, chunks
        self._without: dict[PeerId, dict[int, PeerId]] = {}
        """Who left out whom, in which chunk."""

    def note(self, signer: PeerId, chunk: int, entry: ChunkEntry) -> None:
        """The average of a chunk by this member, with a mask that is well formed."""
        taken = members_in(entry.mask, len(self._members))
        for index, peer in enumerate(self._members):
            if index not in taken:
                self._without.setdefault(peer, {}).setdefault(chunk, signer)

    def is_left_out(self, peer: PeerId) -> bool:
        """Whether others average more than half of the chunks without this member, and are more than one.

        Those of four or more electors that may lie own less than half (`protocol.consensus.planning`).  Members that are no
        electors may own more; what they can do to an owner by this is no more than to take its double time.
        """
        signers = [signer for signer in self._without.get(peer, {}).values() if signer != peer]
        return 2 * len(signers) > self._chunks and len(set(signers)) > 1
