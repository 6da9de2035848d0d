"""Reliability of the sources of chunks: a peer's memory, for all its fetches, of sources that brought or withheld chunks.

Pure.  Keys are free, so a bad name is worth nothing: a stranger takes another key.  What counts is what a key has brought.

* **Rank.**  A peer ranks by the chunks that it has brought, up to `PROVEN`.  A peer of which we know nothing ranks 0, an
  active member `PROVEN`; in an open run, a key that was in one record is as free as others once it is no longer active.
* **Withholding.**  A peer that lets a chunk become overdue, or sends wrong bytes, loses half of its rank.  Once it has none
  left, each further case takes it further below strangers.  Each chunk that it brings, even a late one, counts as before: a
  peer that was slow once, or whose line was, makes up for it.
* **Bounds.**  `MAX_REMEMBERED` peers are remembered.  Peers that rank no higher than strangers are forgotten first, then the
  peer that has brought nothing for longest: keys that bring nothing never displace a peer that does.

So a chunk that a source of rank `PROVEN` has is delayed only by peers of that rank.  The delay costs them half of their
rank, and they must bring that many chunks, or `PROVEN` chunks with a fresh key, before they can cause the next delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from protocol.bounds import BoundedDict
from protocol.wire.identity import PeerId

P = TypeVar("P", bound=str)
PROVEN = 16
MAX_REMEMBERED = 1024


class Reliability:
    """Ranks of all sources.  is_active: tells active members from all others.

    A mirror has its address in place of a peer ID.
    """

    def __init__(self, is_active: Callable[[PeerId], bool] = lambda peer: False) -> None:
        self._is_active = is_active
        self._ranks = BoundedDict[str, int](MAX_REMEMBERED, lambda peer, rank: rank <= 0)
        """Ranks from `-PROVEN` to `PROVEN`; the peer whose rank was set last comes last."""

    def __len__(self) -> int:
        """Return the number of peers remembered."""
        return len(self._ranks)

    def rank(self, peer: str) -> int:
        """Return the rank of a peer, from `-PROVEN` to `PROVEN`."""
        rank = self._ranks.get(peer)
        if rank is None:
            return PROVEN if self._is_active(PeerId(peer)) else 0
        return rank

    def is_proven(self, peer: str) -> bool:
        """Return True if a peer ranks higher than a stranger of which we know nothing."""
        return self.rank(peer) > 0

    def in_order(self, peers: Iterable[P]) -> list[P]:
        """Return the peers, the most reliable first; equals stay in their order."""
        return sorted(peers, key=lambda peer: -self.rank(peer))

    def brought(self, peer: str) -> None:
        """Note that a peer has brought a chunk."""
        self._ranks.renew(peer, min(PROVEN, self.rank(peer) + 1))

    def withheld(self, peer: str) -> None:
        """Note that a peer has let us wait in vain for a chunk that it claims to have, or has sent wrong bytes."""
        rank = self.rank(peer)
        self._ranks.renew(peer, rank // 2 if rank > 0 else max(-PROVEN, rank - 1))
