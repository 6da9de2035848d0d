"""The pending accusations: their admission, their order and their cost.

An accusation is a rumour that costs its author nothing and us a download.  So:

* An accuser has one accusation pending, and accusers of one proof are one case.  The proof is fetched once, from one of them
  at a time, members of the chain first.
* Members and strangers have places of their own, and all strangers together have a budget of bytes.
* A fetch has a deadline.  An accuser that misses it gives up its place, and is not asked again for a while, longer each
  time.
* A peer that accuses falsely is not believed again.

Pure but for trio's clock and waiting.  `protocol.audit.ejection` judges the proofs.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import trio

from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation

MEMBER_PLACES, MEMBER_BYTES = 4, 64 << 20
STRANGER_PLACES, STRANGER_BYTES = 2, 16 << 20
"""Proofs fetched at a time, and their bytes together; a stranger's proof that is larger is not fetched."""
STRANGERS_BYTES_PER_S = 64 << 10
"""Bytes a second for the proofs of all strangers together in the long run, after a burst of `STRANGER_BYTES`."""
MAX_PENDING = 64
"""Strangers that wait; others are heard again later.  Members need no limit, as they are few."""
FETCH_S = 15.0
SLOWEST_BYTES_PER_S = 512 << 10
"""Rate of the slowest fetch: a proof may take `FETCH_S`, plus its size at this rate."""
SET_BACK_S = 30.0
MAX_SET_BACK_S = 3600.0
MAX_REMEMBERED = 4096
"""Accusers remembered as slow, or as liars; the longest known makes room."""

T = TypeVar("T")


def deadline_s(size: int) -> float:
    """Return the seconds that the fetching of a proof of `size` bytes may take."""
    return FETCH_S + size / SLOWEST_BYTES_PER_S


class AccusationOutcome(Enum):
    """Outcome of hearing an accusation."""

    UNWANTED = "unwanted"
    JOINED = "joined"
    """Another accuser joined a case that is being examined."""
    NEW = "new"
    """The case is new, and to be examined."""


@dataclass
class FetchLane:
    """Room for a number of fetches and bytes at a time; first come, first served."""

    places: int
    bytes: int
    _freed: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        while self.places < 1 or self.bytes < size:
            await self._freed.wait()
        self.places, self.bytes = self.places - 1, self.bytes - size
        try:
            yield
        finally:
            self.places, self.bytes = self.places + 1, self.bytes + size
            self._freed.set()
            self._freed = trio.Event()


@dataclass
class Case:
    """One claim, and the accusers that make it.  asked: the accuser whose turn it is."""

    accusation: Accusation
    members: dict[PeerId, None] = field(default_factory=dict)
    strangers: dict[PeerId, None] = field(default_factory=dict)
    asked: PeerId | None = None
    _turn: trio.CancelScope | None = None

    def add(self, accuser: PeerId, is_member: bool) -> None:
        """Add an accuser.  A member takes the turn of a stranger."""
        (self.members if is_member else self.strangers)[accuser] = None
        if is_member and self.asked in self.strangers and self._turn is not None:
            self._turn.cancel()

    def drop(self, accuser: PeerId) -> None:
        """Remove an accuser that has failed."""
        self.members.pop(accuser, None)
        self.strangers.pop(accuser, None)

    @contextmanager
    def turn(self) -> Iterator[tuple[PeerId, bool] | None]:
        """Yield the next accuser, and True if it is a member; yield None if none is left.

        Within the context, a member that joins the case ends a stranger's turn.
        """
        self.asked = next(iter([*self.members, *self.strangers]), None)
        with trio.CancelScope() as self._turn:
            yield (self.asked, self.asked in self.members) if self.asked is not None else None
        self.asked = self._turn = None


class Accusations:
    """Register of the pending cases, and memory of slow or lying accusers."""

    def __init__(self) -> None:
        self._cases: dict[Accusation, Case] = {}
        self._of: dict[PeerId, Accusation] = {}
        self._lanes = {True: FetchLane(MEMBER_PLACES, MEMBER_BYTES), False: FetchLane(STRANGER_PLACES, STRANGER_BYTES)}
        self._budget, self._budget_at = float(STRANGER_BYTES), -math.inf
        self._disbelieved: dict[PeerId, None] = {}
        self._set_back: dict[PeerId, tuple[float, float]] = {}

    def hear(self, accuser: PeerId, accusation: Accusation, *, is_member: bool) -> AccusationOutcome:
        """Take note of an accusation; if it is new, the caller examines its case."""
        if accuser in self._disbelieved or accuser in self._of:
            return AccusationOutcome.UNWANTED
        if trio.current_time() < self._set_back.get(accuser, (0.0, 0.0))[0]:
            return AccusationOutcome.UNWANTED
        case = self._cases.get(accusation)
        if not is_member and not self._admits_stranger(accusation.size, is_new=case is None):
            return AccusationOutcome.UNWANTED
        self._of[accuser] = accusation
        heard = AccusationOutcome.NEW if case is None else AccusationOutcome.JOINED
        case = case or Case(accusation)
        self._cases[accusation] = case
        case.add(accuser, is_member)
        return heard

    def _admits_stranger(self, size: int, *, is_new: bool) -> bool:
        pending = sum(len(case.strangers) for case in self._cases.values())
        if size > STRANGER_BYTES or pending >= MAX_PENDING:
            return False
        now = trio.current_time()
        refill = max(0.0, now - self._budget_at) * STRANGERS_BYTES_PER_S
        self._budget, self._budget_at = min(float(STRANGER_BYTES), self._budget + refill), now
        if is_new:
            if self._budget < size:
                return False
            self._budget -= size
        return True

    @contextmanager
    def open(self, accusation: Accusation) -> Iterator[Case]:
        """Yield the case of an accusation that was heard as new, and close it at the end."""
        case = self._cases[accusation]
        try:
            yield case
        finally:
            del self._cases[accusation]
            for accuser in [*case.members, *case.strangers]:
                self._of.pop(accuser, None)

    def room(self, size: int, *, is_member: bool) -> AbstractAsyncContextManager[None]:
        """Return a place to fetch in, as an asynchronous context."""
        return self._lanes[is_member].room(size)

    def failed(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser did not deliver: it is not asked for a while, twice as long as the last time."""
        self._release(case, accuser)
        _, patience = self._set_back.pop(accuser, (0.0, SET_BACK_S / 2))
        patience = min(2 * patience, MAX_SET_BACK_S)
        _remember(self._set_back, accuser, (trio.current_time() + patience, patience))

    def lied(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser delivered something that is no proof: it is not believed again."""
        self._release(case, accuser)
        _remember(self._disbelieved, accuser, None)

    def _release(self, case: Case, accuser: PeerId) -> None:
        case.drop(accuser)
        self._of.pop(accuser, None)


def _remember(memory: dict[PeerId, T], peer: PeerId, value: T) -> None:
    if len(memory) >= MAX_REMEMBERED:
        memory.pop(next(iter(memory)))
    memory[peer] = value
