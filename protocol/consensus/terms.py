"""The terms in which a round is negotiated: what it stands on, how peers look, what the machine wants done.

Plain data.  `protocol.consensus.policy` and `protocol.consensus.machine` decide with them,
`protocol.node.round_runner` performs the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.run.manifest import RunManifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Body, ChunkEntry, Commit, Plan, Promise, Provenance, Record

Ballot = tuple[int, PeerId]


@dataclass(frozen=True)
class RoundSettings:
    """What the manifest says about rounds.  chunks: chunks of a contribution.  max_tokens: of a member in a round."""

    run: Hash
    chunks: int
    max_tokens: int
    codec: str
    min_members: int
    max_members: int
    grace_s: float
    eviction_s: float
    stall_s: float


def round_settings(run: Hash, manifest: RunManifest) -> RoundSettings:
    """The settings that `manifest` fixes."""
    rounds = manifest.rounds
    return RoundSettings(run=run, chunks=manifest.chunks, max_tokens=manifest.tokens_per_round, codec=manifest.codec,
                         min_members=rounds.min_members, max_members=rounds.max_members, grace_s=rounds.grace_s,
                         eviction_s=rounds.eviction_s, stall_s=rounds.stall_s)


@dataclass(frozen=True)
class Base:
    """What the round stands on: its number, the tip, the previous record (None at genesis)."""

    round: int
    tip: Hash
    previous: Record | None

    @property
    def electors(self) -> tuple[PeerId, ...]:
        return tuple(PeerId(member.peer) for member in self.previous.members) if self.previous else ()


@dataclass(frozen=True)
class PeerView:
    """How a peer looks now.  `on_tip`: a live trainer at work on our tip; `near`: on its way to it, a round or two behind.

    bytes_per_s: its bandwidth; 0: not known.
    """

    live: bool
    on_tip: bool
    left: bool
    silent_s: float
    bytes_per_s: float = 0.0
    near: bool = False


View = Mapping[PeerId, PeerView]
"""Everybody we know or who is an elector, ourselves included."""


@dataclass(frozen=True)
class Send:
    """Deliver to each peer; to ourselves too, where named."""

    to: tuple[PeerId, ...]
    body: Body


@dataclass(frozen=True)
class Keep:
    """Write to disk before anything after this effect happens."""

    promise: Promise


@dataclass(frozen=True)
class BeginExchange:
    plan: Plan


@dataclass(frozen=True)
class FinishCompute:
    """Ask our trainer to stop at its step and contribute."""


@dataclass(frozen=True)
class HoldResult:
    """See to it that the result of this record lies on disk, then call `on_result_held`.  `sources` may have it.

    provenance: None for a certified record; what is put to the vote is audited first.
    """

    record: Record
    index: tuple[ChunkEntry, ...]
    sources: tuple[PeerId, ...]
    provenance: Provenance | None


@dataclass(frozen=True)
class Committed:
    commit: Commit


@dataclass(frozen=True)
class Repair:
    """Our outer state is not the one the round stands on."""

    digest: Hash


Effect = Send | Keep | BeginExchange | FinishCompute | HoldResult | Committed | Repair
