"""The exchange as it happens: the trio shell around `protocol.exchange.machine.ExchangeMachine`.

Moves chunks by pushes, checks every byte that comes in, averages in worker threads.  An `Exchange` lives until its round
ends: after it is done itself it goes on sending others what it owes them.

Memory: parts that wait for their chunk's average are limited to `PART_BUFFERS` in all, shared out equally among the
senders.  Each sender sends in the same order, and no push starts while the one so many places before it is under way as a
sender has buffers at the receiver: so the lowest unfinished chunk always finds room and nothing deadlocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated

import trio
from pydantic import Field

from kernels.aggregate import Rule, aggregate
from kernels.codec import is_sane
from kernels.layout import ChunkSpan
from protocol.events import Dropped, Event, ExchangeFinished, ExchangeProgress, MemberLost
from protocol.exchange.machine import Ask, Done, Effect, ExchangeMachine, Lost, Reduce, SendPart, SendResult, entry_of
from protocol.network.interface import MAX_PUSH_HEADER_BYTES, Landing, Network, NetworkError, Refused
from protocol.offload import Offload
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, chunk_hash, tree_proofs, verify_proof
from protocol.wire.identity import Identity, PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import (
    MAX_CHUNKS,
    Body,
    ChunkEntry,
    ChunkResult,
    HashField,
    Plan,
    Provenance,
    decode_body,
    pack,
    unpack,
)

PART_BUFFERS = 64
PUSHES_AHEAD = 8
"""Pushes to one peer that are on their way or wait for its answer: a long way is kept full, and trips are shared."""
TICK_S = 0.25
PUSH_TIMEOUT_S = 60.0
RETRY_S = 0.5
REFUSALS = 6
"""A push refused so often in a row is given up: the receiver has what it needs, or another plan."""
ASK_TIMEOUT_S = 5.0
PROGRESS_EVERY_S = 0.25


class PushHeader(Body):
    """What a push of the exchange is: a part with its tree proof, or a result with its owner's statement."""

    plan: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    proof: Annotated[list[HashField], Field(max_length=16)]
    statement: Annotated[bytes, Field(max_length=4096)] | None


class ExchangeAsk(Body):
    plan: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]


@lru_cache(maxsize=256)
def _read_header(raw: bytes) -> PushHeader:
    """Asked for several times while a push is under way; raises `Malformed`."""
    return decode_body(PushHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)


def push_plan(header: bytes) -> Hash | None:
    """Which exchange a push belongs to; None when its header is not one of ours."""
    try:
        return Hash(_read_header(header).plan)
    except Malformed:
        return None


class Exchange:
    """`run` it in the round's nursery; `done` is set when all results are in `result`.

    contribution: codec bytes of ours, `leaves` their chunk hashes.  result: writable buffer of the same size.
    """

    def __init__(self, *, identity: Identity, run: Hash, plan: Plan, layout: Sequence[ChunkSpan], contribution: memoryview,
                 leaves: Sequence[Hash], result: memoryview, network: Network, offload: Offload, stall_s: float,
                 rule: Rule, emit: Callable[[Event], None]) -> None:
        self.machine = ExchangeMachine(identity.peer_id, plan, stall_s, trio.current_time())
        self.done = trio.Event()
        self._identity, self._run, self._layout = identity, run, layout
        self._contribution, self._leaves, self._result = contribution, leaves, result
        self._network, self._offload, self._rule, self._emit = network, offload, rule, emit
        self._queues: dict[PeerId, deque[SendPart | SendResult]] = {peer: deque() for peer in self.machine.others}
        self._ordered: set[SendPart | SendResult] = set()
        self._wake = {peer: trio.Event() for peer in self.machine.others}
        self._parts: dict[tuple[int, PeerId], memoryview] = {}
        self._reserved = dict.fromkeys(self.machine.others, 0)
        self._share = max(1, PART_BUFFERS // max(1, len(self._reserved)))
        self._buffers = _Buffers()
        self._proofs = tree_proofs(leaves)
        self._room = trio.Event()
        self._statements: dict[int, Envelope] = {}
        self._sealed = False
        self._nursery: trio.Nursery | None = None
        self._begun = trio.current_time()
        self._seconds: float | None = None
        self._shown = -1.0
        self._up = self._down = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; only then is it known what was sent, for others may want it after we have all."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for peer in self.machine.others:
                    nursery.start_soon(self._send_to, peer)
                self._apply(self.machine.start())
                while True:
                    self._apply(self.machine.tick(trio.current_time()))
                    await trio.sleep(TICK_S)
        finally:
            self._nursery = None  # what is still on its way here starts nothing any more
            seconds = trio.current_time() - self._begun if self._seconds is None else self._seconds
            self._emit(ExchangeFinished(self.machine.plan.round, seconds, self._up, self._down))

    def entries(self) -> tuple[ChunkEntry, ...]:
        """The chunks of the result, once `done`."""
        return tuple(self.machine.entries[chunk] for chunk in range(self.machine.chunks))

    def provenance(self) -> Provenance:
        """Who stands for the chunks of the result, once `done`."""
        members, chunks = self.machine.members, range(self.machine.chunks)
        return Provenance(owners=self.machine.plan.owners,
                          signers=bytes(members.index(self._statements[chunk].sender) for chunk in chunks),
                          signatures=[self._statements[chunk].signature for chunk in chunks])

    @property
    def result(self) -> memoryview | None:
        """The averages that are here, each in its place; None once somebody else has the buffer."""
        return None if self._sealed else self._result

    def adopt(self, index: Sequence[ChunkEntry]) -> list[int]:
        """From now on the result buffer is the caller's: these chunks of it are missing or another version."""
        self._sealed = True
        return self.machine.adopt(index)

    def peer_dead(self, peer: PeerId) -> None:
        self._apply(self.machine.peer_dead(peer))

    def peer_alive(self, peer: PeerId) -> None:
        self._apply(self.machine.peer_back(peer))

    def asked(self, peer: PeerId, chunk: int) -> None:
        self._apply(self.machine.asked(peer, chunk))

    # -- effects ------------------------------------------------------------------------------------------------------

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendPart | SendResult):
                if effect not in self._ordered:  # who asks again while it is on its way, or has it, gets it once
                    self._ordered.add(effect)
                    self._queues[effect.to].append(effect)
                    self._wake[effect.to].set()
            elif isinstance(effect, Reduce):
                if self._nursery is not None:
                    self._nursery.start_soon(self._reduce, effect)
            elif isinstance(effect, Ask):
                if self._nursery is not None:
                    self._nursery.start_soon(self._ask, effect)
            elif isinstance(effect, Lost):
                self._emit(MemberLost(self.machine.plan.round, effect.peer))
                self._free_room()
            elif isinstance(effect, Done):
                self.done.set()
                self._seconds = trio.current_time() - self._begun
        if effects:
            self._show_progress()

    def _show_progress(self) -> None:
        now = trio.current_time()
        if now - self._shown >= PROGRESS_EVERY_S or self.done.is_set():
            self._shown = now
            self._emit(ExchangeProgress(self.machine.plan.round, len(self.machine.entries), self.machine.chunks,
                                        list(self.machine.waiting_for())))

    async def _reduce(self, effect: Reduce) -> None:
        machine, span = self.machine, self._layout[effect.chunk]
        if effect.chunk in machine.entries:
            return self._drop_parts(effect.chunk)  # somebody else's result came first
        members = [machine.members[index] for index in effect.members]
        parts = [self._own_part(effect.chunk) if peer == machine.me else self._parts[effect.chunk, peer]
                 for peer in members]
        weights = [machine.plan.members[index].tokens for index in effect.members]
        mean = self._buffers.take(span.size)
        name = await self._offload(_average, self._rule, parts, weights, span.count, mean)
        entry = entry_of(name, effect.members, len(machine.members))
        self._drop_parts(effect.chunk)
        if effect.chunk in machine.entries or self._sealed:
            return
        self._result[span.encoded] = mean
        self._buffers.give(mean)
        body = ChunkResult(plan=machine.name, chunk=effect.chunk, entry=entry)
        self._statements[effect.chunk] = pack(self._identity, self._run, body)
        self._apply(machine.reduced(effect.chunk, entry))

    def _own_part(self, chunk: int) -> memoryview:
        span = self._layout[chunk]
        return self._contribution[span.encoded]

    async def _ask(self, effect: Ask) -> None:
        question = ExchangeAsk(plan=self.machine.name, chunk=effect.chunk).encode()
        try:
            await self._network.request(effect.peer, "exchange", question, timeout_s=ASK_TIMEOUT_S)
        except NetworkError:
            return  # asked again on the next occasion, until it answers or is lost

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send_to(self, peer: PeerId) -> None:
        queue, under_way = self._queues[peer], deque[trio.Event]()
        async with trio.open_nursery() as nursery:
            while True:
                while not queue:
                    self._wake[peer] = trio.Event()
                    await self._wake[peer].wait()
                if len(under_way) >= min(PUSHES_AHEAD, self._share):
                    await under_way.popleft().wait()
                item = queue.popleft()
                if isinstance(item, SendPart) and (self.machine.is_lost(peer) or item.chunk in self.machine.entries):
                    self._ordered.discard(item)
                    continue
                under_way.append(trio.Event())
                nursery.start_soon(self._push, peer, item, under_way[-1])

    async def _push(self, peer: PeerId, item: SendPart | SendResult, over: trio.Event) -> None:
        try:
            if not await self._push_until_over(peer, item):
                self._ordered.discard(item)
        finally:
            over.set()

    async def _push_until_over(self, peer: PeerId, item: SendPart | SendResult) -> bool:
        """Push until it is there, refused for good, or the peer is lost.  Whether it is there."""
        span = self._layout[item.chunk]
        if isinstance(item, SendPart):
            header, data = self._part_header(item.chunk), self._own_part(item.chunk)
        elif self._sealed or item.chunk not in self._statements:
            return False  # the peer fetches it from the record's members
        else:
            header, data = self._result_header(item.chunk), self._result[span.encoded]
        refusals = 0
        while True:
            try:
                await self._network.push(peer, header, data, timeout_s=PUSH_TIMEOUT_S)
                self._up += len(header) + len(data)
                return True
            except Refused:
                refusals += 1
                if refusals >= REFUSALS or isinstance(item, SendResult):
                    return False
            except NetworkError:
                if self.machine.is_lost(peer):
                    return False
            await trio.sleep(RETRY_S)

    def _part_header(self, chunk: int) -> bytes:
        proof: list[bytes] = [*self._proofs[chunk]]
        return PushHeader(plan=self.machine.name, chunk=chunk, proof=proof, statement=None).encode()

    def _result_header(self, chunk: int) -> bytes:
        return PushHeader(plan=self.machine.name, chunk=chunk, proof=[], statement=self._statements[chunk].raw).encode()

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def open_push(self, peer: PeerId, raw: bytes, size: int) -> Landing | None:
        """A buffer for a part or a result that we can use; waits while this sender has its share of the buffers."""
        header = _read_header(raw)
        if peer not in self._reserved or header.chunk >= self.machine.chunks:
            return None
        if size != self._layout[header.chunk].size or self._sealed:
            return None
        self.machine.heard(peer, trio.current_time())
        if header.statement is None:
            if (header.chunk, peer) in self._parts:
                return None
            while self._reserved[peer] + sum(sender == peer for _, sender in self._parts) >= self._share:
                await self._room.wait()
            self._reserved[peer] += 1
        elif header.chunk in self.machine.entries:
            return None
        return Landing(self._buffers.take(size), partial(_judge, self._layout[header.chunk].count))

    async def finish_push(self, peer: PeerId, raw: bytes, landing: Landing | None) -> None:
        header = _read_header(raw)
        if header.statement is None:
            self._reserved[peer] -= 1
            self._free_room()
        if landing is None or peer not in self._reserved:
            return
        try:
            if header.statement is None:
                await self._take_part(peer, header, landing)
            else:
                await self._take_result(peer, header, landing)
            self._down += len(raw) + len(landing.buffer)
        except Malformed as error:
            self._emit(Dropped(peer, "chunk", str(error)))

    async def _take_part(self, peer: PeerId, header: PushHeader, landing: Landing) -> None:
        chunk = header.chunk
        member = next(member for member in self.machine.plan.members if member.peer == peer)
        leaf, sane = landing.found
        proof = [Hash(node) for node in header.proof]
        if not verify_proof(Hash(member.root), self.machine.chunks, chunk, leaf, proof):
            raise Malformed("a part that is not what its sender committed to")
        if not sane:
            raise Malformed("a part whose numbers are not finite")
        if chunk not in self.machine.entries:
            self._parts[chunk, peer] = landing.buffer
        self._apply(self.machine.part_arrived(peer, chunk, trio.current_time()))

    async def _take_result(self, peer: PeerId, header: PushHeader, landing: Landing) -> None:
        assert header.statement is not None
        signer, body, envelope = unpack(header.statement, self._run)
        if not isinstance(body, ChunkResult) or signer not in self.machine.members:
            raise Malformed("a result that no member signed")
        if body.plan != self.machine.name or body.chunk != header.chunk:
            raise Malformed("a result of another exchange")
        members_in(body.entry.mask, len(self.machine.members))
        span = self._layout[header.chunk]
        name, sane = landing.found
        if name != body.entry.hash:
            raise Malformed("a result that is not what its owner signed")
        if not sane:
            raise Malformed("a result whose numbers are not finite")
        if self._sealed or header.chunk in self.machine.entries:
            return
        self._result[span.encoded] = landing.buffer
        self._buffers.give(landing.buffer)
        self._statements[header.chunk] = envelope
        if not self.machine.is_reducing(header.chunk):  # else who averages them drops them
            self._drop_parts(header.chunk)
        self._apply(self.machine.result_arrived(peer, header.chunk, body.entry, trio.current_time()))

    def _drop_parts(self, chunk: int) -> None:
        """Nothing reads the parts of this chunk any more."""
        for key in [key for key in self._parts if key[0] == chunk]:
            self._buffers.give(self._parts.pop(key))
        self._free_room()

    def _free_room(self) -> None:
        self._room.set()
        self._room = trio.Event()


def _judge(count: int, data: memoryview) -> tuple[Hash, bool]:
    """The name of a chunk, and whether its numbers are finite.  For a worker thread."""
    return chunk_hash(data), is_sane(data, count)


def _average(rule: Rule, parts: Sequence[memoryview], weights: Sequence[int], count: int, into: memoryview) -> Hash:
    """Average into `into`; its name.  For a worker thread."""
    aggregate(rule, parts, weights, count, into)
    return chunk_hash(into)


class _Buffers:
    """Memory for chunks, used again: fresh memory costs as much as filling it."""

    def __init__(self) -> None:
        self._spare: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        spare = self._spare.get(size)
        return spare.pop() if spare else memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Only when nothing uses it any more."""
        spare = self._spare.setdefault(len(buffer), [])
        if len(spare) < PART_BUFFERS:
            spare.append(buffer)
