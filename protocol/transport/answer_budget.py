"""The budget for answers: processor time and bytes, charged to the asking peer.

A question of some bytes may ask for megabytes, or for milliseconds of work.  So the asker is charged for the measured time
of the worker thread, for `QUESTION_S` of the event loop and the transport, and for the bytes of the answer.  A peer that has
used up its allowance is answered later, not refused; a question is dropped only if its asker does not wait so long.

Keys cost nothing, so all strangers share one allowance and one worker thread: one piece of their work runs at a time.  Turns
are shared by start-time fair queueing, so a newcomer is answered before peers that ask all the time.  A key that a record
names costs little more, so members that are not active share another such allowance.  An active peer has an allowance of its
own and never waits for others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from protocol.bounds import BoundedDict
from protocol.offload import Offload
from protocol.transport.interface import Members
from protocol.transport.limits import Allowance, TokenBucket
from protocol.wire.identity import PeerId

QUESTION_S = 0.001
"""Seconds of processor time that the event loop takes for any question: reading it, and sending a small answer."""
ONE_MEMBER = Allowance(0.25, 8e6, 8)
"""Seconds of processor time, and bytes, that the answers to one active peer may take a second."""
ALL_STRANGERS = Allowance(0.15, 4e6, 2)
"""The same limits for the answers to all strangers together, and for the answers to all other members together."""
MAX_TABS = 4096
"""Most peers of each kind remembered; the one charged least recently is forgotten first."""


@dataclass
class _Turn:
    """The turn of one peer's work in a crowd.  granted: set when it may begin.  over: set when it has ended."""

    granted: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)


class _Crowd:
    """Peers that share one allowance and one place; `run` grants them their turns."""

    def __init__(self) -> None:
        self.bucket = TokenBucket(ALL_STRANGERS)
        self.tags = BoundedDict[PeerId, float](MAX_TABS)
        """Tag of each peer's next turn: the seconds of the allowance used before it, in fair shares."""
        self._served = 0.0
        """Tag of the newest turn."""
        self.waiting: dict[PeerId, deque[_Turn]] = {}
        self._arrived = trio.Event()

    async def run(self) -> None:
        """Grant turns, one at a time and within the allowance, until cancelled."""
        while True:
            while not self.waiting:
                self._arrived = trio.Event()
                await self._arrived.wait()
            await trio.sleep(self.bucket.debt_s(trio.current_time()))
            if not self.waiting:
                continue  # the waiting peers have given up
            # among equal tags, a newcomer's comes first, because its own tag is the smallest
            peer = min(self.waiting, key=lambda peer: (self._tag(peer), self.tags.get(peer, 0.0)))
            self._served = self._tag(peer)
            turn = self.waiting[peer].popleft()
            if not self.waiting[peer]:
                del self.waiting[peer]
            turn.granted.set()
            await turn.over.wait()

    @asynccontextmanager
    async def turn(self, peer: PeerId) -> AsyncIterator[None]:
        """Wait for the peer's turn, and hold the only place."""
        turn = _Turn()
        self.waiting.setdefault(peer, deque()).append(turn)
        self._arrived.set()
        try:
            await turn.granted.wait()
            yield
        finally:
            turn.over.set()
            if not turn.granted.is_set():
                self.waiting[peer].remove(turn)
                if not self.waiting[peer]:
                    del self.waiting[peer]

    def charge(self, peer: PeerId, seconds: float, size: int) -> None:
        """Charge the peer for processor time and bytes."""
        self.bucket.charge(trio.current_time(), seconds, size)
        tag = self._tag(peer) + max(seconds / ALL_STRANGERS.per_s, size / ALL_STRANGERS.bytes_per_s)
        self.tags.renew(peer, tag)

    def _tag(self, peer: PeerId) -> float:
        """Return the tag of a peer's next turn; peers save up no turns while they ask nothing."""
        return max(self._served, self.tags.get(peer, 0.0))


class AnswerBudget:
    """The budget of one peer's answers; `run` grants turns.

    members: tells members from strangers.  has_allowance: tells active peers, which have an allowance of their own.
    """

    def __init__(self, members: Members, has_allowance: Callable[[PeerId], bool]) -> None:
        self._members, self._has_allowance = members, has_allowance
        self._active = BoundedDict[PeerId, TokenBucket](MAX_TABS)
        self._strangers, self._others = _Crowd(), _Crowd()

    async def run(self) -> None:
        """Grant strangers, and members that are not active, their turns, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._strangers.run)
            nursery.start_soon(self._others.run)

    @asynccontextmanager
    async def turn(self, peer: PeerId) -> AsyncIterator[None]:
        """Wait until the peer may take more of our time, and hold the only place of its crowd if it is not active.

        The caller sets a deadline.
        """
        if self._has_allowance(peer):
            await trio.sleep(self._of(peer).debt_s(trio.current_time()))
            yield
            return
        async with self._crowd(peer).turn(peer):
            yield

    async def admit(self, peer: PeerId) -> None:
        """Wait until a question of the peer may be answered, and charge `QUESTION_S` for it."""
        async with self.turn(peer):
            self.charge(peer, QUESTION_S)

    def charge(self, peer: PeerId, seconds: float, size: int = 0) -> None:
        """Charge the peer for processor time and bytes that an answer took."""
        if self._has_allowance(peer):
            self._of(peer).charge(trio.current_time(), seconds, size)
        else:
            self._crowd(peer).charge(peer, seconds, size)

    def payer(self, peer: PeerId) -> Account:
        """Return the account of a peer, for the worker threads of its answers."""
        return Account(self, peer)

    def _crowd(self, peer: PeerId) -> _Crowd:
        return self._others if self._members.has_member(peer) else self._strangers

    def _of(self, peer: PeerId) -> TokenBucket:
        """Return the allowance of an active peer; it begins empty, so that a fresh key has saved up nothing."""
        bucket = self._active.get(peer) or TokenBucket(ONE_MEMBER, empty_at=trio.current_time())
        self._active.renew(peer, bucket)
        return bucket


@dataclass(frozen=True)
class Account:
    """Implementation of `protocol.offload.Payer` for one peer."""

    budget: AnswerBudget
    peer: PeerId

    async def run(self, offload: Offload, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function as `Payer.run` describes."""
        spent: list[float] = []
        async with self.budget.turn(self.peer):
            try:
                return await offload(partial(_measured, spent, function, *arguments))
            finally:
                self.budget.charge(self.peer, sum(spent))


def _measured(spent: list[float], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and append the processor time (s) that it took in this thread."""
    began = time.thread_time()
    try:
        return function(*arguments)
    finally:
        spent.append(time.thread_time() - began)
