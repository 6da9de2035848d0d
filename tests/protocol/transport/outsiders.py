"""Inbound connections of outsiders that are no peers, on real sockets, from any address of the loopback network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio

from protocol.wire.identity import Identity

if TYPE_CHECKING:
    from libp2p.stream_muxer.yamux.yamux import Yamux

HALF_A_HANDSHAKE = b"\x13/multistream/1.0.0\n\x07/noise\n"
"""The beginning of a handshake."""


@asynccontextmanager
async def socket_to(address: str, source: str = "127.0.0.1") -> AsyncIterator[trio.SocketStream]:
    """A TCP connection and nothing else, closed at the end of the block.

    address: a multiaddr; source: the IP address that it comes from.
    """
    _, _, host, _, port, *_ = address.split("/")
    stream = await trio.open_tcp_stream(host, int(port), local_address=source)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


class Stranger:
    """A libp2p connection that says nothing after its handshake: Noise and yamux, and no host around them."""

    def __init__(self, stream: trio.SocketStream, muxed: Yamux) -> None:
        self._stream, self.muxed = stream, muxed

    async def closed(self) -> None:
        """Wait until the other end closes the connection."""
        try:
            while await self._stream.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            return


@asynccontextmanager
async def stranger_to(address: str, source: str = "127.0.0.1", identity: Identity | None = None) -> AsyncIterator[Stranger]:
    """A connection that is closed at the end of the block.  Raises whatever the library raises when it is refused."""
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.io.trio import TrioTCPStream
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
    from libp2p.stream_muxer.yamux.yamux import Yamux
    from libp2p.transport.upgrader import TransportUpgrader

    me = identity or Identity.generate()
    keys = create_new_key_pair(me.seed)
    noise = Transport(keys, noise_privkey=new_noise_key_pair().private_key)
    upgrader = TransportUpgrader({PROTOCOL_ID: noise}, {TProtocol(YAMUX_ID): Yamux})
    peer = ID.from_string(address.rsplit("/", 1)[1])
    async with socket_to(address, source) as stream:
        secured = await upgrader.upgrade_security(RawConnection(TrioTCPStream(stream), True), True, peer)
        yield Stranger(stream, cast(Yamux, await upgrader.upgrade_connection(secured, peer)))
