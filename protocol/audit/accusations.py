"""Admission, order and limits of the pending accusations.

An accusation costs its author nothing, but costs us a download.  So:

* An accuser has at most one pending accusation, and all accusers with the same proof are one case.  The proof is fetched
  once, from one accuser at a time, members of the chain first.
* Members and strangers have separate places, and all strangers together have a budget of bytes.
* A fetch has a deadline.  An accuser that misses the deadline loses its place and is not asked again for a while, with
  exponential backoff.
* Further accusations of a peer that accused falsely are ignored.

Pure except for trio's clock and waiting.  `protocol.audit.ejection` judges the proofs.
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
"""Limits on the proofs fetched at a time, and on their total bytes; a larger proof from a stranger is not fetched."""
STRANGERS_BYTES_PER_S = 64 << 10
"""Long-term rate limit on the proofs of all strangers together, after a burst of `STRANGER_BYTES`."""
MAX_PENDING = 64
"""Limit on waiting strangers; further ones announce again later.  Members need no limit, because they are few."""
FETCH_S = 15.0
SLOWEST_BYTES_PER_S = 512 << 10
"""Slowest permitted rate: the fetch of a proof may take `FETCH_S` plus the time for its size at this rate."""
SET_BACK_S = 30.0
MAX_SET_BACK_S = 3600.0
MAX_REMEMBERED = 4096
"""Limit on the accusers remembered as slow, and on the remembered liars; the oldest entry is evicted."""

T = TypeVar("T")


def deadline_s(size: int) -> float:
    """Return the timeout (s) for fetching a proof of `size` bytes."""
    return FETCH_S + size / SLOWEST_BYTES_PER_S


class AccusationOutcome(Enum):
    """Outcome of hearing an accusation."""

    UNWANTED = "unwanted"
    JOINED = "joined"
    """The accuser joined a case that is already being examined."""
    NEW = "new"
    """The case is new, and must be examined."""


@dataclass
class FetchLane:
    """Limit on concurrent fetches, and on their bytes."""

    places: int
    bytes: int
    _freed: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it during the context."""
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
    """One accusation, and its accusers.  asked: the accuser from which we fetch now."""

    accusation: Accusation
    members: dict[PeerId, None] = field(default_factory=dict)
    strangers: dict[PeerId, None] = field(default_factory=dict)
    asked: PeerId | None = None
    _turn: trio.CancelScope | None = None

    def add(self, accuser: PeerId, is_member: bool) -> None:
        """Add an accuser; if it is a member, end the turn of a stranger."""
        (self.members if is_member else self.strangers)[accuser] = None
        if is_member and self.asked in self.strangers and self._turn is not None:
            self._turn.cancel()

    def drop(self, accuser: PeerId) -> None:
        """Remove an accuser that has failed."""
        self.members.pop(accuser, None)
        self.strangers.pop(accuser, None)

    @contextmanager
    def turn(self) -> Iterator[tuple[PeerId, bool] | None]:
        """Yield (next accuser, True if it is a member); yield None if no accuser is left.

        If a member joins the case during a stranger's turn, the context is cancelled.
        """
        self.asked = next(iter([*self.members, *self.strangers]), None)
        with trio.CancelScope() as self._turn:
            yield (self.asked, self.asked in self.members) if self.asked is not None else None
        self.asked = self._turn = None


class Accusations:
    """Register of the pending cases, and of slow or lying accusers."""

    def __init__(self) -> None:
        self._cases: dict[Accusation, Case] = {}
        self._of: dict[PeerId, Accusation] = {}
        self._lanes = {True: FetchLane(MEMBER_PLACES, MEMBER_BYTES), False: FetchLane(STRANGER_PLACES, STRANGER_BYTES)}
        self._budget, self._budget_at = float(STRANGER_BYTES), -math.inf
        self._disbelieved: dict[PeerId, None] = {}
        self._set_back: dict[PeerId, tuple[float, float]] = {}

    def hear(self, accuser: PeerId, accusation: Accusation, *, is_member: bool) -> AccusationOutcome:
        """Record an accusation; if the outcome is `NEW`, the caller must examine the case."""
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
        """Yield the case of an accusation for which `hear` returned `NEW`, and close the case at the end."""
        case = self._cases[accusation]
        try:
            yield case
        finally:
            del self._cases[accusation]
            for accuser in [*case.members, *case.strangers]:
                self._of.pop(accuser, None)

    def room(self, size: int, *, is_member: bool) -> AbstractAsyncContextManager[None]:
        """Return an asynchronous context that holds a place for a fetch."""
        return self._lanes[is_member].room(size)

    def failed(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser did not deliver: it is ignored for a while, twice as long as the last time."""
        self._release(case, accuser)
        _, patience = self._set_back.pop(accuser, (0.0, SET_BACK_S / 2))
        patience = min(2 * patience, MAX_SET_BACK_S)
        _remember(self._set_back, accuser, (trio.current_time() + patience, patience))

    def lied(self, case: Case, accuser: PeerId) -> None:
        """Note that an accuser delivered something that proves nothing: its accusations are ignored from now on."""
        self._release(case, accuser)
        _remember(self._disbelieved, accuser, None)

    def _release(self, case: Case, accuser: PeerId) -> None:
        case.drop(accuser)
        self._of.pop(accuser, None)


def _remember(memory: dict[PeerId, T], peer: PeerId, value: T) -> None:
    if len(memory) >= MAX_REMEMBERED:
        memory.pop(next(iter(memory)))
    memory[peer] = value
