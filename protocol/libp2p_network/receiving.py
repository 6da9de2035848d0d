"""The receiving end of a bulk link: one push after the other into the buffers that the handlers name.

A refused push is answered at once and its data read past, so the link stays in step.  While a handler looks for a
buffer nothing is read: TCP holds the sender back.
"""

from __future__ import annotations

import logging
import struct

import trio

from protocol.identity import PeerId
from protocol.libp2p_network.link import FRAME_BYTES, TAG_BYTES, FrameKind, Link, LinkBroken, in_worker
from protocol.network import MAX_PUSH_BYTES, MAX_PUSH_HEADER_BYTES, Handlers

MAX_THREADS = 64
SLOWEST_BYTES_PER_S = 32 << 10
"""A push that comes slower than this (after a grace of `GRACE_S`) is given up, to free its buffer."""
GRACE_S = 30.0

log = logging.getLogger(__name__)


class Receiving:
    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._threads = trio.CapacityLimiter(MAX_THREADS)
        self.down_bytes = 0

    async def serve(self, peer: PeerId, link: Link) -> None:
        """Until the link breaks or this is cancelled."""
        try:
            while True:
                await link.readable()
                await self._one(peer, link)
        except LinkBroken as error:
            log.debug("the bulk link from %s ended: %s", peer, error)

    async def _one(self, peer: PeerId, link: Link) -> None:
        number, size, header = await self._opening(link)
        try:
            buffer = await self._handlers.open_push(peer, header, size)
        except Exception:
            log.exception("the handler of pushes failed")
            buffer = None
        if buffer is None:
            link.send_small(FrameKind.ANSWER, number, b"\0refused")
            await self._data(link, number, size, None)
            return
        complete = False
        try:
            complete = await self._data(link, number, size, buffer.cast("B"))
        finally:
            accepted = await self._finish(peer, header, buffer if complete else None)
        answer = b"\1" if accepted else b"\0the receiver could not use it"
        link.send_small(FrameKind.ANSWER, number, answer)

    async def _finish(self, peer: PeerId, header: bytes, buffer: memoryview | None) -> bool:
        with trio.CancelScope(shield=buffer is None):
            try:
                await self._handlers.finish_push(peer, header, buffer)
            except Exception:
                log.exception("the handler of pushes failed")
                return False
        return True

    async def _opening(self, link: Link) -> tuple[int, int, bytes]:
        found: list[tuple[int, bytes]] = []

        def work() -> None:
            kind, number, size, head = link.receive_head()
            if kind is FrameKind.ABANDON and size == 0:  # crossed the last data of a push that was refused
                link.receive_body(head, memoryview(bytearray()), bytearray(TAG_BYTES))
                kind, number, size, head = link.receive_head()
            if kind is not FrameKind.OPEN or not 8 <= size <= 8 + MAX_PUSH_HEADER_BYTES:
                raise LinkBroken("a push without a beginning")
            plain = bytearray(size)
            link.receive_body(head, memoryview(plain), bytearray(size + TAG_BYTES))
            found.append((number, bytes(plain)))

        await in_worker(link, self._threads, work)
        number, plain = found[0]
        (size,) = struct.unpack_from(">Q", plain)
        if size > MAX_PUSH_BYTES:
            raise LinkBroken("an oversized push")
        return number, size, plain[8:]

    async def _data(self, link: Link, number: int, size: int, dest: memoryview | None) -> bool:
        """Read the data of one push, into `dest` or past; False when it broke off in good order."""
        ended: list[bool] = []

        def work() -> None:
            scratch = bytearray(min(size, FRAME_BYTES) + TAG_BYTES)
            past = bytearray(min(size, FRAME_BYTES)) if dest is None else bytearray()
            offset = 0
            while offset < size:
                kind, value, length, head = link.receive_head()
                if kind is FrameKind.ABANDON and value == number and length == 0:
                    link.receive_body(head, memoryview(bytearray()), scratch)
                    ended.append(False)
                    return
                if kind is not FrameKind.DATA or value != offset or not 0 < length <= size - offset:
                    link.abort("data out of order")
                    raise LinkBroken(link.why)
                here = memoryview(past)[:length] if dest is None else dest[offset : offset + length]
                link.receive_body(head, here, scratch)
                offset += length
                self.down_bytes += length
            ended.append(True)

        with trio.move_on_after(GRACE_S + size / SLOWEST_BYTES_PER_S) as scope:
            await in_worker(link, self._threads, work)
        if scope.cancelled_caught:
            raise LinkBroken("the push came too slowly")
        return ended[0]
