"""Whom to follow, where electors differ about who is absent.

Pure.  A provisional record was made without some electors.  Whether it holds is decided by the electors of the tip that it
stands on, as they are heard now:

* who stands before it follows it if at least as many of them are on it as are off it, oneself counted where one stands;
* who is on it returns to the tip before it when more of them are off it;
* below four electors, where one more or less decides everything, a peer that was away (restarted, or frozen) follows any
  elector that was not, and those that were away make nobody return.

So a frozen, partitioned or restarted peer finds its way without help, and from four electors on one elector, however many
keys it brings, moves nobody that hears the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from protocol.state.electorate import FEWEST_SEATED
from protocol.wire.identity import PeerId


@dataclass(frozen=True)
class Standpoint:
    """Where an elector stands, as it says.  was_away: it was restarted or frozen, and has made no record since."""

    tip: bytes
    was_away: bool


@dataclass(frozen=True)
class Count:
    """Electors of one tip that are heard now.  on: those on the branch; off: those on the tip itself, or on another branch.

    present_on, present_off: those of them that were not away.
    """

    on: int
    off: int
    present_on: int
    present_off: int


def count(
    electors: Collection[PeerId], heard: Mapping[PeerId, Standpoint], branch: Collection[bytes], others: Collection[bytes]
) -> Count:
    """Count the electors by where they stand.

    branch: the tips of the branch after the fork.  others: the tip of the fork, and all tips of other branches.  Electors
    elsewhere, who are behind or unknown, are not counted.
    """
    on = [heard[peer] for peer in electors if peer in heard and heard[peer].tip in branch]
    off = [heard[peer] for peer in electors if peer in heard and heard[peer].tip in others]
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
