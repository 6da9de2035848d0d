"""Bringing the result of a record to disk: the chunks that our exchange has, and the others from peers that have them.

A certified record's result is fetched until it is here.  One that is only put to the vote is audited first, and given up
when another takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kernels.layout import payload_bytes
from protocol.audit.auditor import Auditor
from protocol.audit.evidence import TwoStatements
from protocol.consensus.effects import ObtainResult
from protocol.consensus.events import ResultObtained
from protocol.consensus.validation import plan_of
from protocol.exchange.assignment import plan_hash
from protocol.node.exchanges import Exchanges
from protocol.offload import Offload
from protocol.state.replica import Replica
from protocol.state.results import ResultFile
from protocol.sync.catch_up import CatchUp
from protocol.wire.hashes import Hash
from protocol.wire.messages import ChunkEntry, Record

RETRY_S = 0.5


@dataclass
class _Motion:
    """The result of what was put to the vote last, on its way."""

    root: bytes
    scope: trio.CancelScope
    ended: trio.Event


class ResultObtainer:
    """For one round.  `exchanges` are those of the round."""

    def __init__(
        self, replica: Replica, offload: Offload, catch_up: CatchUp, auditor: Auditor, exchanges: Exchanges
    ) -> None:
        self._replica, self._offload = replica, offload
        self._catch_up, self._auditor, self._exchanges = catch_up, auditor, exchanges
        self._certified: dict[bytes, None] = {}
        self._motion: _Motion | None = None

    async def obtain(self, effect: ObtainResult) -> ResultObtained | None:
        """Return when it is on disk; None when it is asked for twice, or another motion took its place.

        Raises `Unaccountable` when the record is not to be voted for, `StoreFull`.
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
        """Proof against members that signed two averages of one chunk: one for us, and another one in this record."""
        if effect.provenance is None:
            return []
        exchange = self._exchanges.of(plan_hash(plan_of(effect.record, effect.provenance)))
        return await self._auditor.contradictions(effect.record, effect.index, effect.provenance, exchange)

    async def _obtain_certified(self, effect: ObtainResult, root: Hash) -> ResultObtained | None:
        """What is under way for the same result is waited for, and for another one given up."""
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
        if await self._offload(self._replica.result, record.round, record.fragment, root, effect.index) is None:
            await self._assemble(effect, root)
        return ResultObtained(root)

    async def _begin(self, record: Record, index: Sequence[ChunkEntry]) -> tuple[ResultFile, list[int]]:
        """A file for the result, and the chunks that it lacks.

        Only a record that has nothing but our exchange's chunks gets that exchange's file: what else is put to the vote may
        be held by nobody, and then we should have lost what the next record is made of.
        """
        replica, running = self._replica, self._exchanges.newest
        held = running.exchange.result if running is not None and not running.taken else None
        missing = running.exchange.machine.adopt(index) if running is not None and held is not None else [*range(len(index))]
        if running is not None and held is not None and not missing:
            running.taken = True
            return running.file, running.exchange.adopt(index)
        begin = replica.store.results.begin
        file = await self._offload(begin, record.round, record.fragment, payload_bytes(replica.layout))
        if held is not None:
            spans = [replica.layout[chunk].encoded for chunk in range(len(index)) if chunk not in missing]
            await self._offload(_copy, held, file.view, spans)
        return file, missing

    async def _assemble(self, effect: ObtainResult, root: Hash) -> None:
        """Our exchange's chunks where they are the same, the others fetched, and looked at if it is not certified."""
        record, index = effect.record, effect.index
        file, missing = await self._begin(record, index)
        try:
            while missing:
                if await self._catch_up.supplies.fetch_chunks(record, index, missing, file.view, effect.sources):
                    break
                await trio.sleep(RETRY_S)
            if effect.provenance is not None:
                await self._auditor.inspect(record, index, effect.provenance, missing, file.view)
            await self._offload(file.commit, root)
        finally:
            file.discard()


def _copy(held: memoryview, into: memoryview, spans: Sequence[slice]) -> None:
    for span in spans:
        into[span] = held[span]
