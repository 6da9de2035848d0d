"""What the protocol needs of a network.

Protocol code calls a `Network` and is called back through `Handlers`; it cannot tell libp2p
(`protocol.transport.network`) from the simulated network (`protocol.transport.simulated`).  Four things travel:

* gossip: small signed envelopes to every peer of the run, validated before they are forwarded;
* requests: one question, one answer, between two peers, with a deadline;
* pushes: large chunks straight into a buffer that the receiver names, over the bulk data plane;
* peer events: a peer is connected, or is no more.

Nothing here keeps time except the deadlines passed in (trio's clock).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from protocol.events.events import Event
from protocol.wire.body import Body
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack

MAX_REQUEST_BYTES = 2 << 20
"""Largest question or answer of `request`."""
MAX_PUSH_HEADER_BYTES = 16 << 10
MAX_PUSH_BYTES = 64 << 20
"""Largest chunk of one push."""


class NetworkError(Exception):
    """Something between two peers failed; the text is one sentence."""


class Unreachable(NetworkError):
    """The peer cannot be reached now, or the deadline passed."""


MALFORMED = "the message is malformed"
"""The reason for whatever is ill-formed; the flaw itself is for our own log."""


class Refused(NetworkError):
    """The peer refused; the text is its reason (at most 300 characters).

    The text leaves the computer: a fixed sentence with at most public values in it, never the text of another error.
    """


class Offence(Refused):
    """Refused because no honest peer asks, or pushes, such a thing: the network lowers its reputation."""


class Acceptance(Enum):
    """What to do with a gossip message: forward it, drop it, or drop it and lower the reputation of its forwarder."""

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
        """The slower direction."""
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


@dataclass(frozen=True)
class Traffic:
    """Bytes of payload moved since the start, all channels together."""

    up_bytes: int
    down_bytes: int


class Landing:
    """The destination of a push: a writable `buffer` of exactly its size.

    When the push is complete, the network runs `check` on the buffer, in a worker thread if it has any, and leaves its
    result in `found`.  on_bytes: called whenever some of them have arrived.
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

    def complete(self) -> None:
        """Called by the network when all bytes have arrived."""
        if self._check is not None:
            self.found = self._check(self.buffer)


class Members(Protocol):
    """Tells members from strangers: whoever makes a new key is a stranger, and many strangers may be one person.

    Wherever peers share a limited number of places, strangers take none from members.
    """

    def has_member(self, peer: PeerId) -> bool:
        """Whether `peer` is a member."""
        ...


class Handlers(Members, Protocol):
    """The callbacks for what arrives.  None of them may raise anything but what is said here."""

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Judge a gossip message, before it is forwarded."""
        ...

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Answer a question.  Raises `Refused` with a reason for the asker."""
        ...

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """The destination of a push of `size` bytes that is about to arrive, or None to refuse it.

        May wait (bounded) for a free buffer; the sender is held back meanwhile.
        """
        ...

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """The push that `open_push` accepted is complete; None when it broke off half-way.

        Raises `Offence` for bytes that are not what they were said to be.
        """
        ...

    def on_peer_connected(self, peer: PeerId) -> None:
        """We have reached a peer, or it has greeted us; or it was connected, and is connected anew."""
        ...

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """The last connection to a connected peer has ended."""
        ...


def nothing() -> None:
    """Does nothing: nobody wants to be told."""


class Network(Protocol):
    """One peer's end of the network."""

    @property
    def peer_id(self) -> PeerId:
        """Our peer ID."""
        ...

    def addresses(self) -> Sequence[str]:
        """Multiaddrs that others can dial, each ending in /p2p/<peer ID>."""
        ...

    def connected(self) -> Sequence[PeerId]:
        """Peers that we reached, or that have greeted us."""
        ...

    def link(self, peer: PeerId) -> str:
        """How a peer is connected: direct, reversed, punched or relayed; empty when it is not."""
        ...

    def welcome(self, peer: PeerId) -> None:
        """`peer` has greeted us and takes part: none of its connections is a stranger's any more."""
        ...

    def traffic(self) -> Traffic:
        """The payload moved since the start."""
        ...

    def bandwidth(self) -> Bandwidth:
        """What our links have lately been seen to carry, or may carry."""
        ...

    def is_moving(self) -> bool:
        """Whether our own address is gone, and we are connecting anew.  Not to hear a peer then means nothing."""
        ...

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Dial these addresses while their peer is not connected, with backoff.

        claimed: other peers say so, anything and of anybody; else the person or this computer knows them.
        """
        ...

    def known_addresses(self) -> Sequence[str]:
        """The addresses that are worth keeping on disk, the best first; none that was only claimed by strangers."""
        ...

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer, and do not dial it again."""
        ...

    async def publish(self, data: bytes) -> None:
        """Gossip an envelope of at most MAX_GOSSIP_BYTES.  It is not delivered to ourselves.  Raises `NetworkError`."""
        ...

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask and wait for the answer.  Raises `Unreachable` or `Refused`."""
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
        """Send `data` into the buffer that `peer` names for `header`; returns when the peer has it all.

        spare: it gives way to pushes that are not, and takes what they leave of our line.  on_sent: told when all of it has
        left us, where the way is so long that the answer comes much later.  Raises `Unreachable`, or `Refused` when the
        receiver would not take it.
        """
        ...


# ------------------------------------------------------------------------------------------------------------------------
# A peer's part in one run: who it is, which run, how it speaks, and where its events go.


@dataclass(frozen=True)
class Session:
    """One life of a peer in a run.  emit: takes every event that a person or a program may want to see."""

    identity: Identity
    run: Hash
    network: Network
    emit: Callable[[Event], None]

    @property
    def me(self) -> PeerId:
        """Our peer ID."""
        return self.identity.peer_id

    def seal(self, body: Body) -> Envelope:
        """`body` as a statement of ours, signed for this run."""
        return pack(self.identity, self.run, body)

    async def publish(self, body: Body) -> None:
        """Sign `body` and gossip it."""
        await self.network.publish(self.seal(body).raw)
