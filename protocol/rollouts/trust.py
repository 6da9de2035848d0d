"""Trust in rollout peers and validators: the frequency of checks for each peer, and the peers that are set aside.

The module is pure.  Keys are free, so a stranger's statement proves nothing: at first we check everything, and so we do
after a restart.  Each passed check makes the next check less likely, down to a chance of `RARELY`; after one anomaly we
check everything again.  We set a peer aside if our own check proves it wrong: a validator for a false verdict, a rollout
peer for a rollout that no honest peer makes.

The rejections of other peers count as well, once so many electors have reproduced them that at least one elector is honest.

A rollout peer may deviate within all tolerances in each of its batches.  So the measurements of all our checks of a peer add
up in the wealth of a betting test (`protocol.rollouts.betting`), and its alarm sets the peer aside.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from protocol.bounds import BoundedDict
from protocol.chain.electorate import tolerated
from protocol.formats.bets import Growth
from protocol.rollouts.batch import BytesLocation, Decision, PooledBatch
from protocol.rollouts.betting import SUSPICIOUS, Wealth
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

RARELY = 0.1
FADES = 0.9
"""Factor of the chance of a check for each passed check; 22 passed checks lead to `RARELY`."""
FEWEST_ACCUSERS = 2
MOST_ACCUSERS = 64
MAX_KNOWN = 2048
"""Most peers remembered, of which at most half are set aside: keys that lie are free, but a clean history is not."""


@dataclass
class _KnownPeer:
    clean: int = 0
    aside: str = ""
    accusers: set[PeerId] = field(default_factory=set)
    """Peers that rejected a batch of this peer that an elector also rejected."""
    electors: set[PeerId] = field(default_factory=set)
    """Electors that rejected a batch of this peer that another peer also rejected."""
    wealth: Wealth = Wealth()


class TrustScores:
    """Trust that one peer has in all rollout peers and validators."""

    def __init__(self) -> None:
        self._known: OrderedDict[PeerId, _KnownPeer] = OrderedDict()

    def chance(self, peer: PeerId) -> float:
        """Return the chance of a check of a peer's statement or batch."""
        known = self._known.get(peer)
        if known is not None and known.wealth.log >= log(SUSPICIOUS):
            return 1.0
        return max(RARELY, FADES ** self.clean(peer))

    def clean(self, peer: PeerId) -> int:
        """Return the number of passed checks in a row."""
        known = self._known.get(peer)
        return known.clean if known is not None else 0

    def aside(self, peer: PeerId) -> str:
        """Return the reason why this peer is set aside; empty if it is not."""
        known = self._known.get(peer)
        return known.aside if known is not None else ""

    def right(self, peer: PeerId) -> None:
        """Note that a peer passed one of our checks."""
        self._of(peer).clean += 1

    def anomaly(self, peer: PeerId) -> None:
        """Note an anomaly.  It proves nothing, but we check everything of this peer again."""
        self._of(peer).clean = 0

    def set_aside(self, peer: PeerId, reason: str) -> bool:
        """Set a peer aside that is proven wrong; return False if it was set aside before."""
        known = self._of(peer)
        known.clean = 0
        if known.aside:
            return False
        known.aside = reason
        return True

    def bet(self, peer: PeerId, growth: Growth) -> str:
        """Add the measurements of our check of a peer's batch; return the reason of an alarm, or an empty string."""
        known = self._of(peer)
        known.wealth = known.wealth.after(growth)
        return known.wealth.reason

    @property
    def wealth(self) -> dict[PeerId, Wealth]:
        """Wealth of the betting test against each peer of which we have checked a batch."""
        return {peer: known.wealth for peer, known in self._known.items() if known.wealth.checks}

    def recall(self, wealth: Mapping[PeerId, Wealth]) -> None:
        """Take over the wealth from before a restart; a peer beyond the alarm is set aside again after its next check."""
        for peer, each in wealth.items():
            self._of(peer).wealth = each

    def reproduced(self, author: PeerId, rejecting: Collection[PeerId], electors: frozenset[PeerId]) -> bool:
        """Note that several peers rejected a batch of `author`; return True if `author` must be set aside.

        This needs two accusers, and more electors than can all be liars.  electors: the electors at the tip.
        """
        judges = electors.intersection(rejecting)
        if not judges:
            return False
        known = self._of(author)
        accusers = [peer for peer in rejecting if judges != {peer}]  # an elector does not reproduce its own rejection
        known.accusers.update(accusers[: MOST_ACCUSERS - len(known.accusers)])  # two accusers are enough, and keys are free
        known.electors = known.electors & electors | judges
        enough = max(FEWEST_ACCUSERS, tolerated(len(electors)) + 1)
        return len(known.accusers) >= FEWEST_ACCUSERS and len(known.electors) >= enough

    def _of(self, peer: PeerId) -> _KnownPeer:
        known = self._known.setdefault(peer, _KnownPeer())
        self._known.move_to_end(peer)
        if len(self._known) > MAX_KNOWN:
            del self._known[self._least(peer)]
        return known

    def _least(self, newest: PeerId) -> PeerId:
        """Return the peer to forget in favour of the newest.

        If more than half of the peers are set aside, it is the first of these.  Otherwise it is the peer with the shortest
        clean history among the peers that are not set aside, and without evidence if there are any: keys are free, and
        must not push evidence out.
        """
        aside = [peer for peer, known in self._known.items() if known.aside]
        if len(aside) > MAX_KNOWN // 2:
            return aside[0]
        others = [peer for peer, known in self._known.items() if not known.aside and peer != newest]
        return min(others, key=lambda peer: (self._known[peer].wealth.log > 0, self._known[peer].clean))


# ------------------------------------------------------------------------------------------------------------------------
# Limits on the places, bytes and checks for batches, for all strangers together and for each peer.
#
# This part is pure.  A peer with a clean history comes before other peers.  Among equals, the peer that has used less comes
# first.


MOST_BATCHES = 4096
MOST_OF_ONE = 256
"""Most known batches of one peer."""
MOST_BYTES = 1 << 30
MOST_BYTES_OF_ONE = MOST_BYTES // 4
"""Most bytes of one peer's batches on disk or on their way; `MOST_BYTES` is the limit for all peers."""
PLACES = 4
"""Most batches fetched at a time, for peers with a clean history and for other peers each."""
WITHHELD_COSTS = 8
"""Number of fetches that a withheld batch counts as: its maker waits until other makers have used this many."""
PEERS_REMEMBERED = 4096


class PoolLimits:
    """Limits for the batches of one pool.

    enough: most batches fetched ahead of their check, for peers with a clean history and for other peers each.
    """

    def __init__(self, trust: TrustScores, enough: int) -> None:
        self._trust, self._enough = trust, enough
        self._used = BoundedDict[PeerId, int](PEERS_REMEMBERED)
        """Fetches and checks of each maker's batches."""
        self._most_held: tuple[bool, int] | None = None
        """Last rank in the table while all places are taken.  No batch ranks behind it, because the last rank only falls
        until a place is free again."""

    def make(self, newcomer: PooledBatch, others: Collection[PooledBatch]) -> PooledBatch | None:
        """Return the batch to evict for `newcomer`: `newcomer` itself if it gets no place, None if a place is free.

        Every batch that was not accepted may be evicted: otherwise keys that are set aside could fill the table.  No batch
        is evicted for one of equal rank: otherwise each batch of a flood would cost a search of the table, and be
        forwarded.
        """
        author = newcomer.author
        own = 1 + sum(batch.author == author for batch in others)
        if own > MOST_OF_ONE:
            return newcomer
        if len(others) < MOST_BATCHES:
            self._most_held = None
            return None
        rank = (not self._trust.clean(author), own)
        if self._most_held is not None and rank >= self._most_held:
            return newcomer
        held = Counter(batch.author for batch in others)
        ranks = {each: (not self._trust.clean(each), held[each]) for each in held}
        going = [batch for batch in others if batch.decision is not Decision.ACCEPTED]
        last = max(going, key=lambda batch: ranks[batch.author], default=newcomer)
        self._most_held = ranks.get(last.author, rank)
        return last if self._most_held > rank else newcomer

    def next_fetch(
        self, lacking: Iterable[PooledBatch], others: Iterable[PooledBatch], counts: Callable[[PooledBatch], bool]
    ) -> PooledBatch | None:
        """Return the batch in `lacking` to fetch now; None if there is no free place or no space.

        others: all batches.  counts: returns True if an undecided batch waits for a verdict that will come.  Peers with a
        clean history have places and space of their own.  They come first, because a stranger may have stated the same bytes
        with a false size.  Among equals, the peer that has used least comes first.
        """
        held: Counter[PeerId] = Counter()
        coming: set[Hash] = set()
        places, ahead, in_all = [PLACES, PLACES], [self._enough, self._enough], [MOST_BYTES // 2, MOST_BYTES // 2]
        for other in others:
            if other.bytes_ not in (BytesLocation.COMING, BytesLocation.HERE):
                continue
            known = self._is_known(other)
            held[other.author] += other.body.size
            in_all[known] -= other.body.size
            ahead[known] -= other.decision is None and other.own is None and counts(other)
            if other.bytes_ is BytesLocation.COMING:
                coming.add(other.root)
                places[known] -= 1
        fitting = [
            batch
            for batch in lacking
            if min(places[known := self._is_known(batch)], ahead[known]) > 0
            and batch.root not in coming
            and batch.body.size <= min(in_all[known], MOST_BYTES_OF_ONE - held[batch.author])
        ]
        if not fitting:
            return None
        used = self._used
        first = min(fitting, key=lambda each: (not self._is_known(each), used.get(each.author, 0), each.body.version))
        self.charge(first.author)
        return first

    def charge(self, author: PeerId, times: int = 1) -> None:
        """Note that we have fetched or checked a batch of this peer, or something that costs as much as so many fetches."""
        self._used.renew(author, self._used.get(author, 0) + times)

    def _is_known(self, batch: PooledBatch) -> bool:
        return bool(self._trust.clean(batch.author))

    def first(self, waiting: Sequence[PooledBatch], *, strangers_first: bool) -> PooledBatch:
        """Return the batch to check first.

        Makers without a clean history come first if `strangers_first`, and last otherwise.  Among these, the maker that has
        used least comes first, and among its batches the oldest version.
        """
        return min(
            waiting,
            key=lambda batch: (
                self._is_known(batch) is strangers_first,
                self._used.get(batch.author, 0),
                batch.body.version,
            ),
        )
