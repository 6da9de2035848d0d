"""The seam between the protocol and the wire.

Protocol code talks to a `Network` and is called back through `Handlers`; it cannot tell libp2p
(`protocol.network.libp2p`) from the simulated network (`protocol.network.simulated`).  Four things travel:

* gossip: small signed envelopes to everyone in the run, validated before they are forwarded;
* requests: one question, one answer, between two peers, with a deadline;
* pushes: large chunks straight into a buffer that the receiver names, over the bulk data plane;
* peer events: who is connected.

Nothing here keeps time except the deadlines passed in (trio's clock).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from protocol.wire.identity import PeerId

MAX_REQUEST_BYTES = 2 << 20
"""Largest question or answer of `request`."""
MAX_PUSH_HEADER_BYTES = 16 << 10
MAX_PUSH_BYTES = 64 << 20
"""Largest chunk of one push."""


class NetworkError(Exception):
    """Something between two peers failed; the text is one sentence.  The caller decides what it means."""


class Unreachable(NetworkError):
    """There is no way to the peer now, or the deadline passed."""


class Refused(NetworkError):
    """The peer answered that it will not; the text is its reason (at most 300 characters)."""


class Offence(Refused):
    """Refused because no honest peer asks such a thing: the network holds it against the asker."""


class Verdict(Enum):
    """What a gossip message is worth: forwarded, dropped silently, or dropped and its forwarder scored down."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second that this peer's links have lately been seen to carry, or may carry; 0: not known."""

    up_bytes_per_s: float
    down_bytes_per_s: float

    @property
    def least(self) -> float:
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


@dataclass(frozen=True)
class Traffic:
    """Bytes of payload moved since the start, all channels together."""

    up_bytes: int
    down_bytes: int


class Landing:
    """Where a push goes: a writable `buffer` of exactly its size.

    When the push is complete, the network runs `check` on the buffer, in a worker thread if it has some, and leaves what
    it returned in `found`.
    """

    def __init__(self, buffer: memoryview, check: Callable[[memoryview], Any] | None = None) -> None:
        self.buffer = buffer
        self.found: Any = None
        self._check = check

    def complete(self) -> None:
        """For the network: all bytes are there."""
        if self._check is not None:
            self.found = self._check(self.buffer)


class Handlers(Protocol):
    """What a peer does with what arrives.  None of these may raise; `on_request` may raise `Refused`."""

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict: ...

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes: ...

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """A place for a push of `size` bytes that is about to arrive, or None to refuse it.

        May wait (bounded) for a free buffer; the sender is held back meanwhile.
        """
        ...

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """The push that `open_push` accepted is complete; None when it broke off half-way."""
        ...

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None: ...


class Network(Protocol):
    """One peer's end of the network.  Made running by its owner's nursery; stops when that is cancelled."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> Sequence[str]:
        """Multiaddrs others can dial, each ending in /p2p/<peer ID>."""
        ...

    def connected(self) -> Sequence[PeerId]:
        """Peers that we reached, or that have greeted us."""
        ...

    def welcome(self, peer: PeerId) -> None:
        """`peer` has greeted us and takes part: from now on its connections are no stranger's."""
        ...

    def traffic(self) -> Traffic: ...

    def bandwidth(self) -> Bandwidth: ...

    def remember(self, addresses: Sequence[str]) -> None:
        """Addresses worth dialling, now and again (with backoff) while their peer is not connected."""
        ...

    def known_addresses(self) -> Sequence[str]:
        """The address book, for keeping on disk."""
        ...

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer, and do not dial it again."""
        ...

    async def publish(self, data: bytes) -> None:
        """Gossip an envelope (at most MAX_GOSSIP_BYTES).  Not delivered to ourselves."""
        ...

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask and wait for the answer.  Raises `Unreachable` or `Refused`."""
        ...

    async def push(self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float) -> None:
        """Send `data` into the buffer that `peer` names for `header`; returns when the peer has it all.

        Raises `Unreachable`, or `Refused` when the receiver would not take it.
        """
        ...
