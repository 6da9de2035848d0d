"""A libp2p host with our settings: only TCP, Noise and yamux, no logging, and our limits instead of the library's policy.

This module never reconnects: `dialer` decides when a peer is dialled.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

import trio

from protocol.transport import library
from protocol.transport.addresses import listening_hosts
from protocol.transport.interface import Handlers, NetworkError
from protocol.transport.library import Connection, Host, HostConnections, LibraryId, peer_id_of
from protocol.transport.limits import ABUSE, EXCESS, Channel, Doorstep, Reputation
from protocol.transport.rate_limit import RateLimit
from protocol.transport.streams import guard_streams
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

if TYPE_CHECKING:
    from libp2p.abc import IMuxedConn, ISecureConn
    from libp2p.peer.id import ID
    from libp2p.rcmgr.manager import ResourceManager
    from libp2p.stream_muxer.yamux.yamux import Yamux


# ------------------------------------------------------------------------------------------------------------------------
# Limits on one libp2p connection for all its protocols: frames, streams and unread bytes.
#
# The library announces a receive window for each stream but accepts more, and it opens any number of streams.  Here both are
# limited.


MAX_STREAMS_PER_PEER = 48
"""Most open streams from one peer: its questions, its gossip, and the handshakes of its bulk sockets."""
MAX_FRAME_BYTES = 1 << 20
"""Largest frame of yamux; every honest peer sends at most 64 KiB."""


def limit_connections(swarm: HostConnections, reputation: Reputation) -> None:
    """Limit the frames and the unread bytes of every connection of `swarm` from now on.  All of them use yamux."""
    muxers, limited = swarm.upgrader.muxer_multistream, _limited_yamux(reputation)

    async def new_connection(conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await muxers._selector.select(conn, conn.is_initiator, muxers.negotiate_timeout)
        return muxers._annotate_connection(limited(conn, peer_id, is_initiator=conn.is_initiator), conn, protocol)

    muxers.new_conn = new_connection  # type: ignore[method-assign]
    swarm._stream_semaphore = None  # all peers share it, so a peer with many streams would block all others


class _FrameCounter:
    """A secured connection that counts yamux frames by their headers as they are read."""

    def __init__(self, inner: ISecureConn, peer: PeerId, reputation: Reputation) -> None:
        from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_PING

        self._inner, self._peer, self._reputation = inner, peer, reputation
        self._header_bytes, self._ping = HEADER_SIZE, TYPE_PING

    async def read(self, n: int | None = None) -> bytes:
        data = await self._inner.read(n)
        if n == self._header_bytes and len(data) == n:
            channel = Channel.PING if data[1] == self._ping else Channel.FRAME
            if not self._reputation.spend(self._peer, channel):
                raise ConnectionError("the peer is banned")
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def _limited_yamux(reputation: Reputation) -> type[Yamux]:
    """Return the class of multiplexed connections with our limits, defined here because its base is slow to import."""
    from libp2p.stream_muxer.yamux.yamux import Yamux

    class LimitedYamux(Yamux):
        def __init__(self, secured_conn: ISecureConn, peer_id: ID, is_initiator: bool | None = None) -> None:
            self._sender = peer_id_of(peer_id)
            self.ended = trio.Event()
            """Set when either end has closed the connection."""
            counter = _FrameCounter(secured_conn, self._sender, reputation)
            super().__init__(cast("ISecureConn", counter), peer_id, is_initiator=is_initiator)

        async def start(self) -> None:
            try:
                await super().start()
            finally:
                self.ended.set()

        async def _read_data_body(self, length: int) -> bytes:
            """Read the data of a frame.  Ban the peer if the unread bytes would exceed the windows of all streams."""
            unread = sum(map(len, self.stream_buffers.values()))
            allowed = sum(stream.target_recv_window for stream in self.streams.values())
            if length > MAX_FRAME_BYTES or unread + length > allowed + MAX_FRAME_BYTES:
                reputation.penalise(self._sender, ABUSE, "more data than its window allows")
                raise ConnectionError("the peer overran its window")
            return await super()._read_data_body(length)

    return LimitedYamux


class _StreamDirection(Protocol):
    """A value of the library's enum of stream directions."""

    @property
    def name(self) -> str: ...


class ResourceLimits:
    """The limits that the library checks before it accepts a connection or a stream; they replace its resource manager.

    The library's own manager miscounts connections and streams that end at the wrong moment (a stream that closes before its
    direction is noted, a connection that is refused after it was counted), and never frees their places.
    """

    connection_lifecycle = graceful_degradation = None
    limits = SimpleNamespace(max_streams=1)  # size of a semaphore that `limit_connections` removes

    def __init__(self, reputation: Reputation) -> None:
        self._reputation = reputation
        self._streams: Counter[str] = Counter()

    def open_connection(
        self, peer_id: LibraryId | None = None, endpoint_ip: str | None = None, direction: str = "inbound"
    ) -> SimpleNamespace | None:
        """Return an empty scope for a new connection, or None to refuse it."""
        if peer_id is not None and self._reputation.is_banned(PeerId(str(peer_id))):
            return None
        return SimpleNamespace(close=lambda: None)

    def acquire_stream(self, peer_id: str, direction: _StreamDirection) -> bool:
        """Count a stream and return True if it may be opened.  Only inbound streams are counted and limited."""
        if direction.name != "INBOUND":
            return True
        if self._streams[peer_id] >= MAX_STREAMS_PER_PEER:
            self._reputation.penalise(PeerId(peer_id), EXCESS, "too many open streams")
            return False
        self._streams[peer_id] += 1
        return True

    def release_stream(self, peer_id: str, direction: _StreamDirection) -> None:
        """Free the place of a closed stream that `acquire_stream` had allowed."""
        if direction.name == "INBOUND" and self._streams[peer_id] > 1:
            self._streams[peer_id] -= 1
        elif direction.name == "INBOUND":
            del self._streams[peer_id]

    def disconnected(self, peer: PeerId) -> None:
        """Free the places of all streams of `peer`, whose last connection has ended."""
        self._streams.pop(peer, None)


# ------------------------------------------------------------------------------------------------------------------------
# The host.


MAX_CONNECTIONS = 1024
"""Most connections: more than `inbound_policy` and `dialer` allow together; beyond it the library closes the newest one."""
STREAM_NEGOTIATION_S = 10
"""Seconds for the other end to accept the protocol of a stream."""
UPGRADE_S = 5.0
"""Seconds for the handshake of an inbound connection."""


class PortBusy(NetworkError):
    """The error for a port on which another program listens; the text tells the user what to do."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"port {port} is in use by another program; stop it, or choose another port with --port (0: any free one)"
        )
        self.port = port


def claim_port(host: str, port: int) -> int:
    """Return a port that is free now at all addresses at which we listen: `port`, or any free one for 0.

    The library listens with SO_REUSEPORT and would silently share a busy port.  Raises `PortBusy` or `NetworkError`.
    """
    for name in listening_hosts(host):
        port = _claim(name, port)
    return port


def _claim(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortBusy(port) from error
            raise NetworkError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        return int(probe.getsockname()[1])


async def stop_listening(host: Host) -> None:
    """Close the sockets at which `host` listens; otherwise they outlive the host.

    The library's listeners are system tasks of trio, and the library does not close them when it is cancelled.
    """
    for listener in list(host.get_network().listeners.values()):
        await listener.close()


def new_host(identity: Identity, reputation: Reputation, limits: ResourceLimits) -> Host:
    """Return a libp2p `BasicHost` for this identity, not yet listening, with limits on its connections and streams."""
    import libp2p
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.network.config import ConnectionConfig, RetryConfig
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
    from libp2p.stream_muxer.yamux.yamux import Yamux

    library.apply()
    _silence()
    keys = create_new_key_pair(identity.seed)
    config = ConnectionConfig(
        max_connections=MAX_CONNECTIONS,
        min_connections=0,
        low_watermark=0,
        high_watermark=MAX_CONNECTIONS,
        inbound_upgrade_timeout=UPGRADE_S,
    )
    host = cast(
        Host,
        libp2p.new_host(
            key_pair=keys,
            sec_opt={PROTOCOL_ID: Transport(keys, noise_privkey=new_noise_key_pair().private_key)},
            muxer_opt={TProtocol(YAMUX_ID): Yamux},
            negotiate_timeout=STREAM_NEGOTIATION_S,
            connection_config=config,
            resource_manager=cast("ResourceManager", limits),
        ),
    )
    swarm = host.get_network()
    limit_connections(swarm, reputation)
    guard_streams(swarm)
    _say_less(host)
    swarm.retry_config = RetryConfig(max_retries=0)
    return host


def _say_less(host: Host) -> None:
    """Stop the library from asking every peer that connects to identify itself, and from remembering each peer for good.

    We ask only peers that we dialled or admitted (`identify`), and forget peers that have gone (`forget`).
    """
    from libp2p.identity.identify_push import ID_PUSH

    host.get_mux().remove_handler(ID_PUSH)
    host._on_notifee_connected = _nothing
    host.get_network().auto_connector.record_disconnect = lambda peer: None


async def _nothing(connection: Connection) -> None:
    return


def identify(host: Host, identity: LibraryId) -> None:
    """Ask a peer for its addresses and protocols, with the protocol `identify`."""
    host._schedule_identify(identity, reason="met")


def forget(host: Host, identity: LibraryId) -> None:
    """Clear the library's memory of a peer without connections; the dialler has its own address book."""
    store = host.get_peerstore()
    store.peer_data_map.pop(identity, None)
    store.peer_record_map.pop(identity, None)


def _silence() -> None:
    """Switch off the library's logging, which reports normal events between strangers."""
    silent = logging.CRITICAL + 1
    for name in ("libp2p", "multiaddr", "async_service", "anyio_service"):
        logging.getLogger(name).propagate = False
        children = [each for each in list(logging.root.manager.loggerDict) if each.startswith(name + ".")]
        for logger in map(logging.getLogger, [name, *children]):
            if logger.level != silent:
                logger.setLevel(silent)  # which empties the caches of all loggers


# ------------------------------------------------------------------------------------------------------------------------
# The host in one run.


@dataclass(frozen=True)
class LineLimits:
    """The limits on all bytes that we send (up) and on all bytes that we receive (down)."""

    up: RateLimit
    down: RateLimit


@dataclass(frozen=True)
class RunHost:
    """Our host in one run, with the objects that its protocols share.

    handlers: handle the messages, and tell members from strangers.  connected: returns True if a peer is connected and we
    dialled or admitted it.  doorstep: counts inbound sockets that have not authenticated yet.
    """

    host: Host
    run: Hash
    handlers: Handlers
    reputation: Reputation
    connected: Callable[[PeerId], bool]
    doorstep: Doorstep
    line: LineLimits

    def protocol(self, name: str) -> str:
        """Return the libp2p name of a protocol of this run."""
        return protocol_of(self.run, name)


def protocol_of(run: Hash, name: str) -> str:
    """Return the libp2p name of a protocol of a run."""
    return f"/manyhands/1/{bytes(run).hex()[:16]}/{name}"
