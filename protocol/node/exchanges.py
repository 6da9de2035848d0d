"""The exchanges of one round, one for each accepted plan, and the results of the records that come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

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
from protocol.audit.evidence import TwoStatements
from protocol.chain.replica import Replica
from protocol.chain.results import ResultFile, ResultName
from protocol.disk import in_turn
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.node.contributor import Work
from protocol.offload import Offload
from protocol.sync.fetchers import StateFetcher
from protocol.transport.interface import Landing, Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Plan
from protocol.wire.presence import Phase

RETRY_S = 0.5
MAX_EXCHANGES = 6
"""Most plans accepted in one round: each needs a result's space on disk, and a hostile proposer could make many plans."""
PLAN_WAIT_S = 1.0
"""Seconds that a chunk waits for its plan if it arrives before the plan."""


@dataclass
class RunningExchange:
    """An exchange and its output file.

    plan: the hash of the plan.  taken: True once the file is becoming the result of a record.
    """

    plan: Hash
    exchange: ExchangeRunner
    file: ResultFile
    taken: bool = False

    def take(self) -> None:
        """Note that the file is becoming the result of a record."""
        self.taken = True

    async def outcome(self) -> ExchangeDone:
        """Wait until the exchange is complete, and return its result."""
        await self.exchange.done.wait()
        return ExchangeDone(self.plan, self.exchange.entries(), self.exchange.provenance())


class Exchanges:
    """The exchanges of one round, by plan.  on_progress: called when the newest exchange receives a missing chunk."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, on_progress: Callable[[], None]) -> None:
        self._session, self._replica, self._offload, self._on_progress = session, replica, offload, on_progress
        self._running: dict[Hash, RunningExchange] = {}
        self._begun = trio.Event()

    @property
    def any(self) -> bool:
        """True if a plan was accepted in this round."""
        return bool(self._running)

    @property
    def newest(self) -> RunningExchange | None:
        """The exchange that began last; None before the first exchange."""
        return next(reversed(self._running.values()), None)

    def names(self, peer: PeerId) -> bool:
        """Return True if a plan that was accepted in this round names `peer` as a member."""
        return any(peer in running.exchange.machine.members for running in self._running.values())

    def of(self, plan: Hash) -> ExchangeRunner | None:
        """Return the exchange of this plan; None if the plan was not accepted."""
        running = self._running.get(plan)
        return running.exchange if running else None

    async def find(self, plan: Hash) -> ExchangeRunner | None:
        """Return the exchange of this plan; wait up to `PLAN_WAIT_S` for a plan that is on its way."""
        with trio.move_on_after(PLAN_WAIT_S):
            while plan not in self._running:
                await self._begun.wait()
        return self.of(plan)

    async def begin(self, plan: Plan, work: Work, limits: ExchangeLimits) -> RunningExchange | None:
        """Accept a plan with our contribution; the caller runs the exchange.

        Returns None if the plan was accepted before, or if too many plans were accepted.  Raises `StoreFull`.
        """
        name, replica = plan_hash(plan), self._replica
        if name in self._running or len(self._running) >= MAX_EXCHANGES:
            return None
        assert work.data is not None, "a plan is accepted after READY"
        file = await self._offload(replica.store.results.make, replica.layouts.result.payload_bytes)
        exchange = ExchangeRunner(
            session=self._session,
            plan=plan,
            own=OwnParts(work.data, work.leaves, replica.layouts),
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
        """Finish an accepted push, which is complete or was interrupted.  Raises `Offence`.

        Only a chunk that the newest exchange lacked counts as progress of the round.  Otherwise peers could keep the round
        alive with useless pushes.
        """
        exchange = await self.find(plan)
        if exchange is not None and exchange.finish_push(peer, header, landing) and self.newest is self._running[plan]:
            self._on_progress()

    def refusing(self) -> list[PeerId]:
        """Return the members that refused a push of the newest exchange under way, because they may not know its plan."""
        newest = self.newest
        return newest.exchange.refusing if newest is not None and not newest.exchange.done.is_set() else []

    def observed(self) -> list[Observed]:
        """Return our observations of lateness in each exchange of this round."""
        return [running.exchange.machine.observed() for running in self._running.values()]

    def peer_dead(self, peer: PeerId) -> None:
        """Stop waiting for this peer, which has left or was ejected."""
        for running in self._running.values():
            running.exchange.peer_dead(peer)

    def peer_suspected(self, peer: PeerId) -> None:
        """Stop waiting for this peer until it is heard again."""
        for running in self._running.values():
            running.exchange.peer_suspected(peer)

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Note that a lost peer is alive again.  restarted: True if that is another process of it."""
        for running in self._running.values():
            running.exchange.peer_alive(peer, restarted=restarted)

    def close(self) -> None:
        """Discard the files that became no record's result, and forget all exchanges, because the round is over.

        A result's file lies on the disk, and its descriptor is open, until nothing refers to its mapping.
        """
        for running in self._running.values():
            running.file.discard()
        self._running.clear()


# ------------------------------------------------------------------------------------------------------------------------
# Peers that have the chunks of a record's result: the record's members and the peers that showed it.  After some failures,
# all other live peers are also asked, because the members may be gone, or may have only newer states.


FAILURES = 3
"""Number of failed fetches after which other peers are asked, and the user is told."""
MAX_OTHERS = 16
"""Most peers besides a record's members that are asked."""


class ResultSources:
    """Fetcher of missing chunks of results.

    It asks a record's members and the peers that showed the record, and after `FAILURES` failures also other live peers.
    activity: shows the reason for a wait.
    """

    def __init__(self, fetcher: StateFetcher, membership: Membership, activity: Activity) -> None:
        self._fetcher, self._membership, self._activity = fetcher, membership, activity

    async def fetch(self, effect: ObtainResult, missing: Sequence[int], into: memoryview) -> None:
        """Fetch the missing chunks of a result; try again until all are here, or until cancelled.

        A round that waits for the result of a certified record is left for the others' chain as soon as we have a state on
        it (`protocol.node.lifecycle.LivenessTicker`).
        """
        failures, sources = 0, effect.sources
        while not await self._fetcher.fetch_chunks(effect.record, effect.index, missing, into, sources):
            failures += 1
            if failures >= FAILURES:
                others = sorted(self._membership.live_peers(), key=self._membership.has_member, reverse=True)
                sources = tuple(dict.fromkeys([*effect.sources, *others[:MAX_OTHERS]]))
                self._show(effect, len(missing), failures)
            await trio.sleep(RETRY_S)

    def _show(self, effect: ObtainResult, missing: int, failures: int) -> None:
        names = ", ".join(self._membership.name(peer) for peer in effect.sources[:4])
        parts = f"{missing} part{'' if missing == 1 else 's'} of the result of round {effect.record.round}"
        asked = f"{names} and all other live peers" if names else "all live peers"
        tried = f"{failures} tries; asking {asked}"
        if effect.provenance is None:
            whose = "the others have agreed on" if names else "our own vote binds us to the record of"
            text = f"{whose} round {effect.record.round}; no peer sent us {parts} in {tried}"
            self._activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, text)
        else:
            text = f"cannot check the proposed record: no peer sent us {parts} in {tried}"
            self._activity.show(Phase.VOTING, WhyIdle.COMMITTING, text)


# ------------------------------------------------------------------------------------------------------------------------
# Writing the result of a record to disk: chunks come from our exchange, and missing chunks from peers that have them.
#
# A certified record's result is fetched until it is complete.  The result of a record proposal is audited first, and dropped
# when another proposal replaces it.


@dataclass
class _ResultTransfer:
    """The transfer of the result of the newest record proposal."""

    root: bytes
    scope: trio.CancelScope
    ended: trio.Event


class ResultObtainer:
    """Obtainer of results for one round.  exchanges: the exchanges of the round."""

    def __init__(
        self, replica: Replica, offload: Offload, sources: ResultSources, auditor: Auditor, exchanges: Exchanges
    ) -> None:
        self._replica, self._offload = replica, offload
        self._sources, self._auditor, self._exchanges = sources, auditor, exchanges
        self._certified: dict[bytes, None] = {}
        self._transfer: _ResultTransfer | None = None

    async def obtain(self, effect: ObtainResult) -> ResultObtained | None:
        """Write a result to disk; return None if it was requested before, or if another record proposal replaced it.

        Raises `Unaccountable` if we must not vote for the record, `StoreFull` if the disk is full.
        """
        root = Hash(effect.record.result_root)
        if effect.provenance is None:
            return await self._obtain_certified(effect, root)
        under_way, obtained = self._transfer, None
        if under_way is not None and under_way.root == root:
            return None
        if under_way is not None:
            under_way.scope.cancel()
        self._transfer = mine = _ResultTransfer(root, trio.CancelScope(), trio.Event())
        try:
            with mine.scope:
                await self._check(effect)
                obtained = await self._bring(effect, root)
        finally:
            mine.ended.set()
            if self._transfer is mine:
                self._transfer = None
        return obtained

    async def contradictions(self, effect: ObtainResult) -> list[TwoStatements]:
        """Return proof against members that signed two averages of one chunk: one sent to us, and another in this record."""
        if effect.provenance is None:
            return []
        exchange = self._exchanges.of(plan_hash(plan_of(effect.record, effect.provenance)))
        return await self._auditor.contradictions(effect.record, effect.index, effect.provenance, exchange)

    async def _obtain_certified(self, effect: ObtainResult, root: Hash) -> ResultObtained | None:
        """Write a certified result to disk; wait for a record proposal with the same result, and cancel any other one."""
        if root in self._certified:
            return None
        self._certified[root] = None
        under_way = self._transfer
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

        Only a record made entirely of our exchange's chunks gets that exchange's file.  It may be that no peer has another
        record's chunks; if that record took the file, we would lose the chunks for the next record.
        """
        replica, running = self._replica, self._exchanges.newest
        held = running.exchange.result if running is not None and not running.taken else None
        missing = running.exchange.machine.adopt(index) if running is not None and held is not None else [*range(len(index))]
        if running is not None and held is not None and not missing:
            running.take()
            return running.file, running.exchange.adopt(index)
        file = await self._offload(replica.store.results.make, replica.layouts.result.payload_bytes)
        if held is not None:
            spans = [replica.layouts.result[chunk].encoded for chunk in range(len(index)) if chunk not in missing]
            await self._offload(_copy, held, file.view, spans)
        return file, missing

    async def _assemble(self, effect: ObtainResult) -> None:
        """Build the result from our exchange's equal chunks and fetched chunks; audit the latter before certification."""
        record, index = effect.record, effect.index
        file, missing = await self._begin(index)
        try:
            if missing:
                await self._sources.fetch(effect, missing, file.view)
            if effect.provenance is not None:
                await self._auditor.inspect(record, index, effect.provenance, missing, file.view)
            await self._offload(file.commit, ResultName.of(record))
        finally:
            file.discard()


def _copy(held: memoryview, into: memoryview, spans: Sequence[slice]) -> None:
    for part, copy in zip(in_turn(held, spans), in_turn(into, spans), strict=True):
        copy[:] = part
