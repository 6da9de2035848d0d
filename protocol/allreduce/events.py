"""The events of the exchange machine.  A chunk is one of the plan's, except in `Asked`."""

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
    """Average these members' parts of a chunk (indices in the plan, ascending), then say `Averaged`."""

    chunk: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a peer for the result of a chunk, or for its part."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class Lost:
    """This member is not waited for any more."""

    peer: PeerId


@dataclass(frozen=True)
class Done:
    """All results are here."""


ExchangeEffect = SendPart | SendResult | Reduce | Ask | Lost | Done


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """Our own contribution may be sent."""


@dataclass(frozen=True)
class Heard:
    """Bytes of a push are coming from this peer."""

    peer: PeerId


@dataclass(frozen=True)
class Moving:
    """More bytes of a push have come from this peer; or it has a push for which we have no room yet (`held`)."""

    peer: PeerId
    held: bool


@dataclass(frozen=True)
class PartArrived:
    """A verified part, of a member.  From one that takes us for the owner of a chunk we have, it asks for the result."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class ResultArrived:
    """A verified result, from its owner or from a member that passes it on.

    A successor may get one that the dead owner made: who took it for the owner by sending a part waits for it.
    """

    peer: PeerId
    chunk: int
    entry: ChunkEntry
    signer: PeerId


@dataclass(frozen=True)
class SignedEarly:
    """A member signed a result out of turn: it gave up an owner for which we still wait."""

    signer: PeerId
    chunk: int


@dataclass(frozen=True)
class Averaged:
    """Our average of a chunk is complete."""

    chunk: int
    entry: ChunkEntry


@dataclass(frozen=True)
class Asked:
    """A successor asks for the result of a chunk, or for our part.  The chunk is as it was asked for: unchecked."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class PeerDead:
    """Membership takes this peer for dead."""

    peer: PeerId


@dataclass(frozen=True)
class PeerBack:
    """A peer is heard again: nobody waits for it, but it may have what we averaged."""

    peer: PeerId


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


ExchangeEvent = (
    Started | Heard | Moving | PartArrived | ResultArrived | SignedEarly | Averaged | Asked | PeerDead | PeerBack | Tick
)
