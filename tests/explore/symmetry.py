"""States that differ only in who is who: one of each class is explored.

Honest electors may be exchanged where that changes no proposer from an honest one to a liar, in any ballot that is
explored; and the records may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import NamedTuple

from protocol.wire.messages import Step
from tests.explore.council import NAMES, BallotKey, LockKey, Seats, ViewChangeKey, VoteKey
from tests.explore.electors import Elector, Electors, KeptKey

State = tuple[int, ...]
"""The numbers of the honest electors' states, in the order of their seats."""


class Past(NamedTuple):
    """What came of the votes that were cast: the locks that can be proven, and what was certified by all electors."""

    proven: frozenset[LockKey]
    certified: frozenset[VoteKey]


Name = tuple[State, int]
"""What all states of one class have in common: the least of them, and the number of their past."""


class Exchange:
    """Seat s becomes seat `seats[s]`, record r becomes record `records[r]`."""

    def __init__(self, seats: Seats, records: Sequence[int]) -> None:
        self._seats, self._records = seats, records

    def absent(self, absent: Seats) -> Seats:
        return tuple(sorted(self._seats[seat] for seat in absent))

    def lock(self, lock: LockKey | None) -> LockKey | None:
        return None if lock is None else LockKey(lock.attempt, self.absent(lock.absent), self._records[lock.record])

    def vote(self, vote: VoteKey) -> VoteKey:
        return VoteKey(Step(vote.step), vote.attempt, self.absent(vote.absent), self._records[vote.record])

    def elector(self, elector: Elector) -> Elector:
        kept = elector.kept
        return Elector(
            KeptKey(
                kept.attempt,
                self.absent(kept.absent),
                None if kept.first is None else self._records[kept.first],
                None if kept.second is None else self._records[kept.second],
                self.lock(kept.lock),
                self.lock(kept.reduced),
            ),
            frozenset(
                ViewChangeKey(
                    view_change.attempt,
                    self.absent(view_change.absent),
                    self.lock(view_change.lock),
                    self.lock(view_change.reduced),
                )
                for view_change in elector.view_changes
            ),
            frozenset(map(self.vote, elector.votes)),
        )

    def past(self, past: Past) -> Past:
        proven = (LockKey(lock.attempt, self.absent(lock.absent), self._records[lock.record]) for lock in past.proven)
        return Past(frozenset(proven), frozenset(map(self.vote, past.certified)))


class Symmetry:
    """Finds the one state that stands for all that are like it.

    leader: the seat of the proposer of a ballot.  trivial: nobody is exchanged.
    """

    def __init__(
        self,
        electors: Electors,
        honest: Seats,
        liars: Seats,
        attempts: int,
        leader: Callable[[BallotKey], int],
        *,
        trivial: bool,
    ) -> None:
        self._electors = electors
        ballots = list(map(BallotKey._make, product(range(attempts), electors.absences)))
        self._exchanges: list[tuple[Exchange, State, dict[int, int], dict[int, int]]] = []
        """Each with the places of the honest electors in its images, and the images of electors and pasts that are known."""
        self._presents: dict[int, int] = {}
        self._numbers: dict[Past | None, int] = {}
        self._pasts: list[Past | None] = []
        for order in permutations(honest):
            seats = list(range(len(honest) + len(liars)))
            for seat, becomes in zip(honest, order, strict=True):
                seats[seat] = becomes
            for records in permutations(range(len(NAMES))):
                exchange = Exchange(tuple(seats), records)
                images = {ballot: BallotKey(ballot.attempt, exchange.absent(ballot.absent)) for ballot in ballots}
                same = all(image in images for image in images.values())
                same = same and (not trivial or not self._exchanges)
                if same and all((leader(b) in liars) == (leader(image) in liars) for b, image in images.items()):
                    sources = tuple(order.index(seat) for seat in honest)
                    self._exchanges.append((exchange, sources, {}, {}))

    @property
    def size(self) -> int:
        """How many states are one, at most."""
        return len(self._exchanges)

    def name(self, state: State, past: Past | None = None) -> Name:
        """The name of all states like this one.

        past: what came of the attempts before the present one, where nothing else of them matters any more.
        """
        if past is not None:
            state = tuple([self._present(number) for number in state])
        number = self._number_of(past)
        return min(
            [
                (self._image(exchange, images, state, sources), self._image_of_past(exchange, pasts, number))
                for exchange, sources, images, pasts in self._exchanges
            ]
        )

    def _image(self, exchange: Exchange, images: dict[int, int], state: State, sources: State) -> State:
        try:
            return tuple([images[state[source]] for source in sources])
        except KeyError:
            for number in state:
                images[number] = self._electors.number(exchange.elector(self._electors.known[number]))
            return tuple([images[state[source]] for source in sources])

    def _present(self, number: int) -> int:
        """The state without what was said in earlier attempts."""
        if number not in self._presents:
            elector = self._electors.known[number]
            attempt = elector.kept.attempt
            view_changes = frozenset(view_change for view_change in elector.view_changes if view_change.attempt >= attempt)
            votes = frozenset(vote for vote in elector.votes if vote.attempt >= attempt)
            self._presents[number] = self._electors.number(Elector(elector.kept, view_changes, votes))
        return self._presents[number]

    def _number_of(self, past: Past | None) -> int:
        if past not in self._numbers:
            self._numbers[past] = len(self._pasts)
            self._pasts.append(past)
        return self._numbers[past]

    def _image_of_past(self, exchange: Exchange, images: dict[int, int], number: int) -> int:
        if number not in images:
            past = self._pasts[number]
            images[number] = self._number_of(exchange.past(past) if past is not None else None)
        return images[number]
