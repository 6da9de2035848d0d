"""Being away and coming back: peers went on alone, the others return, and all that are awake end on one branch.

Some electors made a provisional record X on the tip T without the others, others perhaps further ones, Y and Z.  Everybody
awake hears everybody awake.  One after the other, in any order, they do what the real rules say: an elector at T takes over
a branch (`follows`), one on a branch goes back to T (`returns`), or over to a branch that is preferred (`rank`).  Where a
quorum of all electors is awake at T, it can make a full record there, which everybody follows.  Every way in which the
electors can stand is a beginning, so arriving late is not a step of its own.

Where four or more vote, one of them may lie: it says that it stands somewhere, stays there, and serves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import NamedTuple

from protocol.chain.electorate import FEWEST_SEATED, quorum_size
from protocol.chain.records import Rank, rank
from protocol.sync.fork_choice import Candidate, PeerCount, Side, Standpoint, count, follows, returns
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, Commit, Signature
from tests.explore.council import Council

LARGEST = 13
ALL_FORKS = 7
"""Up to so many electors every number of signers is gone through; above, one choice: nothing but their order matters."""
TIP = 0
NAMES = "TXYZ"
"""Of the places where an elector can stand: the tip, and the branches."""
Branch = int
"""A place: `TIP`, or the number of a branch."""


class Place(NamedTuple):
    """An elector that is awake: where it stands, and whether it was away and has made no record since."""

    branch: Branch
    was_away: bool = False


class Fork(NamedTuple):
    """electors: how many vote on T.  signers: how many of them signed each provisional record, X first."""

    electors: int
    signers: tuple[int, ...]


Stand = tuple[Place, ...]
"""How the honest electors that are awake stand, sorted.  The others are asleep."""


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
            for liar in _liars(fork):
                settled = _Settling(fork, liar)
                for stand in _stands(fork, electors - (liar is not None)):
                    stands += 1
                    flaw = settled.flaw(stand)
                    if flaw is not None:
                        flaws.append(f"{electors} electors, {read_fork(fork, liar)}: {read(stand)}: {flaw}")
    return Returned(stands, flaws)


def _forks(electors: int) -> Iterator[Fork]:
    """Provisional records are signed by less than a quorum of all, and no elector that keeps its word signs two."""
    if electors > ALL_FORKS:
        yield Fork(electors, (3, 2, 2))
        return
    most = quorum_size(electors) - 1
    for number in range(1, min(electors, len(NAMES) - 1) + 1):
        for signers in combinations_with_replacement(range(most, 0, -1), number):
            if sum(signers) <= electors:
                yield Fork(electors, signers)


def _liars(fork: Fork) -> Iterator[Branch | None]:
    """Where the liar says that it stands; None where nobody lies."""
    yield None
    if fork.electors >= FEWEST_SEATED:
        yield from range(len(fork.signers) + 1)


def _stands(fork: Fork, honest: int) -> Iterator[Stand]:
    """Every way in which some of the electors can be awake, with somebody on a branch.

    From four electors on it does not matter who was away: it is gone through for two branches only.
    """
    is_away_told = fork.electors < FEWEST_SEATED or (fork.electors <= ALL_FORKS and len(fork.signers) < len(NAMES) - 1)
    branches = range(len(fork.signers) + 1)
    places = [Place(branch, away) for branch in branches for away in ((False, True) if is_away_told else (False,))]
    for awake in range(1, honest + 1):
        for stand in combinations_with_replacement(places, awake):
            if stand[-1].branch != TIP:
                yield stand


def read_fork(fork: Fork, liar: Branch | None) -> str:
    """The fork in words."""
    signed = ", ".join(f"{NAMES[branch]} signed by {number}" for branch, number in enumerate(fork.signers, 1))
    return signed + (f", a liar on {NAMES[liar]}" if liar is not None else "")


def read(stand: Stand) -> str:
    """How the electors stand, in words."""
    words = [f"{NAMES[place.branch]}{' (was away)' if place.was_away else ''}" for place in stand]
    return ", ".join(f"{words.count(word)} on {word}" for word in dict.fromkeys(words))


class _Settling:
    """Plays all orders from a stand.  A stand is settled when all are on one branch, or a quorum can decide on T."""

    def __init__(self, fork: Fork, liar: Branch | None) -> None:
        self._electors = _peers()[: fork.electors]
        self._liar = [] if liar is None else [Place(liar)]
        self._ranks = _ranks(fork.signers)
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
        on_tip = sum(place.branch == TIP for place in stand)
        if len({place.branch for place in stand}) == 1 or on_tip >= quorum_size(len(self._electors)):
            return None
        following = self._moves(stand)
        if not following:
            return f"stuck at {read(stand)}"
        return next((flaw for each in following if (flaw := self.flaw(each)) is not None), None)

    def _moves(self, stand: Stand) -> list[Stand]:
        heard = {
            peer: Standpoint(self._tip(place.branch), place.was_away, self._side(place.branch))
            for peer, place in zip(self._electors, (*stand, *self._liar), strict=False)
        }
        served = sorted({place.branch for place in stand} - {TIP})
        moves = dict[Stand, None]()
        for place in dict.fromkeys(stand):
            number = stand.index(place)
            for branch in self._targets(place, heard, served):
                rest = [*stand[:number], *stand[number + 1 :], place._replace(branch=branch)]
                moves[tuple(sorted(rest))] = None
        return list(moves)

    def _targets(self, place: Place, heard: dict[PeerId, Standpoint], served: list[Branch]) -> list[Branch]:
        if place.branch == TIP:
            counts = {branch: self._count(heard, branch) for branch in served}
            return [each for each, counted in counts.items() if follows(counted)]
        back = [TIP] if returns(self._count(heard, place.branch)) else []
        return back + [branch for branch in served if self._ranks[branch] < self._ranks[place.branch]]

    def _count(self, heard: dict[PeerId, Standpoint], branch: Branch) -> PeerCount:
        return count(
            dict.fromkeys(self._electors, 1), heard, Candidate(self._tip(TIP), {self._tip(branch)}, self._ranks[branch])
        )

    def _tip(self, branch: Branch) -> Hash:
        return self._ranks[branch].record

    def _side(self, branch: Branch) -> Side | None:
        return Side(self._tip(TIP), self._ranks[branch]) if branch != TIP else None


@lru_cache
def _peers() -> tuple[PeerId, ...]:
    return tuple(Identity.from_seed(bytes([number + 1]) * 32).peer_id for number in range(LARGEST + 1))


@lru_cache
def _ranks(signers: tuple[int, ...]) -> list[Rank]:
    """Of a provisional record with so many signers on each branch; in the place of the tip, one with its hash."""
    council, peers = Council(), _peers()
    ranks = [Rank(False, False, 0, Hash(council.base.tip))]
    for branch, number in enumerate(signers, 1):
        votes = [Signature(peer=peer, signature=bytes(64)) for peer in sorted(peers[:number])]
        record = council.records[0].model_copy(update={"result_root": bytes([branch]) * 32})
        certificate = Certificate(attempt=0, absent=[peers[-1]], votes=votes)
        ranks.append(rank(peers[:-1], Commit(record=record, index=council.indices[0], certificate=certificate)))
    return ranks
