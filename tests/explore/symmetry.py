"""States that differ only in who is who: one of each class is explored.

Honest electors may be exchanged where that changes no proposer from an honest one to a liar, in any ballot that is
explored; and the records may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

from protocol.wire.messages import Step
from tests.explore.council import NAMES, BallotKey, LockKey, RollKey, Seats, VoteKey
from tests.explore.electors import Elector, Electors, KeptKey

State = tuple[int, ...]
"""The numbers of the honest electors' states, in the order of their seats."""


class Exchange:
    """Seat s becomes seat `seats[s]`, record r becomes record `records[r]`."""

    def __init__(self, seats: Seats, records: Sequence[int]) -> None:
        self._seats, self._records = seats, records

    def absent(self, absent: Seats) -> Seats:
        return tuple(sorted(self._seats[seat] for seat in absent))

    def lock(self, lock: LockKey | None) -> LockKey | None:
        return None if lock is None else LockKey(lock.attempt, self.absent(lock.absent), self._records[lock.record])

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
                RollKey(roll.attempt, self.absent(roll.absent), self.lock(roll.lock), self.lock(roll.reduced))
                for roll in elector.rolls
            ),
            frozenset(
                VoteKey(Step(vote.step), vote.attempt, self.absent(vote.absent), self._records[vote.record])
                for vote in elector.votes
            ),
        )


class Symmetry:
    """Finds the one state that stands for all that are like it.

    leader: the seat of the proposer of a ballot.
    """

    def __init__(
        self, electors: Electors, honest: Seats, liars: Seats, attempts: int, leader: Callable[[BallotKey], int]
    ) -> None:
        self._electors = electors
        ballots = list(map(BallotKey._make, product(range(attempts), electors.absences)))
        self._exchanges: list[tuple[Exchange, tuple[int, ...]]] = []
        self._images: list[dict[int, int]] = []
        for order in permutations(honest):
            seats = list(range(len(honest) + len(liars)))
            for seat, becomes in zip(honest, order, strict=True):
                seats[seat] = becomes
            for records in permutations(range(len(NAMES))):
                exchange = Exchange(tuple(seats), records)
                images = {ballot: BallotKey(ballot.attempt, exchange.absent(ballot.absent)) for ballot in ballots}
                same = all(image in images for image in images.values())
                if same and all((leader(b) in liars) == (leader(image) in liars) for b, image in images.items()):
                    sources = tuple(order.index(seat) for seat in honest)
                    self._exchanges.append((exchange, sources))
                    self._images.append({})

    @property
    def size(self) -> int:
        """How many states are one, at most."""
        return len(self._exchanges)

    def canonical(self, state: State) -> State:
        """The least of all states like this one."""
        best: State | None = None
        for (exchange, sources), images in zip(self._exchanges, self._images, strict=True):
            try:
                image = tuple([images[state[source]] for source in sources])
            except KeyError:
                for number in state:
                    images[number] = self._electors.number(exchange.elector(self._electors.known[number]))
                image = tuple([images[state[source]] for source in sources])
            if best is None or image < best:
                best = image
        assert best is not None
        return best
