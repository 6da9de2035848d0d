"""The part of py-libp2p 0.8 that this package uses: types for the library's objects, and corrections of its faults.

The library is imported only when a network starts (0.8 s, 80 MiB), and its annotations lack the private attributes that we
need.  So the modules of this package use these protocols for its objects; `host.new_host` casts to them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from protocol.version import version
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import IListener, INotifee, ISecureConn
    from libp2p.network.config import RetryConfig
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.peer.id import ID
    from libp2p.peer.peerinfo import PeerInfo
    from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
    from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream


# ------------------------------------------------------------------------------------------------------------------------
# Corrections of py-libp2p 0.8.1, applied once per process.
#
# 1. Receive credit: the library sends a window update for every read, even of one byte; we send one after half a window.
# 2. Send: the library polls the window every 10 ms and resets the stream of a reader that stalls for 5 s; we wait for an
#    event.
# 3. Frame write: a write cancelled half-way leaves half a frame behind and desynchronises Noise for all streams; we shield a
#    write once it has begun, and end the connection if the peer reads nothing for `STALL_S`.
# 4. Identify: the library sends its own name and accepts an answer of 1 MiB; we send this program's name and accept at most
#    `IDENTIFY_BYTES`.
# 5. IPv6: a socket that listens at all IPv6 addresses would also occupy its port at all IPv4 addresses; we prevent this.
#
# `inbound` replaces the handling of inbound connections, and `host` replaces the counts of connections and streams.


STALL_S = 10.0
IDENTIFY_BYTES = 16 << 10
_applied = False


def apply() -> None:
    """Patch the library.  Later calls do nothing."""
    global _applied
    if _applied:
        return
    _applied = True
    _patch_yamux()
    _patch_identify()
    _patch_ipv6()


def _patch_ipv6() -> None:
    from libp2p.transport.tcp import tcp

    reuse = tcp._set_reuse_flags

    def set_flags(sock: trio.socket.SocketType) -> None:
        reuse(sock)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    _replace(tcp, "_set_reuse_flags", set_flags)


def _patch_yamux() -> None:
    from libp2p.stream_muxer.yamux import yamux

    _replace(yamux.YamuxStream, "_auto_tune_and_send_window_update", _credit)
    _replace(yamux.YamuxStream, "write", _write)
    _replace(yamux.YamuxStream, "send_window", _SendWindow())
    _replace(yamux.Yamux, "_write_frame", _write_frame)


def _replace(owner: object, name: str, value: object) -> None:
    """Set an attribute of the library; its annotations do not allow a plain assignment."""
    setattr(owner, name, value)


async def _credit(self: YamuxStream, *, bytes_read: int = 0) -> None:
    """Grant credit once half a window has been read.  Replaces `YamuxStream._auto_tune_and_send_window_update`."""
    from libp2p.stream_muxer.yamux.yamux import MAX_WINDOW_SIZE

    self._pending_recv_release += bytes_read
    if self._pending_recv_release * 2 < self.target_recv_window or self.recv_closed:
        return
    increment = self._pending_recv_release
    self._pending_recv_release = 0
    if self.target_recv_window < MAX_WINDOW_SIZE:
        increment += self.target_recv_window
        self.target_recv_window *= 2
    self.recv_window += increment
    await self.send_window_update(increment)


async def _write(self: YamuxStream, data: bytes) -> None:
    """Write `data`; an event ends each wait for credit.  Replaces `YamuxStream.write`."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError
    from libp2p.stream_muxer.yamux import yamux

    view, sent = memoryview(data), 0
    async with self.rw_lock.write_lock():
        while sent < len(view):
            if self.send_closed or self.closed:
                raise MuxedStreamError("Stream is closed for sending")
            if self.send_window <= 0:
                await _window_opens(self)
                continue
            size = min(self.send_window, yamux.MAX_MESSAGE_SIZE - yamux.HEADER_SIZE, len(view) - sent)
            self.send_window -= size
            header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_DATA, 0, self.stream_id, size)
            await self.conn._write_frame(header + view[sent : sent + size])
            sent += size


async def _write_frame(self: Yamux, data: bytes) -> None:
    """Write one frame, shielded from cancellation.  Replaces `Yamux._write_frame`."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError

    async with self._write_lock:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STALL_S) as scope:
            await self.secured_conn.write(data)
        if scope.cancelled_caught:
            self.event_shutting_down.set()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self.secured_conn.close()
            raise MuxedStreamError(f"the peer has read nothing for {STALL_S:g} s")


async def _window_opens(stream: YamuxStream) -> None:
    """Wait until the other end may have granted credit, for at most 0.5 s."""
    event = stream.__dict__.get("_window_event")
    if event is None or event.is_set():
        event = stream.__dict__["_window_event"] = trio.Event()
    with trio.move_on_after(0.5):  # closing a stream sets no event, so the caller must check again
        await event.wait()


class _SendWindow:
    """The attribute `send_window` of a stream (bytes), which wakes the writer when credit arrives."""

    def __get__(self, stream: object, owner: type | None = None) -> object:
        return self if stream is None else stream.__dict__["_send_window"]

    def __set__(self, stream: object, value: int) -> None:
        stream.__dict__["_send_window"] = value
        event = stream.__dict__.get("_window_event")
        if value > 0 and event is not None:
            event.set()


def _patch_identify() -> None:
    from libp2p.host import basic_host
    from libp2p.identity.identify import identify

    limited = partial(vars(basic_host)["read_length_prefixed_protobuf"], max_length=IDENTIFY_BYTES)
    _replace(basic_host, "read_length_prefixed_protobuf", limited)
    _replace(identify, "AGENT_VERSION", agent_version())
    _replace(identify, "PROTOCOL_VERSION", "manyhands/1")


def agent_version() -> str:
    """Return our name and version, as we send them to peers in the protocol `identify`."""
    return f"manyhands/{version()}"


# ------------------------------------------------------------------------------------------------------------------------
# Types of the library's objects.


TaskStatus = Any
"""trio's `TaskStatus`, which is missing in the trio stubs that come with the library."""
Address = object
"""A multiaddr of the library, which does not export its types."""


class LibraryId(Protocol):
    """A peer ID of the library: `libp2p.peer.id.ID`."""

    def to_base58(self) -> str: ...


class MuxedConnection(Protocol):
    """An authenticated and multiplexed connection."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def peer_id(self) -> LibraryId: ...

    def get_remote_address(self) -> tuple[str, int] | None: ...


class LimitedConnection(Protocol):
    """A connection made by `host`.  ended: set when either end has closed the connection."""

    @property
    def peer_id(self) -> LibraryId: ...

    @property
    def ended(self) -> trio.Event: ...


class Connection(Protocol):
    """A connection of the swarm.  direction: a value of the library's enum `Direction`, "inbound" or "outbound" as text."""

    @property
    def muxed_conn(self) -> MuxedConnection: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def direction(self) -> object: ...

    async def close(self) -> None: ...


class Stream(Protocol):
    """One stream of a connection; its methods may raise anything."""

    @property
    def muxed_conn(self) -> MuxedConnection: ...

    async def read(self, n: int | None = None) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...

    async def reset(self) -> None: ...

    def get_remote_address(self) -> tuple[str, int] | None: ...


class AcceptedStream(Protocol):
    """A TCP connection that the library has accepted, before any handshake."""

    @property
    def stream(self) -> trio.SocketStream: ...


StreamHandler = Callable[[Stream], Awaitable[None]]
AcceptHandler = Callable[[AcceptedStream, Address], Awaitable[None]]


class Dialling(Protocol):
    """A transport that dials."""

    async def dial(self, address: Address) -> RawConnection: ...


class TransportManager(Protocol):
    """The transports by kind of address."""

    def transport_for_dialing(self, address: Address) -> Dialling | None: ...


class Upgrader(Protocol):
    """The part that turns a TCP connection into an authenticated one, and then into a multiplexed one."""

    muxer_multistream: MuxerMultistream

    async def upgrade_security(
        self, raw_conn: RawConnection, is_initiator: bool, peer_id: LibraryId | None = None
    ) -> ISecureConn: ...


class AutoConnector(Protocol):
    """The library's own redialling."""

    record_disconnect: Callable[[LibraryId], None]


class HostConnections(Protocol):
    """All connections of a host."""

    connections: Mapping[LibraryId, Sequence[Connection]]
    listeners: Mapping[str, IListener]
    notifees: Sequence[INotifee]
    retry_config: RetryConfig
    common_stream_handler: StreamHandler
    _handle_inbound_connection: AcceptHandler
    _stream_semaphore: trio.Semaphore | None

    @property
    def auto_connector(self) -> AutoConnector: ...

    @property
    def transport_manager(self) -> TransportManager: ...

    @property
    def upgrader(self) -> Upgrader: ...

    def register_notifee(self, notifee: INotifee) -> None: ...

    def remove_notifee(self, notifee: INotifee) -> None: ...

    def unblock_peer(self, peer_id: LibraryId) -> None: ...

    async def new_stream(self, peer_id: LibraryId) -> Stream: ...

    async def dial_addr(self, addr: Address, peer_id: LibraryId) -> object: ...

    async def upgrade_outbound_raw_conn(self, raw_conn: RawConnection, peer_id: LibraryId) -> Connection: ...

    async def upgrade_inbound_raw_conn(self, raw_conn: RawConnection, address: Address) -> LimitedConnection: ...


class PeerStore(Protocol):
    """The library's memory of peers."""

    peer_data_map: MutableMapping[LibraryId, object]
    peer_record_map: MutableMapping[LibraryId, object]

    def clear_addrs(self, peer_id: LibraryId) -> None: ...


class ProtocolHandlers(Protocol):
    """The stream handlers by protocol."""

    def remove_handler(self, protocol: str) -> None: ...


class ObservedAddressManager(Protocol):
    """The library's record of the addresses at which other peers see us."""

    record_observation: Callable[[Connection, Address, Sequence[Address]], None]


class Host(Protocol):
    """A peer of libp2p: a swarm, and protocols on its streams."""

    _on_notifee_connected: Callable[[Connection], Awaitable[None]]

    @property
    def _observed_addr_manager(self) -> ObservedAddressManager: ...

    def get_id(self) -> LibraryId: ...

    def get_network(self) -> HostConnections: ...

    def get_peerstore(self) -> PeerStore: ...

    def get_mux(self) -> ProtocolHandlers: ...

    def run(self, listen_addrs: Sequence[Address]) -> AbstractAsyncContextManager[None]: ...

    def set_stream_handler(self, protocol_id: str, stream_handler: StreamHandler) -> None: ...

    async def connect(self, peer_info: PeerInfo) -> None: ...

    async def disconnect(self, peer_id: LibraryId) -> None: ...

    def _schedule_identify(self, peer_id: LibraryId, *, reason: str) -> None: ...


def library_id(peer: PeerId) -> ID:
    """Convert our form of a peer ID to the library's."""
    from libp2p.peer.id import ID

    return ID.from_string(peer)


def peer_id_of(identity: LibraryId) -> PeerId:
    """Convert the library's form of a peer ID to ours."""
    return PeerId(identity.to_base58())


def is_inbound(connection: Connection) -> bool:
    """Return True if the other end opened this connection."""
    return str(connection.direction) == "inbound"


def is_outbound(connection: Connection) -> bool:
    """Return True if we opened this connection."""
    return str(connection.direction) == "outbound"
