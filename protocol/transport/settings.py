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
    """Finds the peers of one run on the local network."""

    async def __call__(
        self, run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        """Announce our `addresses`, anew when they change, and report those of others, until cancelled.

        Without a usable network it waits for one; it raises nothing.
        """


@dataclass(frozen=True)
class NetworkSettings:
    """Where a peer listens, and how much it may move.

    listen_port: 0 for any free one.  discover: finds peers on the local network; None to
    stay silent there.  up_limit, down_limit:
    bytes a second in all, of which pushes get what other traffic leaves; None for no limit.  inbound: for connections that
    others open to us.  congestion: the control of bulk sockets, where the kernel has it and lets us: over a long way with
    some loss BBR carries several times what CUBIC does, which most computers have as the default.  announce: multiaddrs at
    which others reach us besides those of our interfaces: a router or a provider leads from there to us.
    serve_tls: serves a socket on which the other end begins to speak TLS, from the address; None to treat it like any other
    stranger.  relay_rate: bytes a second that we carry between others who do not reach each other, all together; 0 for none.
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
