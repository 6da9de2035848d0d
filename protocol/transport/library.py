"""Types for the part of py-libp2p 0.8 that this package uses.

The library is imported only when a network starts (0.8 s, 80 MiB), and its annotations lack the private attributes that we
need.  So the modules of this package use these protocols for its objects; `host.new_host` casts to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import trio

from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import IListener, INotifee, ISecureConn
    from libp2p.network.config import RetryConfig
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.peer.id import ID
    from libp2p.peer.peerinfo import PeerInfo
    from libp2p.stream_muxer.muxer_multistream import MuxerMultistream

TaskStatus = Any
"""trio's `TaskStatus`, which is missing in the trio stubs that come with the library."""
Address = object
"""A multiaddr of the library, whose types are not exported."""


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
    """A connection made by `connection_limits`.  ended: set when it is over, at either end."""

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
    """The library's record of the addresses at which others see us."""

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
