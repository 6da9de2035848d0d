"""The bulk data plane: pushes of large chunks over their own TCP sockets, straight into the receiver's buffer.

A socket is agreed over a libp2p stream that has authenticated both peer IDs, and comes to the port at which we listen for
libp2p: its first byte tells it from others.  Decides how many sockets there may be, and how long a handshake may take;
`sending` and `receiving` move pushes over them, and the handlers choose the buffers.
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

from protocol.network.interface import (
    MAX_PUSH_BYTES,
    MAX_PUSH_HEADER_BYTES,
    Bandwidth,
    Handlers,
    Members,
    NetworkError,
    Unreachable,
)
from protocol.network.libp2p.bulk_places import displaced
from protocol.network.libp2p.doorstep import Doorstep, GoneAway, receive, send
from protocol.network.libp2p.ends import socket_of
from protocol.network.libp2p.flows import MAX_FLOWS
from protocol.network.libp2p.library import Host, MuxedConnection, TaskStatus, peer_id_of
from protocol.network.libp2p.link import MAC_BYTES, NONCE_BYTES, TOKEN_BYTES, Keys, Link, LinkBroken, socket_state, states_of
from protocol.network.libp2p.rate_limit import RateLimit
from protocol.network.libp2p.rates import WINDOW_S, Gauge
from protocol.network.libp2p.receiving import Receiving
from protocol.network.libp2p.reputation import EXCESS, Reputation
from protocol.network.libp2p.sending import Sending
from protocol.network.libp2p.short_questions import answer_with, ask
from protocol.short_id import short_id
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FIRST_BYTE = b"\xb1"
"""Of a bulk socket; libp2p's begin with the length of the name of its first protocol, 19."""
HANDSHAKE_S = 5.0
GRANT_S = 20.0
"""How long a grant is good: where a router stands between, a way is looked for first."""
MAX_LINKS = 256
"""Accepted from all peers; members take the places of strangers."""
MAX_LINKS_PER_PEER = 4 * MAX_FLOWS
"""Accepted from one peer: those it uses, for what is urgent and for what is not, and as many that broke unnoticed."""
log = logging.getLogger(__name__)
Reach = Callable[[PeerId, MuxedConnection, int], Awaitable[trio.socket.SocketType]]
"""Opens a socket to the port of a peer, which is connected.  Raises `LinkBroken` or OSError."""
_GRANT = struct.Struct(f">H{TOKEN_BYTES}s{NONCE_BYTES}s")


class Bulk:
    """Pushes to and from all peers, for as long as `run` runs.  up, down: the limits of both directions."""

    def __init__(
        self,
        host: Host,
        run: Hash,
        handlers: Handlers,
        reputation: Reputation,
        up: RateLimit,
        down: RateLimit,
        congestion: str,
        doorstep: Doorstep,
        reach: Reach,
    ) -> None:
        """reach: opens sockets.  doorstep: for those that come to us and have proved nothing yet."""
        self._host = host
        self._me = peer_id_of(host.get_id())
        self._run = run
        self._protocol = f"/manyhands/1/{bytes(run).hex()[:16]}/bulk"
        self._members: Members = handlers
        self._congestion = congestion.encode()
        self._doorstep, self._reach = doorstep, reach
        self._reputation = reputation
        self._up, self._down, self._gauge = up, down, Gauge()
        self._sending = Sending(self._dial, up)
        self._spare = Sending(self._dial, up, first=self._sending)
        self._receiving = Receiving(handlers, down, reputation)
        self._links: dict[PeerId, list[Link]] = {}
        self._granted: dict[bytes, tuple[PeerId, Keys, float]] = {}
        """For whom each token is good, with which keys, and until when."""
        self._port = 0
        self._nursery: trio.Nursery | None = None
        answer_with(host, self._protocol, NONCE_BYTES, self._grant, HANDSHAKE_S)

    @property
    def up_bytes(self) -> int:
        """Bytes of data pushed since the start."""
        return self._sending.up_bytes + self._spare.up_bytes

    @property
    def down_bytes(self) -> int:
        """Bytes of data that were pushed to us since the start."""
        return self._receiving.down_bytes

    def bandwidth(self) -> Bandwidth:
        """What the links have lately been seen to carry, within our limits."""
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
        """Push, and answer those who want to, until cancelled.  port: where we listen, for libp2p and for bulk sockets."""
        async with trio.open_nursery() as nursery:
            self._port, self._nursery = port, nursery
            task_status.started()
            await self._watch_bandwidth()

    def cut_off(self, peer: PeerId) -> None:
        """End the sockets on which `peer` pushes to us; it is banned."""
        for link in self._links.get(peer, []):
            link.abort("the peer is banned")

    def disconnected(self, peer: PeerId) -> None:
        """Close our sockets to a peer that is not connected any more."""
        self._sending.disconnected(peer)
        self._spare.disconnected(peer)

    async def push(
        self, peer: PeerId, header: bytes, data: memoryview, timeout_s: float, *, spare: bool, on_sent: Callable[[], None]
    ) -> None:
        """Push `data` to `peer`.  Raises `Refused`, `Unreachable`, and `NetworkError` for more than the limits."""
        data = data.cast("B")
        if len(header) > MAX_PUSH_HEADER_BYTES or len(data) > MAX_PUSH_BYTES:
            raise NetworkError(f"a push of {len(header)} + {len(data)} bytes is over the limit")
        assert self._nursery is not None
        with trio.move_on_after(timeout_s) as scope:
            await (self._spare if spare else self._sending).push(self._nursery, peer, header, data, on_sent)
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
                    raise LinkBroken("the bulk connection reached somebody else")
            return Link(self._bare(sock), keys, dialled=True)
        except (GoneAway, trio.TooSlowError) as error:
            sock.close()
            raise LinkBroken(f"the bulk socket broke: {error!r}") from error
        except BaseException:
            sock.close()
            raise

    def _bare(self, sock: trio.socket.SocketType) -> socket.socket:
        """The socket without trio, with our congestion control if the kernel lets us."""
        bare = socket.socket(fileno=sock.detach())
        if hasattr(socket, "TCP_CONGESTION"):
            with suppress(OSError):
                bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion)
        return bare

    async def _grant(self, peer: PeerId, connection: MuxedConnection, theirs: bytes) -> bytes:
        """The port, the token and the nonce for one socket of `peer`.  Raises `LinkBroken`."""
        now = trio.current_time()
        self._granted = {token: grant for token, grant in self._granted.items() if now < grant[2]}
        if not self._has_room(peer) or self._nursery is None:
            raise LinkBroken("too many bulk connections")
        token, nonce = os.urandom(TOKEN_BYTES), os.urandom(NONCE_BYTES)
        self._granted[token] = (peer, Keys.agree(self._run, peer, self._me, token, theirs + nonce), now + GRANT_S)
        return _GRANT.pack(self._port, token, nonce)

    def _has_room(self, peer: PeerId) -> bool:
        """Whether `peer` may have another link; a link of somebody else may end for it."""
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
        """Authenticate a socket and serve its pushes until it ends; a stranger costs 49 bytes and five seconds.

        address: of the other end.
        """
        try:
            with self._doorstep.waits(sock, address), trio.fail_after(HANDSHAKE_S):
                hello = (await receive(sock, len(FIRST_BYTE) + TOKEN_BYTES + MAC_BYTES))[len(FIRST_BYTE) :]
                peer, keys, until = self._granted.pop(hello[:TOKEN_BYTES])
                if trio.current_time() > until:
                    raise LinkBroken("a grant that is not good any more")
                if not hmac.compare_digest(hello[TOKEN_BYTES:], keys.proof(b"dialer")):
                    raise LinkBroken("a false proof")
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
    """The shortest round trip on a connection of the library; infinite where it is not known."""
    sock = socket_of(connection)
    state = socket_state(sock) if sock is not None else None
    return state.least_rtt_s if state is not None and state.least_rtt_s else inf
