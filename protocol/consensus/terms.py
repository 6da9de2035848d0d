"""The terms in which a round is negotiated: what it stands on, how peers look, what the machine wants done.

Plain data.  `protocol.consensus.policy` and `protocol.consensus.machine` decide with them, and
`protocol.node.round_runner` performs the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Body, ChunkEntry, Commit, Plan, Promise, Provenance, Record

Ballot = tuple[int, PeerId]


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
