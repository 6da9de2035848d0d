"""The events of the round machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.wire.body import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Kept, Plan, Provenance, Record

# ------------------------------------------------------------------------------------------------------------------------
# The effects of the round machine: actions that `protocol.node.round_runner` performs, in the order of the list.


@dataclass(frozen=True)
class Send:
    """Sign this statement and deliver it to each peer; to ourselves too, where named."""

    to: tuple[PeerId, ...]
    body: Body


@dataclass(frozen=True)
class Forward:
    """Deliver a statement of another peer as it travelled.  what: its kind."""

    to: PeerId
    what: str
    raw: bytes


@dataclass(frozen=True)
class Persist:
    """Write what binds us to disk before anything after this effect happens."""

    kept: Kept


@dataclass(frozen=True)
class BeginExchange:
    """Exchange by this plan, then say `ExchangeDone`; nothing if that exchange runs already."""

    plan: Plan


@dataclass(frozen=True)
class FinishCompute:
    """Ask our trainer to stop at its step and contribute."""


@dataclass(frozen=True)
class ObtainResult:
    """Bring the result of this record to disk, then say `ResultObtained`.

    sources: peers that may have it.  proposer: the peer that put it to the vote.  provenance: None for a certified or
    locked record; one that is only put to the vote is audited first, and may end in `AuditFailed`.  again: whether it did
    before.
    """

    record: Record
    index: tuple[ChunkEntry, ...]
    sources: tuple[PeerId, ...]
    proposer: PeerId
    provenance: Provenance | None
    again: bool = False


@dataclass(frozen=True)
class Committed:
    """The round is over: this record is certified, and its result is on disk."""

    commit: Commit


@dataclass(frozen=True)
class Repair:
    """Our outer state is not the one that the round stands on.  digest: of the state that it is."""

    digest: Hash


@dataclass(frozen=True)
class Reject:
    """A statement of this sender is not acted on.  what: its kind; reason: a phrase for the log."""

    sender: PeerId
    what: str
    reason: str


RoundEffect = Send | Forward | Persist | BeginExchange | FinishCompute | ObtainResult | Committed | Repair | Reject


# ------------------------------------------------------------------------------------------------------------------------
# How peers look to a round.


@dataclass(frozen=True)
class PeerView:
    """How a peer looks now.  `on_tip`: a live trainer at work on our tip; `near`: on its way to it, a round or two behind.

    left: it said goodbye.  silent_s: seconds since it was heard, 0 while it is live.  bytes_per_s: 0: not known.
    """

    live: bool
    on_tip: bool
    left: bool
    silent_s: float
    bytes_per_s: float = 0.0
    near: bool = False


View = Mapping[PeerId, PeerView]
"""Everybody we know or who is an elector, ourselves included."""


# ------------------------------------------------------------------------------------------------------------------------


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
