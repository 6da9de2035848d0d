"""Commands of the user of a running node: the measurement of the lines, and the extension of the run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.blobs.blob import Blob
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Sampled
from protocol.chain.base import Base
from protocol.chain.progress import RunProgress, open_amendment
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Notice, NoticeCode
from protocol.formatting import amount
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.run.sections import Unit
from protocol.transport.handlers import Guard, Statement, hears
from protocol.transport.interface import Acceptance, NetworkError, Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import MAX_TOTAL, Extension

# ------------------------------------------------------------------------------------------------------------------------
# Speed of the lines to other peers, measured when the user asks for it.
#
# Down: a few peers, one after the other, send some chunks of a past round's result, which they serve anyway.  Up: the rate
# of our pushes in the last rounds; no peer has to receive data for a measurement.


MOST_PEERS = 3
ROUNDS_AGO = 2
"""Age of the sampled result in rounds: peers need the newest result urgently, but not the one before."""


class NotNow(Exception):
    """The lines cannot be measured now; the text gives the reason."""


@dataclass(frozen=True)
class ProbedLines:
    """Measured lines.  peers: name and sample of each peer that we asked.

    up_bytes_per_s: rate of our pushes, within our cap; the cap if no rate is known yet; 0 if neither is known.
    """

    peers: list[tuple[str, Sampled]]
    up_bytes_per_s: float


class LineProbe:
    """Line measurements of one node."""

    def __init__(self, session: Session, replica: Replica, membership: Membership, swarm: Swarm) -> None:
        self._session, self._replica, self._membership, self._swarm = session, replica, membership, swarm
        self._measuring = False

    async def measure(self) -> ProbedLines:
        """Measure the lines to other peers; only one measurement runs at a time.  Raises `NotNow`."""
        if self._measuring:
            raise NotNow("the lines are being measured already; ask again in a few seconds")
        self._measuring = True
        try:
            blob, network = self._known_blob(), self._session.network
            found = [(self._membership.name(peer), await self._swarm.sample(blob, peer)) for peer in self._asked()]
            return ProbedLines(found, network.bandwidth().up_bytes_per_s)
        finally:
            self._measuring = False

    def _asked(self) -> list[PeerId]:
        connected = set(self._session.network.connected())
        peers = [peer for peer in self._membership.live_peers() if peer in connected][:MOST_PEERS]
        if not peers:
            raise NotNow("no other peer of the run is connected; wait until one is")
        return peers

    def _known_blob(self) -> Blob:
        history = self._replica.history
        if history.length < ROUNDS_AGO:
            raise NotNow(f"the run has {history.length} rounds; wait until it has {ROUNDS_AGO}, and ask again")
        commit = history.commit_at(history.length - ROUNDS_AGO)
        sizes = tuple(span.size for span in self._replica.layouts.result)
        return Blob(Hash(commit.record.result_root), tuple(Hash(entry.hash) for entry in commit.index), sizes)


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's extension of the run, kept by one peer until a record of the chain carries it.
#
# The extension travels by gossip, and every peer that has received it repeats it.  At the end of a run peers have no other
# work, and each peer must have the extension before it begins the next round.


LOOK_S = 0.5
REPEAT_S = 30.0
"""Seconds after which we repeat an extension that no record carries yet: gossip may be lost, and new peers join."""


class CannotExtend(Exception):
    """The run cannot be extended; the text is one sentence with the remedy."""


class Extensions:
    """The extensions that one node knows.  `load` them before the first round, then `run`."""

    def __init__(self, session: Session, guard: Guard, replica: Replica, offload: Offload) -> None:
        self._session, self._guard, self._replica, self._offload = session, guard, replica, offload
        self._organiser = PeerId(replica.manifest.organiser)
        self._known: tuple[Extension, bytes] | None = None
        """The largest extension, kept even once a record carries it: a branch that replaces ours may lack that record."""
        self._keeping = trio.Lock()
        self._tasks = TaskGroup()

    async def load(self) -> None:
        """Load the extension that this peer received before a restart."""
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
        """Repeat an extension until a record carries it, and then tell the user; run until cancelled."""
        said_at, seen = -REPEAT_S, self._replica.history.roster.progress.goal
        async with self._tasks.open():
            while True:
                if (raw := self.amendment()) is not None and trio.current_time() - said_at >= REPEAT_S:
                    said_at = trio.current_time()
                    await self._say(raw)
                progress = self._replica.history.roster.progress
                if progress.goal.total > seen.total:
                    unit, total = progress.goal.unit.value, progress.goal.total
                    text = f"the organiser has extended the run to {amount(total)} {unit}, from round {progress.rounds} on"
                    details = {"round": progress.rounds, "unit": unit, "total": total}
                    self._session.emit(Notice("info", text, NoticeCode.RUN_EXTENDED, details))
                seen = progress.goal
                await trio.sleep(LOOK_S)

    # -- effects on the run -------------------------------------------------------------------------------------------

    def amendment(self) -> bytes | None:
        """Return the signed extension for our plans; None if the next record may carry none."""
        pending = self._pending(self._replica.history.roster.progress)
        return pending[1] if pending is not None else None

    def progress(self, base: Base) -> RunProgress:
        """Return the run's progress in the round on `base`; after the run's end, that round is the first of an extension."""
        pending = self._pending(base.progress) if base.progress.is_over else None
        return base.progress.extended(pending[0]) if pending is not None else base.progress

    @property
    def has_ended(self) -> bool:
        """True if no round can follow on our tip, as far as we know."""
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

    @hears(Extension, anyone=True)  # the manifest alone authorises the organiser
    def hear(self, said: Statement[Extension]) -> Acceptance:
        """Receive an extension; return ACCEPT if the network should forward it."""
        if said.sender != self._organiser:
            return Acceptance.REJECT  # the forwarder could have checked the sender
        if not self._tasks.is_open or not self._is_news(said.body):
            return Acceptance.IGNORE
        self._known = said.body, said.raw
        self._tasks.start(self._keep_heard)
        return Acceptance.ACCEPT

    def _is_news(self, body: Extension) -> bool:
        return self._known is None or body.total > self._known[0].total

    async def _keep_heard(self) -> None:
        with self._guard.watch(self._organiser, "extension"):
            try:
                await self._keep()
            except StoreFailed as error:
                self._session.emit(Notice("warning", f"an extension of the run cannot be saved: {error}"))

    async def _keep(self) -> None:
        """Write the largest extension to disk.  Raises `StoreFailed`."""
        async with self._keeping:
            assert self._known is not None
            await self._offload(self._replica.store.keep_extension, self._known[1])

    async def _say(self, raw: bytes) -> None:
        with suppress(NetworkError):  # the extension is repeated
            await self._session.network.publish(raw)

    # -- the organiser ------------------------------------------------------------------------------------------------

    async def extend(self, unit: Unit, total: int) -> Extension:
        """Extend the run to this total; the statement is on disk before it is sent.  Raises `CannotExtend`."""
        progress = self._replica.history.roster.progress
        known = max(progress.goal.total, self._known[0].total if self._known is not None else 0)
        if self._session.me != self._organiser:
            raise CannotExtend("only the run's organiser can extend the run; ask the organiser for the total that you want")
        if unit is not progress.goal.unit:
            raise CannotExtend(f"this run counts {progress.goal.unit}; use --{progress.goal.unit} instead of --{unit}")
        if total <= max(known, progress.done):
            raise CannotExtend(
                f"the run's total is {known} {unit} already, of which {min(progress.done, known)} are done; "
                f"give a new total of more than {max(known, progress.done)}"
            )
        if total > MAX_TOTAL:
            raise CannotExtend(f"a run has at most {MAX_TOTAL} {unit}; give a smaller total")
        if not self._tasks.is_open:
            raise CannotExtend("the peer is still starting; try again in a moment")
        body = Extension(total=total)
        raw = self._session.seal(body).raw
        async with self._keeping:
            try:
                await self._offload(self._replica.store.keep_extension, raw)
            except StoreFailed as error:
                raise CannotExtend(f"the extension cannot be saved: {error}") from error
            if self._is_news(body):
                self._known = body, raw
        await self._say(raw)
        return body
