"""The events of the exchange machine.  A chunk is one of the plan's chunks, except in `Asked`."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry

# ------------------------------------------------------------------------------------------------------------------------
# The effects of the exchange machine: actions that `protocol.allreduce.runner` performs, in the order of the list.


@dataclass(frozen=True)
class SendPart:
    """Push our part of a chunk."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class SendResult:
    """Push the average of a chunk with its owner's statement."""

    to: PeerId
    chunk: int


@dataclass(frozen=True)
class Reduce:
    """Average these members' parts of a chunk (indices in the plan, ascending), then report `Averaged`."""

    chunk: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a peer for the result of a chunk, or for its part."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class Lost:
    """Stop waiting for this member."""

    peer: PeerId


@dataclass(frozen=True)
class AllReduceDone:
    """Report that all results are here."""


ExchangeEffect = SendPart | SendResult | Reduce | Ask | Lost | AllReduceDone


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContributionReady:
    """Start of the exchange: our own contribution may be sent."""


@dataclass(frozen=True)
class Heard:
    """Start of a push from this peer: its bytes are coming."""

    peer: PeerId


@dataclass(frozen=True)
class Moving:
    """Progress of a push: more bytes have come from this peer, or its push still waits for a buffer here (`held`)."""

    peer: PeerId
    held: bool


@dataclass(frozen=True)
class PartArrived:
    """A verified part of a member.  If we have that chunk's result, the sender takes us for the owner and wants it."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class ResultArrived:
    """A verified result, from its owner or from a member that passes it on.

    A successor may get a result that the dead owner made.  Members that took the successor for the owner, and sent it their
    parts, wait for that result.
    """

    peer: PeerId
    chunk: int
    entry: ChunkEntry
    signer: PeerId


@dataclass(frozen=True)
class SignedEarly:
    """A result that a member signed out of turn: it gave up an owner for which we still wait."""

    signer: PeerId
    chunk: int


@dataclass(frozen=True)
class Averaged:
    """Our own average of a chunk, now complete."""

    chunk: int
    entry: ChunkEntry


@dataclass(frozen=True)
class Asked:
    """A successor's request for the result of a chunk, or for our part.  The chunk number is unchecked."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class PeerDead:
    """Death of this peer, as membership judges."""

    peer: PeerId


@dataclass(frozen=True)
class PeerBack:
    """Return of a peer: nobody waits for it, but it may have our averages."""

    peer: PeerId


@dataclass(frozen=True)
class ExchangeTick:
    """Passage of time."""


ExchangeEvent = (
    ContributionReady
    | Heard
    | Moving
    | PartArrived
    | ResultArrived
    | SignedEarly
    | Averaged
    | Asked
    | PeerDead
    | PeerBack
    | ExchangeTick
)
