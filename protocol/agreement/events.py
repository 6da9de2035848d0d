"""The events of the round machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.wire.envelope import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Plan, Provenance, Record, VoterState

# ------------------------------------------------------------------------------------------------------------------------
# The effects of the round machine: actions that `protocol.node.rounds` performs, in the order of the list.


@dataclass(frozen=True)
class Send:
    """Sign this statement and deliver it to each peer, including ourselves if we are named."""

    to: tuple[PeerId, ...]
    body: Body


@dataclass(frozen=True)
class Forward:
    """Deliver a statement of another peer unchanged.  what: the kind of the statement."""

    to: PeerId
    what: str
    raw: bytes


@dataclass(frozen=True)
class Persist:
    """Write our voter state, which binds us, to disk before any later effect is performed."""

    kept: VoterState


@dataclass(frozen=True)
class BeginExchange:
    """Start the exchange of this plan, then report `ExchangeDone`; do nothing if this exchange is running already."""

    plan: Plan


@dataclass(frozen=True)
class FinishCompute:
    """Ask our trainer to stop at its current step and contribute."""


@dataclass(frozen=True)
class ObtainResult:
    """Write the result of this record to disk, fetching what is missing, then report `ResultObtained`.

    sources: peers that may have the result.  proposer: the peer that proposed the record.  provenance: None for a certified
    or locked record; any other record is audited first, and the audit may end in `AuditFailed`.  again: True if an audit of
    this result failed before.
    """

    record: Record
    index: tuple[ChunkEntry, ...]
    sources: tuple[PeerId, ...]
    proposer: PeerId
    provenance: Provenance | None
    again: bool = False


@dataclass(frozen=True)
class Committed:
    """End the round, because this record is certified and its result is on disk."""

    commit: Commit


@dataclass(frozen=True)
class Repair:
    """Check our outer state again, because the electors have another one.  digest: the digest of their state."""

    digest: Hash


@dataclass(frozen=True)
class Reject:
    """Report that a statement of this sender is rejected.  what: its kind.  reason: a phrase for the log."""

    sender: PeerId
    what: str
    reason: str


RoundEffect = Send | Forward | Persist | BeginExchange | FinishCompute | ObtainResult | Committed | Repair | Reject


# ------------------------------------------------------------------------------------------------------------------------
# Views of the peers: the basis for the decisions of a round.


@dataclass(frozen=True)
class PeerView:
    """View of one peer at this moment.

    on_tip: True for a live trainer at work on our tip.  near: True for a live trainer on our tip or one or two rounds
    behind; never for ourselves.  left: True if the peer said goodbye.  silent_s: seconds since the peer was heard, 0 while
    it is live.  bytes_per_s: bandwidth, 0 if unknown.
    """

    live: bool
    on_tip: bool
    left: bool
    silent_s: float
    bytes_per_s: float = 0.0
    near: bool = False


View = Mapping[PeerId, PeerView]
"""Views of all peers that we know and of all electors, ourselves included."""


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrived:
    """Statement about a round, from us or another peer, with a verified signature.

    signature: the signature of the statement's envelope; the signature of a vote becomes part of a certificate.
    """

    sender: PeerId
    body: Body
    signature: bytes


@dataclass(frozen=True)
class StateHashed:
    """Name of our outer state (`protocol.wire.messages.OnState.state`).  Until it is known, we trust the proposer's."""

    state: bytes


@dataclass(frozen=True)
class ExchangeMoved:
    """Progress of the running exchange: a chunk arrived."""


@dataclass(frozen=True)
class PlanUnknown:
    """Refusal of our part by a member of our exchange's plan, which may not have received the plan."""

    peer: PeerId


@dataclass(frozen=True)
class ExchangeDone:
    """End of our exchange.  plan: hash of its plan.  entries: index of its result.  provenance: signatures on the result."""

    plan: Hash
    entries: tuple[ChunkEntry, ...]
    provenance: Provenance


@dataclass(frozen=True)
class ResultObtained:
    """Completion on disk of the result with this root."""

    root: bytes


@dataclass(frozen=True)
class AuditFailed:
    """Failed audit of the result with this root; we do not vote for its record in this attempt."""

    root: bytes


@dataclass(frozen=True)
class AverageDisproved:
    """Proof that `liar` signed a wrong average.  hash: the hash of that average."""

    liar: PeerId
    chunk: int
    hash: bytes


@dataclass(frozen=True)
class AmendmentHeld:
    """The organiser's newest amendment, whose task sets we hold, for use in our plans; None once there is none."""

    raw: bytes | None


@dataclass(frozen=True)
class Tick:
    """Passage of time."""


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
