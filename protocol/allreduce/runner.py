"""The trio shell around `protocol.allreduce.machine.ExchangeMachine`, which performs its effects.

`Sender` pushes chunks, `Receiver` checks every byte that arrives, and `Averager` averages in worker threads.

Memory: at most `buffers.PART_BUFFERS` parts wait for their chunk's average, shared equally among the senders.  All senders
send in the same order.  A sender that has n buffers at the receiver starts a push only after the push n places earlier has
ended.  So the lowest unfinished chunk always gets a buffer, and there is no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated

import trio
from pydantic import Field

from kernels.aggregate import Rule, aggregate
from kernels.codecs.format import Format
from kernels.codecs.ladder import Codec
from protocol.allreduce.assignment import is_committed
from protocol.allreduce.buffers import AverageBuffer, ExchangeBuffers, OwnParts, share_of_buffers
from protocol.allreduce.lateness import ExchangeLimits
from protocol.allreduce.machine import (
    AllReduceDone,
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEffect,
    ExchangeEvent,
    ExchangeMachine,
    ExchangeTick,
    Lost,
    Moving,
    PartArrived,
    PeerBack,
    PeerDead,
    Reduce,
    Regained,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
    SuspicionRaised,
)
from protocol.disk import let_go
from protocol.events.events import Dropped, Event, ExchangeFinished, ExchangeProgress, MemberLost, MemberRegained
from protocol.formats.model import MAX_CHUNKS
from protocol.offload import Offload
from protocol.transport.interface import (
    MALFORMED,
    MAX_PUSH_HEADER_BYTES,
    Landing,
    Network,
    NetworkError,
    Offence,
    Refused,
    Session,
)
from protocol.transport.task_group import TaskGroup
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, Envelope, FragmentNumber, HashField, decode_body
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, ChunkResult, Plan, Provenance, mask_of, members_in, unpack

# ------------------------------------------------------------------------------------------------------------------------
# Messages of an exchange that are not signed statements: the header of a push, and the request of a successor.


ChunkNumber = Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]


class PushHeader(Body):
    """Header of a push, which carries a part with its tree proof, or a result with its owner's statement.

    plan: hash of the plan.  fragment: fragment of the plan.  proof: sibling hashes from the part's leaf to the root; empty
    for a result.  statement: the owner's envelope around a `ChunkResult`; None for a part.
    """

    plan: HashField
    fragment: FragmentNumber
    chunk: ChunkNumber
    proof: Annotated[list[HashField], Field(max_length=16)]
    statement: Annotated[bytes, Field(max_length=4096)] | None


class ExchangeAsk(Body):
    """Request to a member for the result of a chunk, or for the member's part of the chunk.

    plan: the plan's hash.  fragment: the plan's fragment.
    """

    plan: HashField
    fragment: FragmentNumber
    chunk: ChunkNumber


@lru_cache(maxsize=256)
def read_header(raw: bytes) -> PushHeader:
    """Decode the header of a push; raise `Malformed` if that fails.  Cached, because one push reads it several times."""
    return decode_body(PushHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)


def push_plan(header: bytes) -> Hash | None:
    """Return the hash of the plan in the header of a push; None if the header is malformed."""
    try:
        return Hash(read_header(header).plan)
    except Malformed:
        return None


# ------------------------------------------------------------------------------------------------------------------------
# Events about an exchange for people and programs: its progress, and finally its duration and bytes.


PROGRESS_EVERY_S = 0.25


class ProgressReport:
    """Reporter of progress: at most one `ExchangeProgress` every `PROGRESS_EVERY_S` until all results are here.

    After that, each change is reported.
    """

    def __init__(self, machine: ExchangeMachine, emit: Callable[[Event], None]) -> None:
        self._machine, self._emit = machine, emit
        self._begun = trio.current_time()
        self._seconds: float | None = None
        self._shown = -1.0

    def complete(self) -> None:
        """Record the duration of the exchange; called when all results are here."""
        self._seconds = trio.current_time() - self._begun

    def show(self) -> None:
        """Emit the progress at most once every `PROGRESS_EVERY_S`, and always when the exchange is complete."""
        now = trio.current_time()
        if now - self._shown >= PROGRESS_EVERY_S or self._seconds is not None:
            self._shown = now
            self._emit(
                ExchangeProgress(
                    self._machine.plan.round,
                    len(self._machine.entries),
                    self._machine.chunks,
                    list(self._machine.waiting_for()),
                )
            )

    def finish(self, up_bytes: int, down_bytes: int) -> None:
        """Emit the end of the exchange, whether it is complete or not."""
        seconds = trio.current_time() - self._begun if self._seconds is None else self._seconds
        self._emit(ExchangeFinished(self._machine.plan.round, seconds, up_bytes, down_bytes))


# ------------------------------------------------------------------------------------------------------------------------
# Pushes to other members: one queue for each peer, with several pushes in flight.


PUSHES_AHEAD = 8
"""Number of pushes to one peer in flight at a time, enough to fill a line with a long round trip."""
PUSH_TIMEOUT_S = 60.0
RETRY_S = 0.5
REFUSALS = 6
"""Number of refusals after which we drop a part: the receiver needs no more parts, or has another plan."""


class Sender:
    """Sender of parts and results, in the order of its queues.  up_bytes: headers and chunks delivered so far."""

    def __init__(self, machine: ExchangeMachine, own: OwnParts, results: AverageBuffer, network: Network) -> None:
        self.up_bytes = 0
        self.refusing: dict[PeerId, None] = {}
        """Peers that refused a push of ours."""
        self._machine, self._own, self._results, self._network = machine, own, results, network
        self._queues: dict[PeerId, deque[SendPart | SendResult]] = {peer: deque() for peer in machine.others}
        self._wake = {peer: trio.Event() for peer in machine.others}
        self._ordered: set[SendPart | SendResult] = set()

    def order(self, item: SendPart | SendResult) -> None:
        """Queue a push; do nothing if the same push is queued, in flight or delivered."""
        if item not in self._ordered:
            self._ordered.add(item)
            self._queues[item.to].append(item)
            self._wake[item.to].set()

    async def serve(self, peer: PeerId) -> None:
        """Push the items in the queue of this peer, until cancelled."""
        queue, under_way = self._queues[peer], deque[trio.Event]()
        ahead = min(PUSHES_AHEAD, share_of_buffers(len(self._queues)))
        async with trio.open_nursery() as nursery:
            while True:
                while not queue:
                    self._wake[peer] = trio.Event()
                    await self._wake[peer].wait()
                if len(under_way) >= ahead:
                    await under_way.popleft().wait()
                item = queue.popleft()
                if isinstance(item, SendPart) and not self._machine.is_needed(item):
                    self._ordered.discard(item)
                    continue
                under_way.append(trio.Event())
                nursery.start_soon(self._push, item, under_way[-1])

    async def _push(self, item: SendPart | SendResult, over: trio.Event) -> None:
        try:
            if not await self._push_until_over(item):
                self._ordered.discard(item)
        finally:
            over.set()

    async def _push_until_over(self, item: SendPart | SendResult) -> bool:
        """Push until the chunk is delivered or finally refused, or the peer is lost; return True if it is delivered."""
        if isinstance(item, SendResult) and not self._results.has(item.chunk):
            return False  # the peer will fetch the result from the record's members
        header, data = self._header(item).encode(), (self._own if isinstance(item, SendPart) else self._results)[item.chunk]
        refusals = 0
        while True:
            try:
                await self._network.push(item.to, header, data, timeout_s=PUSH_TIMEOUT_S)
                self.up_bytes += len(header) + len(data)
                let_go(data)
                return True
            except Refused:
                refusals += 1
                self.refusing[item.to] = None
                if refusals >= REFUSALS or isinstance(item, SendResult):
                    return False
            except NetworkError:
                if item.to in self._machine.lost:
                    return False
            await trio.sleep(RETRY_S)

    def _header(self, item: SendPart | SendResult) -> PushHeader:
        if isinstance(item, SendPart):
            return self._header_of(item.chunk, self._own.proof(item.chunk), None)
        return self._header_of(item.chunk, [], self._results.statements[item.chunk].raw)

    def _header_of(self, chunk: int, proof: list[bytes], statement: bytes | None) -> PushHeader:
        plan = self._machine.plan
        return PushHeader(plan=self._machine.name, fragment=plan.fragment, chunk=chunk, proof=proof, statement=statement)


# ------------------------------------------------------------------------------------------------------------------------
# Computation of averages by the owner of a chunk, and checks of every chunk that arrives.
#
# Functions that read whole chunks run in worker threads.


AVERAGES_AT_ONCE = 8
"""Most averages that are computed at a time, each in a buffer of its own: a lone member owns all chunks from the start."""


class Averager:
    """Averager of the chunks that we own, which signs the averages and adds them to the results."""

    def __init__(
        self,
        machine: ExchangeMachine,
        session: Session,
        buffers: ExchangeBuffers,
        offload: Offload,
        rule: Rule,
    ) -> None:
        self._machine, self._session, self._layouts = machine, session, buffers.own.layouts
        self._own, self._parts, self._results, self._pool = buffers.own, buffers.parts, buffers.results, buffers.pool
        self._offload, self._rule = offload, rule
        self._places = trio.Semaphore(AVERAGES_AT_ONCE)

    async def reduce(self, effect: Reduce) -> Averaged | None:
        """Average one chunk; return None if a result from another member came first."""
        async with self._places:
            return await self._average(effect)

    async def _average(self, effect: Reduce) -> Averaged | None:
        machine, chunk, span = self._machine, effect.chunk, self._layouts.result[effect.chunk]
        if chunk in machine.entries:
            self._parts.drop(chunk)
            return None
        members = [machine.members[index] for index in effect.members]
        parts = [self._own[chunk] if peer == machine.me else self._parts[chunk, peer] for peer in members]
        weights = [machine.plan.members[index].tokens for index in effect.members]
        mean = self._pool.take(span.size)
        name = await self._offload(average, self._rule, self._layouts.codec, parts, weights, span.count, mean)
        entry = entry_of(name, effect.members, len(machine.members))
        let_go(self._own[chunk])
        self._parts.drop(chunk)
        if chunk in machine.entries or self._results.released:
            return None
        self._results.put(chunk, mean, self._session.seal(ChunkResult(plan=machine.name, chunk=chunk, entry=entry)))
        self._pool.give(mean)
        return Averaged(chunk, entry)


def average(
    rule: Rule, codec: Codec, parts: Sequence[memoryview], weights: Sequence[int], count: int, into: memoryview
) -> Hash:
    """Write the average of `parts` (`count` values each) to `into`; return its hash.  weights: tokens of their members."""
    aggregate(rule, codec, parts, weights, count, into)
    return chunk_hash(into)


def examine(format: Format, count: int, is_result: bool, data: memoryview) -> tuple[Hash, bool]:
    """Return the hash of a chunk of `count` values, and True if it is a sane contribution or result in `format`."""
    return chunk_hash(data), format.is_sane(data, count, is_result=is_result)


def entry_of(hash: Hash, members: Sequence[int], count: int) -> ChunkEntry:
    """Return the index entry of a chunk averaged over these members (indices in a plan of `count` members)."""
    return ChunkEntry(hash=hash, mask=mask_of(members, count))


# ------------------------------------------------------------------------------------------------------------------------
# Pushes from other members: buffers for their chunks, checks, and delivery to the machine.


class Receiver:
    """Receiver of the pushes of one exchange.  down_bytes: headers and chunks taken so far.

    run: the run in whose name statements are signed.  emit: called with an event for each chunk that is dropped.
    """

    def __init__(
        self,
        machine: ExchangeMachine,
        run: Hash,
        buffers: ExchangeBuffers,
        emit: Callable[[Event], None],
    ) -> None:
        self.down_bytes = 0
        self._machine, self._layouts, self._run, self._emit = machine, buffers.own.layouts, run, emit
        self._parts, self._results, self._pool = buffers.parts, buffers.results, buffers.pool
        self._moved: dict[PeerId, None] = {}

    def moving(self) -> list[Moving]:
        """Return an event for each peer that sent bytes since the last call, and for each peer that waits for a buffer."""
        moved, self._moved = self._moved, {}
        return [*(Moving(peer, held=False) for peer in moved), *(Moving(peer, held=True) for peer in self._parts.held())]

    async def open(self, peer: PeerId, raw: bytes, size: int) -> Landing | None:
        """Return a buffer for a part or a result that we can use, otherwise None; wait while the sender's share is full.

        raw: the header, which must be well formed.
        """
        header = read_header(raw)
        if header.fragment != self._machine.plan.fragment or header.chunk >= self._machine.chunks:
            return None
        if not self._parts.takes_from(peer):
            return None
        is_result = header.statement is not None
        layout = self._layouts.result if is_result else self._layouts.contribution
        if size != layout[header.chunk].size or self._results.released:
            return None
        if is_result:
            if not self._is_due(peer, header):
                return None
        elif (header.chunk, peer) in self._parts:
            return None
        else:
            await self._parts.reserve(peer)
        check = partial(examine, layout.format, layout[header.chunk].count, is_result)
        return Landing(self._pool.take(size), check, on_bytes=partial(self._note_bytes, peer))

    def _note_bytes(self, peer: PeerId) -> None:
        self._moved[peer] = None

    def _is_due(self, peer: PeerId, header: PushHeader) -> bool:
        """Return True if we accept the result that this header announces."""
        machine = self._machine
        if header.chunk in machine.entries:
            return False
        try:
            signer, _, _ = self._signed(header)
        except Malformed as error:
            self._emit(Dropped(peer, "chunk", str(error)))
            return False
        if not machine.failover.may_sign(signer, header.chunk):
            machine.handle(SignedEarly(signer, header.chunk), trio.current_time())
            return False
        return True

    def finish(self, peer: PeerId, raw: bytes, landing: Landing | None) -> PartArrived | ResultArrived | None:
        """Complete the push that `open` accepted, and return the event for the machine.

        landing: None if the push broke off.  Raises `Offence` for a chunk that its sender could have recognised as wrong.
        """
        header = read_header(raw)
        if header.statement is None:
            self._parts.arrived(peer)
        if landing is None or not self._parts.takes_from(peer):
            return None
        try:
            arrived = (
                self._take_part(peer, header, landing)
                if header.statement is None
                else (self._take_result(peer, header, landing))
            )
        except Malformed as error:
            self._emit(Dropped(peer, "chunk", str(error)))
            raise Offence(MALFORMED) from error
        self.down_bytes += len(raw) + len(landing.buffer)
        return arrived

    def _take_part(self, peer: PeerId, header: PushHeader, landing: Landing) -> PartArrived:
        chunk = header.chunk
        member = next(member for member in self._machine.plan.members if member.peer == peer)
        hash, sane = landing.found
        if not is_committed(member, self._machine.chunks, chunk, hash, header.proof):
            raise Malformed("a part that differs from the part to which its sender committed")
        if not sane:
            raise Malformed("a part that no encoder can have produced")
        if chunk not in self._machine.entries:
            self._parts.put(chunk, peer, landing.buffer)
        return PartArrived(peer, chunk)

    def _take_result(self, peer: PeerId, header: PushHeader, landing: Landing) -> ResultArrived | None:
        signer, body, envelope = self._signed(header)
        name, sane = landing.found
        if name != body.entry.hash:
            raise Malformed("a result that differs from the result that its owner signed")
        if not sane:
            raise Malformed("a result that no encoder can have produced")
        if self._results.released or header.chunk in self._machine.entries:
            return None
        self._results.put(header.chunk, landing.buffer, envelope)
        self._pool.give(landing.buffer)
        if not self._machine.is_reducing(header.chunk):  # otherwise the averager drops the parts when it is done
            self._parts.drop(header.chunk)
        return ResultArrived(peer, header.chunk, body.entry, signer)

    def _signed(self, header: PushHeader) -> tuple[PeerId, ChunkResult, Envelope]:
        """Return the signer and the signed statement of the result that this header announces; raise `Malformed`."""
        assert header.statement is not None
        signer, body, envelope = unpack(header.statement, self._run)
        if not isinstance(body, ChunkResult) or signer not in self._machine.members:
            raise Malformed("a result that no member signed")
        if body.plan != self._machine.name or body.chunk != header.chunk:
            raise Malformed("a result of another exchange")
        members_in(body.entry.mask, len(self._machine.members))
        return signer, body, envelope


# ------------------------------------------------------------------------------------------------------------------------


TICK_S = 0.25
ASK_TIMEOUT_S = 5.0


class ExchangeRunner:
    """Runner of one exchange until its round ends; after `done` is set, it still sends the chunks that it owes others.

    own: our contribution.  result: writable buffer for the result, complete when `done` is set.  rule: the rule by which
    chunks are averaged.
    """

    def __init__(
        self,
        *,
        session: Session,
        plan: Plan,
        own: OwnParts,
        result: memoryview,
        limits: ExchangeLimits,
        offload: Offload,
        rule: Rule,
    ) -> None:
        self.machine = ExchangeMachine(session.me, plan, limits, trio.current_time())
        self.done = trio.Event()
        self._session = session
        self._buffers = buffers = ExchangeBuffers(own, result, self.machine.others)
        self._sender = Sender(self.machine, own, buffers.results, session.network)
        self._receiver = Receiver(self.machine, session.run, buffers, session.emit)
        self._averager = Averager(self.machine, session, buffers, offload, rule)
        self._progress = ProgressReport(self.machine, session.emit)
        self._tasks = TaskGroup()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange until cancelled; emit the bytes sent only then, because others may need chunks after us."""
        try:
            async with self._tasks.open() as nursery:  # chunks that arrive after it start no tasks
                for peer in self.machine.others:
                    nursery.start_soon(self._sender.serve, peer)
                self._handle(ContributionReady())
                while True:
                    for moving in self._receiver.moving():
                        self._handle(moving)
                    self._handle(ExchangeTick())
                    await trio.sleep(TICK_S)
        finally:
            self._progress.finish(self._sender.up_bytes, self._receiver.down_bytes)

    def entries(self) -> tuple[ChunkEntry, ...]:
        """Return the index of the result; valid once `done` is set."""
        return tuple(self.machine.entries[chunk] for chunk in range(self.machine.chunks))

    def provenance(self) -> Provenance:
        """Return the signers and signatures of the chunks of the result; valid once `done` is set."""
        return self._buffers.results.provenance(self.machine.plan)

    @property
    def refusing(self) -> list[PeerId]:
        """Members that refused a push of ours."""
        return [*self._sender.refusing]

    @property
    def statements(self) -> Mapping[int, Envelope]:
        """Signed statements of the owners of the results that we hold, by chunk."""
        return self._buffers.results.statements

    @property
    def result(self) -> memoryview | None:
        """Buffer with the averages that we hold, each in its place; None once the buffer is released."""
        return self._buffers.results.buffer

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """Leave the result buffer to the caller; return its chunks that are missing or differ from the record's index."""
        self._buffers.results.release()
        return self.machine.adopt(index)

    # -- events -------------------------------------------------------------------------------------------------------

    def peer_dead(self, peer: PeerId) -> None:
        """Stop waiting for a peer that has left, or was ejected."""
        self._handle(PeerDead(peer))

    def peer_suspected(self, peer: PeerId) -> None:
        """Stop waiting for a peer that may be dead, until it is heard again."""
        self._handle(SuspicionRaised(peer))

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Note that a lost member has been heard again.  restarted: True if its process has been started again."""
        self._handle(PeerBack(peer, restarted))

    def asked(self, peer: PeerId, ask: ExchangeAsk) -> None:
        """Answer a successor that asks for the result of a chunk, or our part; ignore requests for another fragment."""
        if ask.fragment == self.machine.plan.fragment:
            self._handle(Asked(peer, ask.chunk))

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Open a push as `Handlers.open_push` describes."""
        return await self._receiver.open(peer, header, size)

    def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> bool:
        """Finish a push as `Handlers.finish_push` describes; return True if the exchange lacked its chunk."""
        arrived = self._receiver.finish(peer, header, landing)
        if arrived is None:
            return False
        is_new = self.machine.lacks(arrived)
        self._handle(arrived)
        return is_new

    # -- the machine --------------------------------------------------------------------------------------------------

    def _handle(self, event: ExchangeEvent) -> None:
        effects = self.machine.handle(event, trio.current_time())
        for effect in effects:
            self._perform(effect)
        if effects:
            self._progress.show()

    def _perform(self, effect: ExchangeEffect) -> None:
        if isinstance(effect, SendPart | SendResult):
            self._sender.order(effect)
        elif isinstance(effect, Reduce):
            self._tasks.start(self._reduce, effect)
        elif isinstance(effect, Ask):
            self._tasks.start(self._ask, effect)
        elif isinstance(effect, Lost):
            self._session.emit(MemberLost(self.machine.plan.round, effect.peer))
            self._buffers.parts.wake_senders()
        elif isinstance(effect, Regained):
            self._session.emit(MemberRegained(self.machine.plan.round, effect.peer))
        elif isinstance(effect, AllReduceDone):
            self.done.set()
            self._progress.complete()

    async def _reduce(self, effect: Reduce) -> None:
        averaged = await self._averager.reduce(effect)
        if averaged is not None:
            self._handle(averaged)

    async def _ask(self, effect: Ask) -> None:
        question = ExchangeAsk(plan=self.machine.name, fragment=self.machine.plan.fragment, chunk=effect.chunk).encode()
        try:
            await self._session.network.request(effect.peer, "exchange", question, timeout_s=ASK_TIMEOUT_S)
        except NetworkError:
            return  # the request is repeated until the peer answers or is lost
