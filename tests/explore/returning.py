"""Being away and coming back: peers went on alone, the others return, and all that are awake end on one branch.

Some electors made a provisional record X on the tip T without the others, others perhaps another one, Y.  Everybody awake
hears everybody awake.  One after the other, in any order, they do what the real rules say: an elector at T takes over a
branch (`follows`), one on a branch goes back to T (`returns`), one on the branch that loses goes over to the other
(`prefer`).  Where a quorum of all electors is awake at T, it can make a full record there, which everybody follows.
Every way in which the electors can stand is a beginning, so arriving late is not a step of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import NamedTuple

from protocol.state.chain import prefer
from protocol.state.electorate import quorum_size
from protocol.sync.branches import Count, Standpoint, count, follows, returns
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, Commit, Signature
from tests.explore.council import Council

LARGEST = 7
TIP = b"T"


class Branch(Enum):
    """Where an elector stands."""

    TIP = "T"
    X = "X"
    Y = "Y"


class Place(NamedTuple):
    """An elector that is awake: where it stands, and whether it was away and has made no record since."""

    branch: Branch
    was_away: bool


class Fork(NamedTuple):
    """electors: how many vote on T.  x, y: how many of them signed each provisional record; y is 0 when there is no Y."""

    electors: int
    x: int
    y: int


Stand = tuple[Place, ...]
"""How the electors that are awake stand, sorted.  The others are asleep."""


@dataclass(frozen=True)
class Returned:
    """stands: how many were looked at, over all forks.  flaws: those that do not end on one branch, in words."""

    stands: int
    flaws: list[str]


def explore_returns(smallest: int = 2, largest: int = LARGEST) -> Returned:
    """Every way of being away and coming back, for so many electors."""
    stands, flaws = 0, []
    for electors in range(smallest, largest + 1):
        for fork in _forks(electors):
            settled = _Settling(fork)
            for stand in _stands(fork):
                stands += 1
                flaw = settled.flaw(stand)
                if flaw is not None:
                    flaws.append(f"{electors} electors, X signed by {fork.x}, Y by {fork.y}: {read(stand)}: {flaw}")
    return Returned(stands, flaws)


def _forks(electors: int) -> Iterator[Fork]:
    """Provisional records are signed by less than a quorum of all, and no elector that keeps its word signs two."""
    for x in range(1, quorum_size(electors)):
        for y in range(min(x, electors - x, quorum_size(electors) - 1) + 1):
            yield Fork(electors, x, y)


def _stands(fork: Fork) -> Iterator[Stand]:
    """Every way in which some of the electors can be awake, with somebody on X, and nobody on a Y that does not exist."""
    branches = [branch for branch in Branch if fork.y or branch is not Branch.Y]
    places = [Place(branch, was_away) for branch in branches for was_away in (False, True)]
    for awake in range(1, fork.electors + 1):
        for stand in combinations_with_replacement(places, awake):
            if any(place.branch is Branch.X for place in stand):
                yield tuple(sorted(stand, key=_order))


def _order(place: Place) -> tuple[str, bool]:
    return place.branch.value, place.was_away


def read(stand: Stand) -> str:
    """How the electors stand, in words."""
    words = [f"{place.branch.value}{' (was away)' if place.was_away else ''}" for place in stand]
    return ", ".join(f"{words.count(word)} on {word}" for word in dict.fromkeys(words))


class _Settling:
    """Plays all orders from a stand.  A stand is settled when all are on one branch, or a quorum can decide on T."""

    def __init__(self, fork: Fork) -> None:
        self._electors = _peers()[: fork.electors]
        self._y_wins = _beats(fork.y, fork.x)
        self._verdicts: dict[Stand, str | None] = {}
        self._path: set[Stand] = set()

    def flaw(self, stand: Stand) -> str | None:
        """Why it does not end on one branch; None when it does, in every order."""
        if stand in self._path:
            return "they go round in circles"
        if stand not in self._verdicts:
            self._path.add(stand)
            self._verdicts[stand] = self._judge(stand)
            self._path.remove(stand)
        return self._verdicts[stand]

    def _judge(self, stand: Stand) -> str | None:
        on_tip = sum(place.branch is Branch.TIP for place in stand)
        if len({place.branch for place in stand}) == 1 or on_tip >= quorum_size(len(self._electors)):
            return None
        following = self._moves(stand)
        if not following:
            return f"stuck at {read(stand)}"
        return next((flaw for each in following if (flaw := self.flaw(each)) is not None), None)

    def _moves(self, stand: Stand) -> list[Stand]:
        heard = {
            peer: Standpoint(place.branch.value.encode(), place.was_away)
            for peer, place in zip(self._electors, stand, strict=False)
        }
        moves = []
        for number, place in enumerate(stand):
            for branch in self._targets(place, heard):
                rest = [*stand[:number], *stand[number + 1 :], place._replace(branch=branch)]
                moves.append(tuple(sorted(rest, key=_order)))
        return list(dict.fromkeys(moves))

    def _targets(self, place: Place, heard: dict[PeerId, Standpoint]) -> list[Branch]:
        there = {Branch(standpoint.tip.decode()) for standpoint in heard.values()}
        if place.branch is Branch.TIP:
            return [
                branch
                for branch in (Branch.X, Branch.Y)
                if branch in there and follows(self._electors, self._count(heard, branch), was_away=place.was_away)
            ]
        targets = [Branch.TIP] if returns(self._electors, self._count(heard, place.branch)) else []
        other = Branch.Y if place.branch is Branch.X else Branch.X
        wins = self._y_wins if other is Branch.Y else not self._y_wins
        return [*targets, other] if other in there and wins else targets

    def _count(self, heard: dict[PeerId, Standpoint], branch: Branch) -> Count:
        return count(self._electors, heard, {branch.value.encode()}, {Branch.TIP.value.encode()})


@lru_cache
def _peers() -> tuple[PeerId, ...]:
    return tuple(Identity.from_seed(bytes([number + 1]) * 32).peer_id for number in range(LARGEST + 1))


@lru_cache
def _beats(y: int, x: int) -> bool:
    """Whether the fork choice prefers Y, signed by so many, to X."""
    council, peers = Council(), _peers()

    def commit(record: int, signers: int) -> Commit:
        votes = [Signature(peer=peer, signature=bytes(64)) for peer in sorted(peers[:signers])]
        certificate = Certificate(attempt=0, absent=[peers[-1]], votes=votes)
        return Commit(record=council.records[record], index=council.indices[record], certificate=certificate)

    return y > 0 and prefer(peers[:-1], commit(0, x), commit(1, y))
