"""The effects of the round machine: actions that `protocol.node.round_runner` performs, in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.body import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Kept, Plan, Provenance, Record


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
