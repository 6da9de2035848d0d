"""Who stands at our door, and who has to go: the inbound connections of a peer.  Pure: told what happens and the time.

A connection knocks (it is TCP and nothing else), waits for its turn when it has said something, is a stranger while it
shakes hands and until its peer greets us, and then a guest.  Knocking and waiting cost us a socket; a handshake costs
milliseconds of a processor, so there is an allowance of them; strangers have few places and little time.

Places and turns are shared out by address: whoever comes in numbers waits for and displaces itself.  Among addresses that
are equal in this, one that a guest has been at goes first, so that no crowd of strangers keeps a member out.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from protocol.network.libp2p.conduct import Allowance, Bucket
from protocol.wire.identity import PeerId

MAX_REMEMBERED = 4096
"""Welcome peers, and addresses of guests; who has not greeted for longest is forgotten first, and has to greet again."""
LOOK_AGAIN_S = 0.05
"""While somebody waits for a place or a turn."""


@dataclass(frozen=True)
class Places:
    """How many connections there may be of each kind, and for how long."""

    line: int = 256
    """That knock or wait."""
    knocking_s: float = 5.0
    waiting_s: float = 15.0
    fresh_s: float = 6.0
    """Who has waited longer comes after all others: its maker will soon give up, and a turn would be wasted."""
    strangers: int = 256
    """About 50 KB of memory each."""
    strangers_per_address: int = 128
    greeting_s: float = 10.0
    """From the beginning of the handshake to the greeting.  Whoever wants to ping and identify can do it in this time."""
    staying_s: float = 4.0
    """A stranger is not closed to make room before this has passed since it came in, and since its handshake was complete:
    who means to greet has done it."""
    guests: int = 256
    per_peer: int = 4
    """Two peers that dial each other have two; more are left over from a line that broke."""
    handshakes: Allowance = Allowance(25, math.inf, 4)
    """About 7 ms of a processor each."""
    dear: float = 5.0
    """How many times as much of the allowance each takes while the computer is short of time for us."""


class Stage(Enum):
    KNOCKING = "knocking"
    WAITING = "waiting"
    STRANGER = "stranger"
    GUEST = "guest"


class Why(Enum):
    """Why a connection was closed."""

    SILENT = "did not greet in time"
    CROWDED = "there was no room"
    SURPLUS = "its peer has newer ones"


@dataclass
class Moves:
    """What is to be done now: whose handshake begins, whose connection is closed.  again_at: when to look again."""

    enter: list[int] = field(default_factory=list)
    leave: dict[int, Why] = field(default_factory=dict)
    again_at: float = math.inf


@dataclass
class _Visit:
    number: int
    address: str
    since: float
    """The beginning of its stage."""
    stays_from: float = 0.0
    stage: Stage = Stage.KNOCKING
    peer: PeerId | None = None


class Visitors:
    """Connections are named by numbers, which grow.  `on_closed` is told of each that is closed, with its address."""

    def __init__(self, places: Places, now: float,
                 on_closed: Callable[[str, Why], None] = lambda address, why: None) -> None:
        self._places, self._on_closed = places, on_closed
        self._visits: dict[int, _Visit] = {}
        self._welcome: OrderedDict[PeerId, None] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._handshakes = Bucket(places.handshakes.burst_s, 0, now)

    # -- what happens -------------------------------------------------------------------------------------------------

    def arrived(self, number: int, address: str, now: float) -> None:
        """A connection was accepted."""
        self._visits[number] = _Visit(number, address, now)

    def spoke(self, number: int, now: float) -> None:
        """The first byte of a connection is here."""
        visit = self._visits.get(number)
        if visit is not None and visit.stage is Stage.KNOCKING:
            visit.stage, visit.since = Stage.WAITING, now

    def proved(self, number: int, peer: PeerId, now: float) -> None:
        """The handshake of a connection is complete."""
        visit = self._visits.get(number)
        if visit is not None:
            visit.peer, visit.stays_from = peer, now
            if peer in self._welcome:
                self._receive(visit)

    def welcome(self, peer: PeerId) -> None:
        """A peer has greeted us well: whatever it opens is no stranger's."""
        self._welcome[peer] = None
        self._welcome.move_to_end(peer)
        if len(self._welcome) > MAX_REMEMBERED:
            self._welcome.popitem(last=False)
        for visit in self._visits.values():
            if visit.peer == peer:
                self._receive(visit)

    def unwelcome(self, peer: PeerId) -> None:
        """Its next connections are a stranger's again."""
        self._welcome.pop(peer, None)

    def is_welcome(self, peer: PeerId) -> bool:
        return peer in self._welcome

    def left(self, number: int) -> None:
        """A connection has ended, whoever ended it."""
        self._visits.pop(number, None)

    def count(self, *stages: Stage) -> int:
        return sum(1 for _ in self._at(*stages))

    # -- what is to be done -------------------------------------------------------------------------------------------

    def step(self, now: float, short: bool = False) -> Moves:
        """What is to be done by now.  Who is told to leave is forgotten here at once.

        short: this process does not get as much of the processor as it wants.
        """
        moves = Moves()
        self._close_overdue(now, moves)
        self._close_surplus(moves)
        self._shorten_line(moves)
        self._let_in(now, self._places.dear if short else 1.0, moves)
        moves.again_at = min(
            (now + LOOK_AGAIN_S if visit.stage is Stage.WAITING else self._due(visit) for visit in self._visits.values()),
            default=math.inf)
        return moves

    def _close_overdue(self, now: float, moves: Moves) -> None:
        for visit in list(self._visits.values()):
            if self._due(visit) <= now:
                self._close(visit, Why.CROWDED if visit.stage is Stage.WAITING else Why.SILENT, moves)

    def _due(self, visit: _Visit) -> float:
        places = self._places
        match visit.stage:
            case Stage.KNOCKING:
                return visit.since + places.knocking_s
            case Stage.WAITING:
                return visit.since + places.waiting_s
            case Stage.STRANGER:
                return visit.since + places.greeting_s
            case Stage.GUEST:
                return math.inf

    def _close_surplus(self, moves: Moves) -> None:
        """Of one peer, the oldest connections; of all guests, the newest from the address with the most."""
        peers = Counter(visit.peer for visit in self._visits.values() if visit.peer is not None)
        for visit in list(self._visits.values()):
            if visit.peer is not None and peers[visit.peer] > self._places.per_peer:
                peers[visit.peer] -= 1
                self._close(visit, Why.SURPLUS, moves)
        while len(guests := list(self._at(Stage.GUEST))) > self._places.guests:
            self._close(self._of_busiest(guests)[-1], Why.CROWDED, moves)

    def _shorten_line(self, moves: Moves) -> None:
        """Who has said nothing goes first, then the newest from the address with the most."""
        too_many = self.count(Stage.KNOCKING, Stage.WAITING) - self._places.line
        if too_many <= 0:
            return
        oldest_last: dict[str, list[_Visit]] = {}
        for visit in reversed(list(self._at(Stage.KNOCKING))):
            oldest_last.setdefault(visit.address, []).append(visit)
        newest_last: dict[str, list[_Visit]] = {}
        for visit in self._at(Stage.WAITING):
            newest_last.setdefault(visit.address, []).append(visit)
        for _ in range(too_many):
            line = oldest_last or newest_last
            address = max(line, key=lambda address: (len(line[address]), address not in self._trusted))
            self._close(line[address].pop(), Why.CROWDED, moves)
            if not line[address]:
                del line[address]

    def _let_in(self, now: float, price: float, moves: Moves) -> None:
        """Begin handshakes, as many as the allowance and the places give."""
        while self._handshakes.holds(self._places.handshakes, now, price):
            found = self._next(now)
            if found is None:
                return
            visit, in_the_way = found
            self._handshakes.take(self._places.handshakes, now, price, 0)
            if in_the_way is not None:
                self._close(in_the_way, Why.CROWDED, moves)
            visit.stage, visit.since, visit.stays_from = Stage.STRANGER, now, now
            moves.enter.append(visit.number)

    def _next(self, now: float) -> tuple[_Visit, _Visit | None] | None:
        """Who comes in next, and the stranger that has to go to make room; None when nobody can now."""
        places = self._places
        strangers = list(self._at(Stage.STRANGER))
        inside = Counter(stranger.address for stranger in strangers)
        old = [stranger for stranger in strangers if stranger.stays_from + places.staying_s <= now]
        for visit in self._line(inside, now):
            may_go = strangers if visit.address in self._trusted else old
            if inside[visit.address] >= places.strangers_per_address:
                may_go = [stranger for stranger in may_go if stranger.address == visit.address]
            elif len(strangers) < places.strangers:
                return visit, None
            if may_go:
                return visit, self._of_busiest(may_go)[0]
        return None

    def _line(self, inside: Counter[str], now: float) -> list[_Visit]:
        """The first of each address that waits, in the order in which they may try to come in."""
        first: dict[str, _Visit] = {}
        for visit in self._at(Stage.WAITING):
            if not self._is_fresh(first.get(visit.address), now):
                first[visit.address] = visit
        return sorted(first.values(), key=lambda visit: (inside[visit.address], visit.address not in self._trusted))

    def _is_fresh(self, visit: _Visit | None, now: float) -> bool:
        return visit is not None and visit.since + self._places.fresh_s > now

    # -- the books ----------------------------------------------------------------------------------------------------

    def _at(self, *stages: Stage) -> Iterator[_Visit]:
        """Oldest arrivals first."""
        return (visit for visit in self._visits.values() if visit.stage in stages)

    def _of_busiest(self, visits: list[_Visit]) -> list[_Visit]:
        """Those from the address that most of them are from, in their order."""
        counts = Counter(visit.address for visit in visits)
        busiest = max(counts, key=lambda address: (counts[address], address not in self._trusted))
        return [visit for visit in visits if visit.address == busiest]

    def _receive(self, visit: _Visit) -> None:
        visit.stage = Stage.GUEST
        self._trusted[visit.address] = None
        self._trusted.move_to_end(visit.address)
        if len(self._trusted) > MAX_REMEMBERED:
            self._trusted.popitem(last=False)

    def _close(self, visit: _Visit, why: Why, moves: Moves) -> None:
        del self._visits[visit.number]
        moves.leave[visit.number] = why
        self._on_closed(visit.address, why)

