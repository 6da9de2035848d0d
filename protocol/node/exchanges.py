"""The exchanges of one round: one for each plan that was taken up."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from kernels.layout import payload_bytes
from protocol.agreement.events import ExchangeDone, ExchangeMoved
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.buffers import OwnParts
from protocol.allreduce.machine import ExchangeLimits, Observed
from protocol.allreduce.runner import ExchangeRunner
from protocol.chain.replica import Replica
from protocol.chain.results import ResultFile
from protocol.node.inbox import Inbox
from protocol.node.work import Work
from protocol.offload import Offload
from protocol.transport.interface import Landing, Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan

MAX_EXCHANGES = 6
"""Plans taken up in one round at most: each takes a result's room on disk, and a hostile proposer could make many."""
PLAN_WAIT_S = 1.0
"""Seconds that a chunk which arrives before its plan is held back."""


@dataclass
class RunningExchange:
    """An exchange and the file it writes to.

    plan: its hash.  taken: the file is being made into the result of some record.
    """

    plan: Hash
    exchange: ExchangeRunner
    file: ResultFile
    taken: bool = False

    async def outcome(self) -> ExchangeDone:
        """Wait until the exchange is complete, and return its result."""
        await self.exchange.done.wait()
        return ExchangeDone(self.plan, self.exchange.entries(), self.exchange.provenance())


class Exchanges:
    """The exchanges of one round, by plan.  inbox: the round's, which is told of progress."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, inbox: Inbox) -> None:
        self._session, self._replica, self._offload, self._inbox = session, replica, offload, inbox
        self._running: dict[Hash, RunningExchange] = {}
        self._begun = trio.Event()

    @property
    def any(self) -> bool:
        """True if a plan was taken up in this round."""
        return bool(self._running)

    @property
    def newest(self) -> RunningExchange | None:
        """The exchange that was begun last; None before the first."""
        return next(reversed(self._running.values()), None)

    def of(self, plan: Hash) -> ExchangeRunner | None:
        """Return the exchange of this plan, if it was taken up."""
        running = self._running.get(plan)
        return running.exchange if running else None

    async def find(self, plan: Hash) -> ExchangeRunner | None:
        """Return the exchange of this plan; wait a little for a plan that is on its way."""
        with trio.move_on_after(PLAN_WAIT_S):
            while plan not in self._running:
                await self._begun.wait()
        return self.of(plan)

    async def begin(self, plan: Plan, work: Work, limits: ExchangeLimits) -> RunningExchange | None:
        """Take up a plan with our contribution; the caller runs the exchange.

        Returns None if the plan was taken up before, or if too many plans were.  Raises `StoreFull`.
        """
        name, replica = plan_hash(plan), self._replica
        if name in self._running or len(self._running) >= MAX_EXCHANGES:
            return None
        assert work.data is not None, "a plan is taken up after READY"
        file = await self._offload(replica.store.results.make, payload_bytes(replica.layout))
        exchange = ExchangeRunner(
            session=self._session,
            plan=plan,
            own=OwnParts(work.data, work.leaves, replica.layout),
            result=file.view,
            limits=limits,
            offload=self._offload,
            rule=replica.manifest.aggregation,
        )
        running = self._running[name] = RunningExchange(name, exchange, file)
        self._begun.set()
        self._begun = trio.Event()
        return running

    async def finish_push(self, plan: Hash, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Finish a push that an exchange accepted and that is complete or broke off.  Raises `Offence`.

        Only a chunk that the newest exchange lacked is progress of the round: otherwise others could push for ever.
        """
        exchange = await self.find(plan)
        if exchange is not None and exchange.finish_push(peer, header, landing) and self.newest is self._running[plan]:
            self._inbox.note(ExchangeMoved())

    def refusing(self) -> list[PeerId]:
        """Return the members that refused a push of the newest exchange under way: they may not know its plan."""
        newest = self.newest
        return newest.exchange.refusing if newest is not None and not newest.exchange.done.is_set() else []

    def observed(self) -> Observed:
        """Return our observations of the lateness of others in this round."""
        return Observed.merge([running.exchange.machine.observed() for running in self._running.values()])

    def peer_dead(self, peer: PeerId) -> None:
        """Stop waiting for this peer."""
        for running in self._running.values():
            running.exchange.peer_dead(peer)

    def peer_alive(self, peer: PeerId) -> None:
        """Note that a lost peer is heard again."""
        for running in self._running.values():
            running.exchange.peer_alive(peer)

    def discard(self) -> None:
        """Discard the files that became no record's result: the round is over."""
        for running in self._running.values():
            running.file.discard()
