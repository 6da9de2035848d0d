"""The receiving end of a bulk link: one push after the other into the buffers that the handlers name.

A refused push is answered at once and its data read past, so the link stays in step.  While a handler looks for a
buffer nothing is read: TCP holds the sender back.
"""

from __future__ import annotations

import logging
import struct

import trio

from protocol.network.interface import MAX_PUSH_BYTES, Handlers, Landing, Offence
from protocol.network.libp2p.link import FRAME_OVERHEAD_BYTES, FrameKind, Link, LinkBroken
from protocol.network.libp2p.rate_limit import RateLimit
from protocol.network.libp2p.reputation import SLOWNESS, VIOLATION, Channel, Reputation
from protocol.wire.identity import PeerId

MAX_THREADS = 8
AT_ONCE_BYTES = 2 << 20
"""A push of at most this size is checked in the event loop: that costs less than handing it to a thread and back."""
SLOWEST_BYTES_PER_S = 32 << 10
"""A push that comes slower than this (after a grace of `GRACE_S`) is abandoned, to free its buffer."""
GRACE_S = 30.0

log = logging.getLogger(__name__)


class BadPush(LinkBroken):
    """The sender broke the rules of a link, which ends.  penalty: what that takes from its reputation."""

    def __init__(self, why: str, penalty: float = VIOLATION) -> None:
        super().__init__(why)
        self.penalty = penalty


class Receiving:
    """Receives the pushes of all peers.  down_bytes: of data, since the start."""

    def __init__(self, handlers: Handlers, limit: RateLimit, reputation: Reputation) -> None:
        self._handlers, self._reputation = handlers, reputation
        self._limit = limit
        self._threads = trio.CapacityLimiter(MAX_THREADS)
        self.down_bytes = 0

    async def serve(self, peer: PeerId, link: Link) -> None:
        """Receive pushes until the link breaks or this is cancelled; raises nothing."""
        try:
            while True:
                await self._one(peer, link)
                await trio.lowlevel.checkpoint()
        except LinkBroken as error:
            log.debug("the bulk link from %s ended: %s", peer, error)
            if isinstance(error, BadPush):
                self._reputation.penalise(peer, error.penalty, str(error))

    async def _one(self, peer: PeerId, link: Link) -> None:
        number, size, header = await self._opening(link)
        if not self._reputation.spend(peer, Channel.PUSH):
            raise LinkBroken("more pushes than its allowance")
        try:
            landing = await self._handlers.open_push(peer, header, size)
        except Exception:
            log.exception("the handler of pushes failed")
            landing = None
        if landing is None:
            link.send_small(FrameKind.ANSWER, number, b"\0refused")
            await self._data(link, number, size, None)
            return
        complete = False
        try:
            complete = await self._data(link, number, size, landing)
        finally:
            accepted = await self._finish(peer, header, landing if complete else None)
        answer = b"\1" if accepted else b"\0the receiver could not use it"
        link.send_small(FrameKind.ANSWER, number, answer)

    async def _finish(self, peer: PeerId, header: bytes, landing: Landing | None) -> bool:
        with trio.CancelScope(shield=landing is None):
            try:
                await self._handlers.finish_push(peer, header, landing)
            except Offence as offence:
                self._reputation.penalise(peer, VIOLATION, str(offence))
                return False
            except Exception:
                log.exception("the handler of pushes failed")
                return False
        return True

    async def _opening(self, link: Link) -> tuple[int, int, bytes]:
        with trio.move_on_after(GRACE_S) as scope:
            kind, number, plain = await link.receive_small()
            if kind is FrameKind.ABANDON and not plain:  # crossed the last data of a push that was refused
                kind, number, plain = await link.receive_small()
        if scope.cancelled_caught and link.between_frames:
            raise LinkBroken("nothing to receive")
        if scope.cancelled_caught:
            raise BadPush("a push that does not begin", SLOWNESS)
        if kind is not FrameKind.OPEN or len(plain) < 8:
            raise BadPush("a push without a beginning")
        (size,) = struct.unpack_from(">Q", plain)
        if size > MAX_PUSH_BYTES:
            raise BadPush("an oversized push")
        return number, size, plain[8:]

    async def _data(self, link: Link, number: int, size: int, landing: Landing | None) -> bool:
        """Read the data of one push into its landing, or past it if there is none; False when its sender abandoned it."""
        dest = landing.buffer.cast("B") if landing is not None else None
        offset = 0
        with trio.move_on_after(GRACE_S + size / self._limit.slowest(SLOWEST_BYTES_PER_S)) as scope:
            while offset < size:
                kind, value, length = await link.receive_head()
                if kind is FrameKind.ABANDON and value == number and length == 0:
                    await link.skip_body(0)
                    return False
                if kind is not FrameKind.DATA or value != offset or not 0 < length <= size - offset:
                    raise BadPush("data out of order")
                await self._keep_to_the_limit(link, length)
                if dest is None:
                    await link.skip_body(length)
                else:
                    await link.receive_body(dest[offset : offset + length])
                offset += length
                self.down_bytes += length
                if landing is not None:
                    landing.on_bytes()
        if scope.cancelled_caught:
            raise BadPush("a push that comes too slowly", SLOWNESS)
        if landing is not None and size <= AT_ONCE_BYTES:
            landing.complete()
        elif landing is not None:
            await trio.to_thread.run_sync(landing.complete, limiter=self._threads)
        return True

    async def _keep_to_the_limit(self, link: Link, length: int) -> None:
        """Before a frame with so much data is taken: let it come piece by piece, for the sender may know no limit."""
        if self._limit.bytes_per_s is None:
            return
        step = self._limit.frame(length)
        for at in range(0, length, step):
            await self._limit.pay(min(step, length - at) + FRAME_OVERHEAD_BYTES * (at == 0))
            await link.has_come(min(at + step, length))
