"""Bringing the result of a record to disk: what our exchange has of it, the rest from those who hold it.

A certified record's result is fetched until it is here.  One that is only put to the vote is audited first, and given up
when another takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from kernels.layout import payload_bytes
from protocol.audit.auditor import Auditor, Unaccountable
from protocol.consensus.effects import ObtainResult
from protocol.consensus.validation import plan_of
from protocol.events import Notice
from protocol.exchange.assignment import plan_hash
from protocol.exchange.runner import ExchangeRunner
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.replica import Replica
from protocol.state.store import ResultFile
from protocol.sync.catch_up import CatchUp
from protocol.wire.hashes import Hash

RETRY_S = 0.5


@dataclass
class RunningExchange:
    """An exchange and the file it writes to.  taken: the file is being made into the result of some record."""

    exchange: ExchangeRunner
    file: ResultFile
    taken: bool = False


@dataclass
class _Motion:
    """The result of what was put to the vote last, on its way."""

    root: bytes
    scope: trio.CancelScope
    ended: trio.Event


class Holding:
    """For one round.  `exchanges` are those of the round, by plan.

    on_held, on_refused: told the root of what is on disk, and of what is not to be voted for.
    """

    def __init__(self, session: Session, replica: Replica, offload: Offload, catch_up: CatchUp, auditor: Auditor,
                 exchanges: dict[Hash, RunningExchange], on_held: Callable[[Hash], None],
                 on_refused: Callable[[Hash], None]) -> None:
        self._session, self._replica, self._offload = session, replica, offload
        self._catch_up, self._auditor = catch_up, auditor
        self._exchanges, self._on_held, self._on_refused = exchanges, on_held, on_refused
        self._complained: dict[str, None] = {}
        self._certified: dict[bytes, None] = {}
        self._motion: _Motion | None = None

    async def hold(self, effect: ObtainResult) -> None:
        """Until it is on disk, or the record is not to be voted for.  Asked twice for the same, it does it once."""
        root, under_way = Hash(effect.record.result_root), self._motion
        if effect.provenance is None:
            if root in self._certified:
                return
            self._certified[root] = None
            if under_way is not None and under_way.root == root:
                await under_way.ended.wait()
            elif under_way is not None:
                under_way.scope.cancel()
            await self._bring(effect, root)
            return
        if under_way is not None and under_way.root == root:
            return
        if under_way is not None:
            under_way.scope.cancel()
        self._motion = mine = _Motion(root, trio.CancelScope(), trio.Event())
        try:
            with mine.scope:
                await self._check(effect)
                await self._bring(effect, root)
        except Unaccountable as reason:
            self._on_refused(root)
            if str(reason) not in self._complained:
                self._complained[str(reason)] = None
                self._session.emit(Notice("warning", f"round {effect.record.round}: no vote for {reason}"))
        finally:
            mine.ended.set()
            if self._motion is mine:
                self._motion = None

    async def _check(self, effect: ObtainResult) -> None:
        assert effect.provenance is not None
        running = self._exchanges.get(plan_hash(plan_of(effect.record, effect.provenance)))
        await self._auditor.check(effect.record, effect.index, effect.provenance, running.exchange if running else None)

    async def _bring(self, effect: ObtainResult, root: Hash) -> None:
        if self._replica.store.open_result(effect.record.round, effect.record.fragment, root) is None:
            await self._assemble(effect, root)
        self._on_held(root)

    async def _assemble(self, effect: ObtainResult, root: Hash) -> None:
        """Our exchange's chunks where they are the same, the others fetched, and looked at if it is not certified."""
        replica, record, index = self._replica, effect.record, effect.index
        running = next(reversed(self._exchanges.values()), None)
        if running is not None and not running.taken:
            running.taken = True
            file, missing = running.file, running.exchange.adopt(index)
        else:
            file = await self._offload(replica.store.result_writer, record.round, record.fragment,
                                       payload_bytes(replica.layout))
            missing = list(range(len(index)))
        try:
            while missing:
                if await self._catch_up.fetch_chunks(record.round, root, index, missing, file.view, effect.sources):
                    break
                await trio.sleep(RETRY_S)
            if effect.provenance is not None:
                await self._auditor.inspect(record, index, effect.provenance, missing, file.view)
            await self._offload(file.commit, root)
        finally:
            file.discard()
