"""Pushes from other members: room for them, their checks, and where they go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from kernels.layout import Layout
from protocol.events import Dropped, Event
from protocol.exchange.averaging import examine
from protocol.exchange.buffers import BufferPool, WaitingParts
from protocol.exchange.chunks import Results
from protocol.exchange.events import Heard, Moving, PartArrived, ResultArrived, SignedEarly
from protocol.exchange.machine import ExchangeMachine
from protocol.exchange.messages import PushHeader, read_header
from protocol.network.interface import MALFORMED, Landing, Offence
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, verify_proof
from protocol.wire.identity import PeerId
from protocol.wire.masks import members_in
from protocol.wire.messages import ChunkResult, unpack


class Receiver:
    """Takes the pushes of one exchange.  down_bytes: headers and chunks taken so far.

    run: the run that statements are signed for.  emit: told of what is dropped.
    """

    def __init__(
        self,
        machine: ExchangeMachine,
        layout: Layout,
        run: Hash,
        parts: WaitingParts,
        results: Results,
        pool: BufferPool,
        emit: Callable[[Event], None],
    ) -> None:
        self.down_bytes = 0
        self._machine, self._layout, self._run = machine, layout, run
        self._parts, self._results, self._pool, self._emit = parts, results, pool, emit
        self._moved: dict[PeerId, None] = {}

    def moving(self) -> list[Moving]:
        """Whose bytes have come since the last call, and who waits for room here."""
        moved, self._moved = self._moved, {}
        return [*(Moving(peer, held=False) for peer in moved), *(Moving(peer, held=True) for peer in self._parts.held())]

    async def open(self, peer: PeerId, raw: bytes, size: int) -> Landing | None:
        """A buffer for a part or a result that we can use, else None; waits while the sender has its share of buffers.

        raw: the header, known to be well formed.
        """
        header = read_header(raw)
        if header.fragment != self._machine.plan.fragment or header.chunk >= self._machine.chunks:
            return None
        if not self._parts.takes_from(peer):
            return None
        if size != self._layout[header.chunk].size or self._results.released:
            return None
        self._machine.handle(Heard(peer), trio.current_time())
        if header.statement is not None:
            if not self._is_due(peer, header):
                return None
        elif (header.chunk, peer) in self._parts:
            return None
        else:
            await self._parts.reserve(peer)
        check = partial(examine, self._layout[header.chunk].count)
        return Landing(self._pool.take(size), check, on_bytes=partial(self._note_bytes, peer))

    def _note_bytes(self, peer: PeerId) -> None:
        self._moved[peer] = None

    def _is_due(self, peer: PeerId, header: PushHeader) -> bool:
        """Whether to take this result."""
        machine = self._machine
        if header.chunk in machine.entries:
            return False
        try:
            signer, _, _ = self._signed(header)
        except Malformed as error:
            self._emit(Dropped(peer, "chunk", str(error)))
            return False
        if not machine.succession.may_sign(signer, header.chunk):
            machine.handle(SignedEarly(signer, header.chunk), trio.current_time())
            return False
        return True

    def finish(self, peer: PeerId, raw: bytes, landing: Landing | None) -> PartArrived | ResultArrived | None:
        """The push that `open` accepted is complete; landing: None when it broke off.  Returns the event for the machine.

        Raises `Offence` for what its sender should have seen to be wrong.
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
        leaf, sane = landing.found
        proof = [Hash(node) for node in header.proof]
        if not verify_proof(Hash(member.root), self._machine.chunks, chunk, leaf, proof):
            raise Malformed("a part that is not what its sender committed to")
        if not sane:
            raise Malformed("a part whose numbers are not finite")
        if chunk not in self._machine.entries:
            self._parts.put(chunk, peer, landing.buffer)
        return PartArrived(peer, chunk)

    def _take_result(self, peer: PeerId, header: PushHeader, landing: Landing) -> ResultArrived | None:
        signer, body, envelope = self._signed(header)
        name, sane = landing.found
        if name != body.entry.hash:
            raise Malformed("a result that is not what its owner signed")
        if not sane:
            raise Malformed("a result whose numbers are not finite")
        if self._results.released or header.chunk in self._machine.entries:
            return None
        self._results.put(header.chunk, landing.buffer, envelope)
        self._pool.give(landing.buffer)
        if not self._machine.is_reducing(header.chunk):  # else the averaging drops them when it is through
            self._parts.drop(header.chunk)
        return ResultArrived(peer, header.chunk, body.entry, signer)

    def _signed(self, header: PushHeader) -> tuple[PeerId, ChunkResult, Envelope]:
        """Who signed the result that this header announces, and what; raises `Malformed`."""
        assert header.statement is not None
        signer, body, envelope = unpack(header.statement, self._run)
        if not isinstance(body, ChunkResult) or signer not in self._machine.members:
            raise Malformed("a result that no member signed")
        if body.plan != self._machine.name or body.chunk != header.chunk:
            raise Malformed("a result of another exchange")
        members_in(body.entry.mask, len(self._machine.members))
        return signer, body, envelope
