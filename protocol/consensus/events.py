"""The events of the round machine."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.body import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Provenance


@dataclass(frozen=True)
class Arrived:
    """A statement about rounds, ours or another peer's, whose signature was checked.

    signature: of its envelope; a vote's becomes part of a certificate.
    """

    sender: PeerId
    body: Body
    signature: bytes


@dataclass(frozen=True)
class StateHashed:
    """Our outer state has its name (`protocol.wire.ready.OnState.state`).  Until then we take the proposer's word for it."""

    state: bytes


@dataclass(frozen=True)
class ExchangeMoved:
    """A chunk arrived: the running exchange makes progress."""


@dataclass(frozen=True)
class PlanUnknown:
    """A member of the plan that we exchange by has refused our part: perhaps nobody told it of the plan."""

    peer: PeerId


@dataclass(frozen=True)
class ExchangeDone:
    """Our exchange is complete.  plan: its hash; entries: the index of its result; provenance: the signatures on it."""

    plan: Hash
    entries: tuple[ChunkEntry, ...]
    provenance: Provenance


@dataclass(frozen=True)
class ResultObtained:
    """The result with this root is on disk."""

    root: bytes


@dataclass(frozen=True)
class AuditFailed:
    """The result with this root cannot be accounted for: we do not vote for its record now."""

    root: bytes


@dataclass(frozen=True)
class AverageDisproved:
    """It is proven that `liar` signed a wrong average.  hash: of that average."""

    liar: PeerId
    chunk: int
    hash: bytes


@dataclass(frozen=True)
class AmendmentHeld:
    """The organiser's newest amendment is here, with its sets: plans of ours have it.  None: there is none any more."""

    raw: bytes | None


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


RoundEvent = (
    Arrived
    | StateHashed
    | ExchangeMoved
    | PlanUnknown
    | ExchangeDone
    | ResultObtained
    | AuditFailed
    | AverageDisproved
    | AmendmentHeld
    | Tick
)
