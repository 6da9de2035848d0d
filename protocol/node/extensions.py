"""The organiser's extension of the run, as one peer has heard of it, until a record of the chain carries it.

It travels by gossip, and whoever has heard it says it again: at the end of a run nobody does anything else, and every peer
must have it before it begins the round that goes on.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from protocol.chain.amendment import open_amendment
from protocol.chain.base import Base
from protocol.chain.disk import StoreFailed
from protocol.chain.progress import RunProgress
from protocol.chain.replica import Replica
from protocol.events.events import Notice, RunExtended
from protocol.node.guard import Guard
from protocol.offload import Offload
from protocol.run.sections import Unit
from protocol.transport.interface import Acceptance, NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import MAX_TOTAL, Extension

LOOK_S = 0.5
REPEAT_S = 30.0
"""Gossip may be lost, and others come: an extension that no record has is said again so often."""


class CannotExtend(Exception):
    """The text is one sentence with the remedy."""


class Extensions:
    """Of one node.  `load` it before the first round, then `run` it."""

    def __init__(self, session: Session, guard: Guard, replica: Replica, offload: Offload) -> None:
        self._session, self._guard, self._replica, self._offload = session, guard, replica, offload
        self._organiser = PeerId(replica.manifest.organiser)
        self._known: tuple[Extension, bytes] | None = None
        """The largest one, also when a record has it: a branch that comes instead may lack that record."""
        self._keeping = trio.Lock()
        self._nursery: trio.Nursery | None = None

    async def load(self) -> None:
        """Recall what an earlier life heard."""
        raw = await self._offload(self._replica.store.extension)
        if raw is None:
            return
        try:
            body = open_amendment(raw, self._session.run, self._organiser)
        except Malformed:
            return
        if isinstance(body, Extension):
            self._known = body, raw

    async def run(self) -> None:
        """Say an extension that no record has, again and again, and tell the person once one has it; until cancelled."""
        said_at, seen = -REPEAT_S, self._replica.history.roster.progress.goal
        async with trio.open_nursery() as self._nursery:
            while True:
                if (raw := self.amendment()) is not None and trio.current_time() - said_at >= REPEAT_S:
                    said_at = trio.current_time()
                    await self._say(raw)
                progress = self._replica.history.roster.progress
                if progress.goal.total > seen.total:
                    self._session.emit(RunExtended(progress.rounds, progress.goal.unit.value, progress.goal.total))
                seen = progress.goal
                await trio.sleep(LOOK_S)

    # -- what follows from it -----------------------------------------------------------------------------------------

    def amendment(self) -> bytes | None:
        """The signed extension that is to go into our plans, if there is one that the next record may carry."""
        pending = self._pending(self._replica.history.roster.progress)
        return pending[1] if pending is not None else None

    def progress(self, base: Base) -> RunProgress:
        """The progress of the run in the round on `base`: after the end, that round is the first one of an extension."""
        pending = self._pending(base.progress) if base.progress.is_over else None
        return base.progress.extended(pending[0]) if pending is not None else base.progress

    @property
    def has_ended(self) -> bool:
        """Whether no round can follow on our tip, for all that we have heard."""
        progress = self._replica.history.roster.progress
        return progress.is_over and self._pending(progress) is None

    def _pending(self, progress: RunProgress) -> tuple[Extension, bytes] | None:
        if self._known is None:
            return None
        try:
            progress.check(self._known[0])
        except Malformed:
            return None
        return self._known

    # -- hearing and saying -------------------------------------------------------------------------------------------

    def hear(self, sender: PeerId, body: Extension, raw: bytes) -> Acceptance:
        """Take in an extension whose signature holds; returns whether it is handed on."""
        if sender != self._organiser:
            return Acceptance.REJECT  # whoever hands it on could know that
        if self._nursery is None or not self._is_news(body):
            return Acceptance.IGNORE
        self._known = body, raw
        self._nursery.start_soon(self._keep_heard)
        return Acceptance.ACCEPT

    def _is_news(self, body: Extension) -> bool:
        return self._known is None or body.total > self._known[0].total

    async def _keep_heard(self) -> None:
        with self._guard.watch(self._organiser, "extension"):
            try:
                await self._keep()
            except StoreFailed as error:
                self._session.emit(Notice("warning", f"an extension of the run cannot be kept: {error}"))

    async def _keep(self) -> None:
        """The largest one is on disk when this returns.  Raises `StoreFailed`."""
        async with self._keeping:
            assert self._known is not None
            await self._offload(self._replica.store.keep_extension, self._known[1])

    async def _say(self, raw: bytes) -> None:
        with suppress(NetworkError):  # it is said again
            await self._session.network.publish(raw)

    # -- the organiser ------------------------------------------------------------------------------------------------

    async def extend(self, unit: Unit, total: int) -> Extension:
        """Sign that the run goes on to this total; on disk before anybody hears of it.  Raises `CannotExtend`."""
        progress = self._replica.history.roster.progress
        known = max(progress.goal.total, self._known[0].total if self._known is not None else 0)
        if self._session.me != self._organiser:
            raise CannotExtend("only the run's organiser extends it; ask for it, with the total that you want")
        if unit is not progress.goal.unit:
            raise CannotExtend(f"this run counts {progress.goal.unit}; give --{progress.goal.unit} instead of --{unit}")
        if total <= max(known, progress.done):
            raise CannotExtend(
                f"the run's total is {known} {unit} already, of which {min(progress.done, known)} are done; "
                f"give the new total, more than {max(known, progress.done)}"
            )
        if total > MAX_TOTAL:
            raise CannotExtend(f"a run has at most {MAX_TOTAL} {unit}; give a smaller total")
        if self._nursery is None:
            raise CannotExtend("the peer is still starting; try again in a moment")
        body = Extension(total=total)
        raw = self._session.seal(body).raw
        async with self._keeping:
            try:
                await self._offload(self._replica.store.keep_extension, raw)
            except StoreFailed as error:
                raise CannotExtend(f"the extension cannot be kept: {error}") from error
            if self._is_news(body):
                self._known = body, raw
        await self._say(raw)
        return body
