"""The bulk data plane: pushes of large chunks over their own TCP sockets, straight into the receiver's buffer.

The two peers agree on a bulk socket over a libp2p stream, which has authenticated both peer IDs.  A bulk socket arrives at
our libp2p port, and its first byte identifies it.  This module limits the number of sockets and the time of a handshake.
`bulk_sending` and `Receiving` move pushes over the sockets, and the handlers choose the buffers.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from math import inf

import trio

from protocol.short_id import short_id
from protocol.transport.bulk_flows import FAR_SOCKETS, WINDOW_S, Gauge
from protocol.transport.bulk_link import (
    FRAME_OVERHEAD_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    TOKEN_BYTES,
    FrameKind,
    Keys,
    Link,
    LinkBroken,
    socket_state,
    states_of,
)
from protocol.transport.bulk_sending import Sending
from protocol.transport.host import RunHost
from protocol.transport.interface import (
    MAX_PUSH_BYTES,
    MAX_PUSH_HEADER_BYTES,
    Bandwidth,
    Handlers,
    Landing,
    Members,
    NetworkError,
    Offence,
    Unreachable,
)
from protocol.transport.library import MuxedConnection, TaskStatus, peer_id_of
from protocol.transport.limits import EXCESS, SLOWNESS, VIOLATION, Channel, Reputation, displaced
from protocol.transport.rate_limit import RateLimit
from protocol.transport.sockets import GoneAway, receive, send, socket_of
from protocol.transport.streams import answer_with, ask
from protocol.transport.task_group import TaskGroup
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The receiving end of a bulk link: it receives one push after another into the buffers that the handlers provide.
#
# A refused push is answered at once and its data is skipped, so both ends agree on the next frame.  We read nothing while a
# handler looks for a buffer, so TCP holds the sender back.


MAX_THREADS = 8
AT_ONCE_BYTES = 2 << 20
"""Largest push that is checked in the event loop, which costs less than handing it to a thread and back."""
SLOWEST_BYTES_PER_S = 32 << 10
"""Rate below which a push is abandoned (after a grace of `GRACE_S`), to free its buffer."""
GRACE_S = 30.0

log = logging.getLogger(__name__)


class BadPush(LinkBroken):
    """A violation of the link's rules by the sender; the link ends.  penalty: points charged to the sender's reputation."""

    def __init__(self, why: str, penalty: float = VIOLATION) -> None:
        super().__init__(why)
        self.penalty = penalty


class Receiving:
    """The receiver of the pushes of all peers.  down_bytes: data received since the start."""

    def __init__(self, handlers: Handlers, limit: RateLimit, reputation: Reputation) -> None:
        self._handlers, self._reputation = handlers, reputation
        self._limit = limit
        self._threads = trio.CapacityLimiter(MAX_THREADS)
        self.down_bytes = 0

    async def serve(self, peer: PeerId, link: Link) -> None:
        """Receive pushes until the link breaks or we are cancelled.  Raises no exception of its own."""
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
            raise LinkBroken("the peer has sent more pushes than its allowance")
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
            if kind is FrameKind.ABANDON and not plain:  # sent before the sender had pushed all data of a refused push
                kind, number, plain = await link.receive_small()
        if scope.cancelled_caught and link.between_frames:
            raise LinkBroken("no push arrived in time")
        if scope.cancelled_caught:
            raise BadPush("the header of a push did not arrive in time", SLOWNESS)
        if kind is not FrameKind.OPEN or len(plain) < 8:
            raise BadPush("a push without a header")
        (size,) = struct.unpack_from(">Q", plain)
        if size > MAX_PUSH_BYTES:
            raise BadPush("an oversized push")
        return number, size, plain[8:]

    async def _data(self, link: Link, number: int, size: int, landing: Landing | None) -> bool:
        """Read the data of a push into `landing`; skip the data if it is None.  Return False if the sender abandoned it."""
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
            raise BadPush("a push that arrives too slowly", SLOWNESS)
        if landing is not None and size <= AT_ONCE_BYTES:
            landing.complete()
        elif landing is not None:
            await trio.to_thread.run_sync(landing.complete, limiter=self._threads)
        return True

    async def _keep_to_the_limit(self, link: Link, length: int) -> None:
        """Let a frame with `length` bytes of data arrive piece by piece within our limit, which the sender may not know."""
        if self._limit.bytes_per_s is None:
            return
        step = self._limit.frame(length)
        for at in range(0, length, step):
            await self._limit.pay(min(step, length - at) + FRAME_OVERHEAD_BYTES * (at == 0))
            await link.has_come(min(at + step, length))


# ------------------------------------------------------------------------------------------------------------------------


FIRST_BYTE = b"\xb1"
"""First byte of a bulk socket.  libp2p's sockets begin with the length of the name of the first protocol, 19."""
HANDSHAKE_S = 5.0
GRANT_S = 20.0
"""Seconds for which a grant is valid: if there is a router in between, the dialler must first find a path."""
MAX_LINKS = 256
"""Most links accepted from all peers; members displace strangers."""
MAX_LINKS_PER_PEER = 4 * FAR_SOCKETS
"""Most links accepted from one peer: `FAR_SOCKETS` for normal pushes, as many for spare ones, and twice that number for
links that broke without our notice."""
Reach = Callable[[PeerId, MuxedConnection, int], Awaitable[trio.socket.SocketType]]
"""Function that opens a socket to a port of a connected peer.  It raises `LinkBroken` or OSError on failure."""
_GRANT = struct.Struct(f">H{TOKEN_BYTES}s{NONCE_BYTES}s")


class Bulk:
    """Pushes to and from all peers, while `run` runs.  congestion: the congestion control.  reach: opens sockets."""

    def __init__(self, own: RunHost, congestion: str, reach: Reach) -> None:
        self._host, self._run = own.host, own.run
        self._me = peer_id_of(own.host.get_id())
        self._protocol = own.protocol("bulk")
        self._members: Members = own.handlers
        self._congestion = congestion.encode()
        self._doorstep, self._reach = own.doorstep, reach
        self._reputation = own.reputation
        self._up, self._down, self._gauge = own.line.up, own.line.down, Gauge()
        self._sending = Sending(self._dial, self._up)
        self._spare = Sending(self._dial, self._up, first=self._sending)
        self._receiving = Receiving(own.handlers, self._down, own.reputation)
        self._links: dict[PeerId, list[Link]] = {}
        self._granted: dict[bytes, tuple[PeerId, Keys, float]] = {}
        """By token: the peer that may use the token, the keys, and the time at which the token expires."""
        self._port = 0
        self._tasks = TaskGroup()
        answer_with(own.host, self._protocol, NONCE_BYTES, self._grant, HANDSHAKE_S)

    @property
    def up_bytes(self) -> int:
        """Bytes of data pushed since the start."""
        return self._sending.up_bytes + self._spare.up_bytes

    @property
    def down_bytes(self) -> int:
        """Bytes of data pushed to us since the start."""
        return self._receiving.down_bytes

    def links_to(self, peer: PeerId) -> list[Link]:
        """Return the open sockets from and to a peer."""
        return [*self._links.get(peer, []), *self._sending.links_to(peer), *self._spare.links_to(peer)]

    def bandwidth(self) -> Bandwidth:
        """Return the measured rates of the links, within our limits."""
        return Bandwidth(self._up.at_most(self._gauge.up_bytes_per_s), self._down.at_most(self._gauge.down_bytes_per_s))

    async def _watch_bandwidth(self) -> None:
        while True:
            accepted = [link for links in self._links.values() for link in links]
            now = trio.current_time()
            states = states_of((*accepted, *self._sending.links(), *self._spare.links()))
            busy = set[Hashable](self._sending.busy_links())
            sending = {link: state for link, state in states.items() if link in busy}
            self._gauge.read(states, now, self._sending.offered(), sending)
            for end in (self._sending, self._spare):
                end.measure(self._gauge.offer_bytes_per_s, self._gauge.line_bytes_per_s, now)
            await trio.sleep(WINDOW_S)

    async def run(self, port: int, *, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Send pushes, and grant sockets on request, until cancelled.  port: our port for libp2p and bulk sockets."""
        async with self._tasks.open():
            self._port = port
            task_status.started()
            await self._watch_bandwidth()

    def cut_off(self, peer: PeerId) -> None:
        """End the sockets on which a banned peer pushes to us."""
        for link in self._links.get(peer, []):
            link.abort("the peer is banned")

    def disconnected(self, peer: PeerId) -> None:
        """Close our sockets to a peer that is no longer connected."""
        self._sending.disconnected(peer)
        self._spare.disconnected(peer)

    async def push(
        self, peer: PeerId, header: bytes, data: memoryview, timeout_s: float, *, spare: bool, on_sent: Callable[[], None]
    ) -> None:
        """Push `data` to `peer`.  Raises `Refused`, `Unreachable`, and `NetworkError` for a push over the limits."""
        data = data.cast("B")
        if len(header) > MAX_PUSH_HEADER_BYTES or len(data) > MAX_PUSH_BYTES:
            raise NetworkError(f"a push of {len(header)} + {len(data)} bytes is over the limit")
        if not self._tasks.is_open:
            raise Unreachable("our network is closed")
        with trio.move_on_after(timeout_s) as scope:
            await (self._spare if spare else self._sending).push(self._tasks.start, peer, header, data, on_sent)
        if scope.cancelled_caught:
            raise Unreachable(f"{short_id(peer)} did not take a push of {len(data)} bytes within {timeout_s:g} s")

    async def _dial(self, peer: PeerId) -> Link:
        nonce = os.urandom(NONCE_BYTES)
        try:
            granted, connection = await ask(self._host, peer, self._protocol, nonce, _GRANT.size, HANDSHAKE_S)
        except Unreachable as error:
            raise LinkBroken(f"no bulk connection: {error}") from error
        port, token, theirs = _GRANT.unpack(granted)
        keys = Keys.agree(self._run, self._me, peer, token, nonce + theirs)
        link = await self._prove(await self._reach(peer, connection, port), token, keys)
        link.way_s = _way_s(connection)
        return link

    async def _prove(self, sock: trio.socket.SocketType, token: bytes, keys: Keys) -> Link:
        try:
            with trio.fail_after(HANDSHAKE_S):
                await send(sock, FIRST_BYTE + token + keys.proof(b"dialer"))
                if not hmac.compare_digest(await receive(sock, MAC_BYTES), keys.proof(b"listener")):
                    raise LinkBroken("the bulk connection reached another peer")
            return Link(self._bare(sock), keys, dialled=True)
        except (GoneAway, trio.TooSlowError) as error:
            sock.close()
            raise LinkBroken(f"the bulk socket broke: {error!r}") from error
        except BaseException:
            sock.close()
            raise

    def _bare(self, sock: trio.socket.SocketType) -> socket.socket:
        """Detach the socket from trio and return it, with our congestion control if the kernel lets us set it."""
        bare = socket.socket(fileno=sock.detach())
        if hasattr(socket, "TCP_CONGESTION"):
            with suppress(OSError):
                bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion)
        return bare

    async def _grant(self, peer: PeerId, connection: MuxedConnection, theirs: bytes) -> bytes:
        """Return the port, the token and our nonce for one socket of `peer`.  Raises `LinkBroken`."""
        now = trio.current_time()
        self._granted = {token: grant for token, grant in self._granted.items() if now < grant[2]}
        if not self._has_room(peer) or not self._tasks.is_open:
            raise LinkBroken("too many bulk connections")
        token, nonce = os.urandom(TOKEN_BYTES), os.urandom(NONCE_BYTES)
        self._granted[token] = (peer, Keys.agree(self._run, peer, self._me, token, theirs + nonce), now + GRANT_S)
        return _GRANT.pack(self._port, token, nonce)

    def _has_room(self, peer: PeerId) -> bool:
        """Return True if `peer` may have another link, which may end a link of another peer."""
        taken = Counter(other for other, _, _ in self._granted.values())
        taken.update({other: sum(not link.broken for link in links) for other, links in self._links.items()})
        if taken[peer] >= MAX_LINKS_PER_PEER:
            self._reputation.penalise(peer, EXCESS, "too many bulk connections")
            return False
        if taken.total() < MAX_LINKS:
            return True
        loser = displaced(peer, taken, self._members)
        if loser is None:
            return False
        link = next((link for link in reversed(self._links.get(loser, [])) if not link.broken), None)
        if link is not None:
            link.abort("another peer needs its place")
        else:
            self._granted.pop(next(token for token, (other, _, _) in self._granted.items() if other == loser))
        return True

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Authenticate a socket and serve its pushes until it ends.

        A stranger can cost us at most 49 bytes and `HANDSHAKE_S`.  address: the address group of the other end.
        """
        try:
            with self._doorstep.waits(sock, address), trio.fail_after(HANDSHAKE_S):
                hello = (await receive(sock, len(FIRST_BYTE) + TOKEN_BYTES + MAC_BYTES))[len(FIRST_BYTE) :]
                peer, keys, until = self._granted.pop(hello[:TOKEN_BYTES])
                if trio.current_time() > until:
                    raise LinkBroken("the grant has expired")
                if not hmac.compare_digest(hello[TOKEN_BYTES:], keys.proof(b"dialer")):
                    raise LinkBroken("the proof is false")
                await send(sock, keys.proof(b"listener"))
        except (OSError, KeyError, LinkBroken, GoneAway, trio.TooSlowError, trio.ClosedResourceError) as error:
            log.debug("a bulk socket was turned away: %r", error)
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        link = Link(self._bare(sock), keys, dialled=False)
        if (buffer_bytes := self._down.buffer_bytes()) is not None:
            link.hold_back(buffer_bytes)
        links = self._links.setdefault(peer, [])
        links.append(link)
        try:
            await self._receiving.serve(peer, link)
        finally:
            link.close()
            links.remove(link)
            if not links and self._links.get(peer) is links:
                del self._links[peer]


def _way_s(connection: object) -> float:
    """Return the shortest round trip on a connection of the library; infinite if unknown."""
    sock = socket_of(connection)
    state = socket_state(sock) if sock is not None else None
    return state.least_rtt_s if state is not None and state.least_rtt_s else inf
