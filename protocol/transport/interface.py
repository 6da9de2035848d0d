"""The interface between the protocol and a network.

Protocol code calls a `Network` and is called back through `Handlers`; it works the same over libp2p
(`protocol.transport.network`) and the simulated network (`tests.simulation.network`).  A network carries or reports:

* gossip: small signed envelopes to every peer of the run, validated before they are forwarded;
* requests: one question, one answer, between two peers, with a deadline;
* pushes: large chunks straight into a buffer that the receiver provides, over the bulk data plane;
* peer events: a peer is connected, or is no longer connected.

The only times in this interface are the timeouts passed in (s, trio's clock).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from protocol.events.events import Event
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack

MAX_REQUEST_BYTES = 2 << 20
"""Largest question or answer of `request`."""
MAX_PUSH_HEADER_BYTES = 16 << 10
MAX_PUSH_BYTES = 64 << 20
"""Largest chunk of one push."""


class NetworkError(Exception):
    """The failure of an operation between two peers; the text is one sentence."""


class Unreachable(NetworkError):
    """The error for a peer that cannot be reached now, or did not answer before the deadline."""


MALFORMED = "the message is malformed"
"""Reason given for any malformed message; only our own log names the flaw."""


class Refused(NetworkError):
    """A peer's refusal; the text is the peer's reason (at most 300 characters).

    The text is sent to another computer: it is a fixed sentence that contains only public values, never the text of another
    error.
    """


class Offence(Refused):
    """A refusal of a question or push that no honest peer sends; the network lowers the sender's reputation."""


class Acceptance(Enum):
    """The verdict on a gossip message: forward it, drop it, or drop it and lower its forwarder's reputation."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"

    @classmethod
    def of_news(cls, is_news: bool) -> Acceptance:
        """Return `ACCEPT` for a new message, otherwise `IGNORE`."""
        return cls.ACCEPT if is_news else cls.IGNORE


@dataclass(frozen=True)
class Bandwidth:
    """The measured or allowed rates of this peer's links (bytes a second); 0 if unknown."""

    up_bytes_per_s: float
    down_bytes_per_s: float

    @property
    def least(self) -> float:
        """The slower direction."""
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


@dataclass(frozen=True)
class Traffic:
    """The payload moved since the start over all channels (bytes)."""

    up_bytes: int
    down_bytes: int


@dataclass(frozen=True)
class LinkMeasurement:
    """Measurements of the open sockets to one peer.

    reach: this computer, home network or internet; empty if a relay hides it.  round_trip_s: the shortest round trip,
    without queues; None if a relay or the kernel hides it.  up_bytes, down_bytes: bytes that these sockets carried, without
    packet headers.
    """

    reach: str = ""
    round_trip_s: float | None = None
    up_bytes: int = 0
    down_bytes: int = 0


class Landing:
    """The destination of a push: a writable `buffer` of exactly the push's size.

    When the push is complete, the network runs `check` on the buffer, possibly in a worker thread, and stores the result in
    `found`.  on_bytes: called whenever some of the data has arrived.
    """

    def __init__(
        self,
        buffer: memoryview,
        check: Callable[[memoryview], Any] | None = None,
        on_bytes: Callable[[], None] = lambda: None,
    ) -> None:
        self.buffer = buffer
        self.found: Any = None
        self.on_bytes = on_bytes
        self._check = check

    def with_listener(self, listener: Callable[[], None]) -> Landing:
        """Return a landing in the same buffer, which also calls `listener` whenever some of the data has arrived."""

        def on_bytes() -> None:
            listener()
            self.on_bytes()

        return Landing(self.buffer, self._check, on_bytes)

    def complete(self) -> None:
        """Run `check`.  The network calls this when all data has arrived."""
        if self._check is not None:
            self.found = self._check(self.buffer)


class Members(Protocol):
    """The test that tells members from strangers.  A new key is a stranger, and many strangers may be one person.

    Wherever peers share a limited number of places, strangers never take a member's place.
    """

    def has_member(self, peer: PeerId) -> bool:
        """Return True if `peer` is a member."""
        ...


class Handlers(Members, Protocol):
    """The callbacks of a network.  They may raise only the exceptions named here."""

    def has_allowance(self, peer: PeerId) -> bool:
        """Return True if the answers to `peer` have an allowance of their own, False if it shares one."""
        ...

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Accept, ignore or reject a gossip message before it is forwarded."""
        ...

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Answer a question.  Raises `Refused` with a reason for the asker."""
        ...

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Return the destination of a push of `size` bytes that is about to arrive, or None to refuse it.

        May wait for a free buffer for a limited time, during which the sender is held back.
        """
        ...

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Use the complete push that `open_push` accepted.  landing: None if the push broke off half-way.

        Raises `Offence` if the bytes differ from the announced ones.
        """
        ...

    def on_peer_connected(self, peer: PeerId) -> None:
        """Note that we have dialled a peer, that a peer has greeted us, or that a connected peer has reconnected."""
        ...

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Note that the last connection to a connected peer has ended."""
        ...


def nothing() -> None:
    """Do nothing: the default callback."""


class Network(Protocol):
    """One peer's end of the network."""

    @property
    def peer_id(self) -> PeerId:
        """Our peer ID."""
        ...

    def addresses(self) -> Sequence[str]:
        """Return the multiaddrs that other peers can dial, each ending in /p2p/<peer ID>."""
        ...

    def connected(self) -> Sequence[PeerId]:
        """Return the connected peers: peers that we dialled or that have greeted us."""
        ...

    def link(self, peer: PeerId) -> str:
        """Return the kind of a peer's connection: direct, reversed, punched or relayed; "" if the peer is not connected."""
        ...

    def measured_link(self, peer: PeerId) -> LinkMeasurement:
        """Return the measurements of a peer's connection; empty ones if it has none."""
        ...

    def welcome(self, peer: PeerId) -> None:
        """Stop treating `peer` as a stranger on all its connections, because a handshake has admitted it."""
        ...

    def traffic(self) -> Traffic:
        """Return the payload moved since the start."""
        ...

    def bandwidth(self) -> Bandwidth:
        """Return the measured or allowed rates of our links."""
        ...

    async def receive_elsewhere(self, size: int) -> None:
        """Count `size` bytes that came from a server outside the run as traffic; wait until they fit the user's limit."""
        ...

    def is_moving(self) -> bool:
        """Return True if our own address is gone and we are reconnecting.  A peer's silence then means nothing."""
        ...

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Dial these addresses with backoff while their peers are not connected.

        claimed: True if the addresses come from other peers, which may name any address; False if they come from the user or
        this computer.
        """
        ...

    def known_addresses(self) -> Sequence[str]:
        """Return the addresses that are worth keeping on disk, best first, without addresses that only strangers claim."""
        ...

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer and do not dial it again."""
        ...

    async def publish(self, data: bytes) -> None:
        """Gossip an envelope of at most MAX_GOSSIP_BYTES; it is not delivered to ourselves.  Raises `NetworkError`."""
        ...

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask a question and return the answer.  Raises `Unreachable` or `Refused`."""
        ...

    async def push(
        self,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        *,
        timeout_s: float,
        spare: bool = False,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Send `data` into the buffer that `peer` provides for `header`; return when the peer has received all data.

        spare: True if the push gives way to all other pushes, and uses only the rest of our line.  on_sent: called when all
        data is sent, if the path is so long that the answer comes much later.  Raises `Unreachable`, or `Refused` if the
        receiver does not accept the push.
        """
        ...


# ------------------------------------------------------------------------------------------------------------------------
# A peer's part in one run: its identity, the run, its network, and the receiver of its events.


@dataclass(frozen=True)
class Session:
    """One life of a peer in a run.  emit: receives every event that a user or a program may want to see."""

    identity: Identity
    run: Hash
    network: Network
    emit: Callable[[Event], None]

    @property
    def me(self) -> PeerId:
        """Our peer ID."""
        return self.identity.peer_id

    def seal(self, body: Body) -> Envelope:
        """Return `body` as an envelope signed by us for this run."""
        return pack(self.identity, self.run, body)

    async def publish(self, body: Body) -> None:
        """Sign `body` and gossip it."""
        await self.network.publish(self.seal(body).raw)
