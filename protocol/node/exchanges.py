"""The exchanges of one round, one for each plan that was taken up, and the results of records that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from kernels.layout import payload_bytes
from protocol.agreement.ballot import plan_of
from protocol.agreement.events import (
    ExchangeDone,
    ObtainResult,
    ResultObtained,
)
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.buffers import OwnParts
from protocol.allreduce.lateness import ExchangeLimits, Observed
from protocol.allreduce.runner import ExchangeRunner
from protocol.audit.auditor import Auditor
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import Evidence, TwoStatements
from protocol.chain.replica import Replica
from protocol.chain.results import ResultFile, ResultName
from protocol.membership.liveness import Membership
from protocol.node.contributor import Work
from protocol.offload import Offload
from protocol.sync.supplies import StateFetcher
from protocol.transport.interface import Landing, Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan

RETRY_S = 0.5
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

    def take(self) -> None:
        """Note that the file is being made into the result of a record."""
        self.taken = True

    async def outcome(self) -> ExchangeDone:
        """Wait until the exchange is complete, and return its result."""
        await self.exchange.done.wait()
        return ExchangeDone(self.plan, self.exchange.entries(), self.exchange.provenance())


class Exchanges:
    """The exchanges of one round, by plan.  on_progress: called when the newest exchange gets a chunk that it lacked."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, on_progress: Callable[[], None]) -> None:
        self._session, self._replica, self._offload, self._on_progress = session, replica, offload, on_progress
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
            self._on_progress()

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


# ------------------------------------------------------------------------------------------------------------------------
# Bringing the result of a record to disk: the chunks that our exchange has, and the others from peers that have them.
#
# A certified record's result is fetched until it is here.  The result of a record that is only put to the vote is audited
# first, and given up when another takes its place.


@dataclass
class _Motion:
    """The result of the record last put to the vote, on its way."""

    root: bytes
    scope: trio.CancelScope
    ended: trio.Event


class ResultObtainer:
    """Fetches results for one round.  exchanges: the round's."""

    def __init__(
        self, replica: Replica, offload: Offload, supplies: StateFetcher, auditor: Auditor, exchanges: Exchanges
    ) -> None:
        self._replica, self._offload = replica, offload
        self._supplies, self._auditor, self._exchanges = supplies, auditor, exchanges
        self._certified: dict[bytes, None] = {}
        self._motion: _Motion | None = None

    async def obtain(self, effect: ObtainResult) -> ResultObtained | None:
        """Bring a result to disk; return None if it is asked for twice, or if another motion took its place.

        Raises `Unaccountable` if we must not vote for the record, `StoreFull` if the disk is full.
        """
        root = Hash(effect.record.result_root)
        if effect.provenance is None:
            return await self._obtain_certified(effect, root)
        under_way, obtained = self._motion, None
        if under_way is not None and under_way.root == root:
            return None
        if under_way is not None:
            under_way.scope.cancel()
        self._motion = mine = _Motion(root, trio.CancelScope(), trio.Event())
        try:
            with mine.scope:
                await self._check(effect)
                obtained = await self._bring(effect, root)
        finally:
            mine.ended.set()
            if self._motion is mine:
                self._motion = None
        return obtained

    async def contradictions(self, effect: ObtainResult) -> list[TwoStatements]:
        """Return proof against members that signed two averages of one chunk: one for us, and another one in this record."""
        if effect.provenance is None:
            return []
        exchange = self._exchanges.of(plan_hash(plan_of(effect.record, effect.provenance)))
        return await self._auditor.contradictions(effect.record, effect.index, effect.provenance, exchange)

    async def _obtain_certified(self, effect: ObtainResult, root: Hash) -> ResultObtained | None:
        """Bring a certified result to disk; wait for a motion under way with the same result, and give up another one."""
        if root in self._certified:
            return None
        self._certified[root] = None
        under_way = self._motion
        if under_way is not None and under_way.root == root:
            await under_way.ended.wait()
        elif under_way is not None:
            under_way.scope.cancel()
        return await self._bring(effect, root)

    async def _check(self, effect: ObtainResult) -> None:
        assert effect.provenance is not None
        exchange = self._exchanges.of(plan_hash(plan_of(effect.record, effect.provenance)))
        await self._auditor.check(
            effect.record, effect.index, effect.provenance, None if effect.again else effect.proposer, exchange
        )

    async def _bring(self, effect: ObtainResult, root: Hash) -> ResultObtained:
        record = effect.record
        if await self._offload(self._replica.result, record, effect.index) is None:
            await self._assemble(effect)
        return ResultObtained(root)

    async def _begin(self, index: Sequence[ChunkEntry]) -> tuple[ResultFile, list[int]]:
        """Return a file for the result, and the chunks that it lacks.

        Only a record made of our exchange's chunks alone gets that exchange's file.  Another record's chunks may be held by
        nobody, and we would then have lost the chunks that the next record is made of.
        """
        replica, running = self._replica, self._exchanges.newest
        held = running.exchange.result if running is not None and not running.taken else None
        missing = running.exchange.machine.adopt(index) if running is not None and held is not None else [*range(len(index))]
        if running is not None and held is not None and not missing:
            running.take()
            return running.file, running.exchange.adopt(index)
        file = await self._offload(replica.store.results.make, payload_bytes(replica.layout))
        if held is not None:
            spans = [replica.layout[chunk].encoded for chunk in range(len(index)) if chunk not in missing]
            await self._offload(_copy, held, file.view, spans)
        return file, missing

    async def _assemble(self, effect: ObtainResult) -> None:
        """Build the result from our exchange's equal chunks and fetched ones; inspect the latter if it is not certified."""
        record, index = effect.record, effect.index
        file, missing = await self._begin(index)
        try:
            while missing:
                if await self._supplies.fetch_chunks(record, index, missing, file.view, effect.sources):
                    break
                await trio.sleep(RETRY_S)
            if effect.provenance is not None:
                await self._auditor.inspect(record, index, effect.provenance, missing, file.view)
            await self._offload(file.commit, ResultName.of(record))
        finally:
            file.discard()


def _copy(held: memoryview, into: memoryview, spans: Sequence[slice]) -> None:
    for span in spans:
        into[span] = held[span]


class AuditedResults:
    """Results of records at one node: made by exchanges, fetched, and audited; liars are convicted."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        offload: Offload,
        membership: Membership,
        supplies: StateFetcher,
        ejections: Ejections,
    ) -> None:
        self._session, self._replica, self._offload, self._membership = session, replica, offload, membership
        self._supplies, self._ejections = supplies, ejections

    def exchanges(self, on_progress: Callable[[], None]) -> Exchanges:
        """Return the exchanges of a round that begins."""
        return Exchanges(self._session, self._replica, self._offload, on_progress)

    def obtainer(self, work: Work, exchanges: Exchanges) -> ResultObtainer:
        """Return the obtainer of results for a round that begins."""
        auditor = Auditor(self._session, self._replica, self._offload, self._membership, work)
        return ResultObtainer(self._replica, self._offload, self._supplies, auditor, exchanges)

    async def convict(self, evidence: Evidence) -> None:
        """Eject the peer that is proven to have lied."""
        await self._ejections.convict(evidence)

    async def judge_postponed(self) -> None:
        """Judge the evidence about tips that we did not know before."""
        await self._ejections.look_again()
