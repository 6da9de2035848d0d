"""The settings of one peer's network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.transport.inbound_policy import InboundLimits
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId


class Discover(Protocol):
    """The search for peers of one run on the local network."""

    async def __call__(
        self, run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        """Announce our `addresses`, anew whenever they change, and report other peers' addresses, until cancelled.

        Waits while there is no usable network.  Raises nothing.
        """


@dataclass(frozen=True)
class NetworkSettings:
    """Addresses and limits of one peer's network.

    listen_port: 0 for any free port.  discover: finds peers on the local network; None to stay silent there.
    up_limit, down_limit: bytes a second in all, None for no limit; pushes get the part that other traffic leaves.
    inbound: limits on connections that others open to us.  congestion: the congestion control of bulk sockets, if the kernel
    has it and lets us set it: over a long way with some loss BBR is several times as fast as CUBIC, the usual default.
    announce: multiaddrs, besides our interfaces, from which a router or a provider leads to us.
    serve_tls: serves a socket on which the other end begins to speak TLS, given the address that it comes from; None to
    treat it like any other stranger.  relay_rate: bytes a second that we carry between peers that cannot reach each other,
    all together; 0 for none.
    """

    listen_host: str = "0.0.0.0"
    listen_port: int = 0
    discover: Discover | None = None
    up_limit: float | None = None
    down_limit: float | None = None
    inbound: InboundLimits = InboundLimits()
    congestion: str = "bbr"
    announce: tuple[str, ...] = ()
    serve_tls: Callable[[trio.socket.SocketType, str], Awaitable[None]] | None = None
    relay_rate: float = 1.25e6
