"""A libp2p host with our settings: TCP, Noise and yamux only, quiet, and without the library's own connection policy.

Nothing here reconnects: `dialer` decides when a peer is dialled.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from protocol.transport import patches
from protocol.transport.connection_limits import ResourceLimits, limit_connections
from protocol.transport.ends import End
from protocol.transport.interface import NetworkError
from protocol.transport.library import Connection, Host, LibraryId
from protocol.transport.reputation import Reputation
from protocol.transport.streams import guard_streams
from protocol.wire.identity import Identity

if TYPE_CHECKING:
    from libp2p.rcmgr.manager import ResourceManager

MAX_CONNECTIONS = 1024
"""Most connections: more than `inbound_policy` and `dialer` make together; above it the library closes the newest one."""
STREAM_NEGOTIATION_S = 10
"""Seconds for the other end to accept the protocol of a stream."""
UPGRADE_S = 5.0
"""Seconds for the handshake of an inbound connection."""
ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"


class PortBusy(NetworkError):
    """Another program listens on the port; the text says what to do."""

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
    """Close the sockets at which `host` listens; otherwise they outlive it.

    The library's listeners are system tasks of trio, and the library does not close them when it is cancelled.
    """
    for listener in list(host.get_network().listeners.values()):
        await listener.close()


def listening_hosts(host: str) -> list[str]:
    """Return the hosts at which we listen: for all IPv4 addresses also all IPv6 addresses, if this computer has any."""
    return [ANY_IPV4, ANY_IPV6] if host == ANY_IPV4 and has_ipv6() else [host]


def has_ipv6() -> bool:
    """Return True if programs on this computer can listen at IPv6 addresses."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def transport_address(host: str, port: int) -> str:
    """Return the multiaddr of a port at an IP address."""
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


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

    patches.apply()
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
    """Keep the library from asking every peer that connects to identify itself, and from remembering it for good.

    We ask only connected peers (`identify`), and forget peers that have gone (`forget`).
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
    """Clear the library's memory of a peer without connections; the dialer has its own address book."""
    store = host.get_peerstore()
    store.peer_data_map.pop(identity, None)
    store.peer_record_map.pop(identity, None)


def _silence() -> None:
    """Switch off the library's logging, which reports normal events between strangers."""
    for name in ("libp2p", "multiaddr", "async_service", "anyio_service"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        for child in list(logging.root.manager.loggerDict):
            if child.startswith(name + "."):
                logging.getLogger(child).setLevel(logging.CRITICAL + 1)


def at_interfaces(ends: Sequence[End]) -> list[End]:
    """Return the ends that are this computer's own.

    An address at which a router leads to us, or of which others say so, also belongs to other computers, so it is left out.
    If no end is this computer's own, all are returned.
    """
    own = set(interface_addresses())
    found = [end for end in ends if end[0] in own or ipaddress.ip_address(end[0]).is_loopback]
    return found or list(ends)


def interface_addresses() -> list[str]:
    """Return our IP addresses for other computers, IPv4 first, without link-local ones; loopback if there are none."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = {
        ipaddress.ip_address(entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    reachable = [address for address in found if not (address.is_loopback or address.is_link_local)]
    reachable.sort(key=lambda address: (address.version, address.packed))
    return [str(address) for address in reachable] or ["127.0.0.1"]
