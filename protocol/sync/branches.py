"""Whom to follow, where electors differ about who is absent.

Pure.  A provisional record was made without some electors.  Whether it holds is decided by the electors of the tip that it
stands on, as they are heard now:

* who stands before it follows it if at least as many of them are on it as are off it, oneself counted where one stands;
* who is on it returns to the tip before it when more of them are off it;
* below four electors, where one more or less decides everything, a peer that was away (restarted, or asleep) follows any
  elector that was not, and those that were away make nobody return.

Whoever is on another branch of the same tip that loses to this one (`protocol.state.chain.prefer`) counts as on it: it will
come over.  So nobody returns from a branch that enough others are on their way to, and the moves of electors that hear each
other end.  Proof, for one tip T, from four electors on.  Suppose that moves go round in a circle, and let H be the best
branch that is left in it.  Better ones are not left, so nobody enters them either: H is left for T.  At that moment, of the
c electors that are on no better branch, more than c / 2 are at T.  The others are all that can count as on H or on a branch
that loses to it, so nobody at T follows any of these.  From then on nobody leaves T, and it was no circle.

Nobody is stuck: where two branches are heard, those on the one that loses go over; where one branch and T are, either those
at T follow, or those on the branch return.  And nobody waits for a branch: where one elector stands on the best branch and
serves nothing of it, the others end together without it.

So a frozen, partitioned or restarted peer finds its way without help, and from four electors on one elector, however many
keys it brings, moves nobody that hears the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from protocol.state.chain import Rank
from protocol.state.electorate import FEWEST_SEATED
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId


@dataclass(frozen=True)
class Side:
    """How a chain leaves ours, or another one that we know.  fork: the tip there.  first: of its records after that."""

    fork: Hash
    first: Rank


@dataclass(frozen=True)
class Standpoint:
    """Where an elector stands, as it says.  was_away: it was restarted or frozen, and has made no record since.

    side: how its chain left ours when it showed it last; None when it never did, or is on our chain now.
    """

    tip: bytes
    was_away: bool
    side: Side | None = None


@dataclass(frozen=True)
class Count:
    """Electors of one tip that are heard now.  on: those on the branch, or on their way to it; off: those on the tip itself.

    present_on, present_off: those of them that were not away.
    """

    on: int
    off: int
    present_on: int
    present_off: int


@dataclass(frozen=True)
class Candidate:
    """A branch that is judged.  fork: the tip before it.  tips: those after its records.

    first: the rank of its first record, which is provisional; may be None where no `Side` leaves `fork`.
    """

    fork: Hash
    tips: Collection[bytes]
    first: Rank | None

    def gains(self, at: Standpoint) -> bool:
        """Whether who stands there is on this branch, or on its way to it from one that loses to it."""
        if at.tip == self.fork:
            return False
        if at.tip in self.tips or at.side is None:
            return at.tip in self.tips
        fork, first = at.side.fork, at.side.first
        return fork in self.tips or first.record in self.tips or (fork == self.fork and self._wins(first))

    def _wins(self, other: Rank) -> bool:
        return self.first is not None and self.first < other


def count(electors: Collection[PeerId], heard: Mapping[PeerId, Standpoint], branch: Candidate) -> Count:
    """Count the electors by where they stand.

    Those elsewhere, who are behind, unknown, or on a branch that wins over this one, are not counted.
    """
    there = [heard[peer] for peer in electors if peer in heard]
    on = [each for each in there if branch.gains(each)]
    off = [each for each in there if each.tip == branch.fork]
    return Count(len(on), len(off), sum(not each.was_away for each in on), sum(not each.was_away for each in off))


def follows(electors: Sequence[PeerId], counted: Count, *, was_away: bool) -> bool:
    """Whether a peer that stands before a provisional record, or on no branch at all, takes it over.

    counted: with the peer itself, where it is an elector.  was_away: whether it was.
    """
    if len(electors) < FEWEST_SEATED and was_away and counted.present_on:
        return True
    return counted.on >= counted.off


def returns(electors: Sequence[PeerId], counted: Count) -> bool:
    """Whether a peer on a provisional record goes back to the tip before it.  counted: with the peer itself."""
    if len(electors) < FEWEST_SEATED:
        return counted.present_off > counted.on
    return counted.off > counted.on
