"""Events that the pool of batches handles, and effects that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.events.events import Event
from protocol.formats.bets import Growth
from protocol.rollouts.batch import PooledBatch
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import Judgement, RolloutBatch

# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchHeard:
    """Received statement of a batch.  raw: the signed statement as received."""

    author: PeerId
    body: RolloutBatch
    raw: bytes


@dataclass(frozen=True)
class DealHeard:
    """Deal of a batch by its trainer.  beacon: draws the validators."""

    trainer: PeerId
    author: PeerId
    root: Hash
    beacon: Hash


@dataclass(frozen=True)
class JudgementHeard:
    """Verdicts of a validator or an elector."""

    validator: PeerId
    body: Judgement


@dataclass(frozen=True)
class TipChanged:
    """Change of our chain's tip to another state.

    tips: the newest versions' tips, by number.  trainers: the trainers in these versions' records, by number.  electors: the
    electors at the tip.  makers: rollout peers that we know.  before: our chain's present tip at the version of the last
    `TipChanged`; None if the chain is shorter or there was no such version.
    """

    version: int
    tips: Mapping[int, Hash]
    trainers: Mapping[int, tuple[PeerId, ...]]
    electors: tuple[PeerId, ...]
    makers: frozenset[PeerId] = frozenset()
    before: Hash | None = None


@dataclass(frozen=True)
class PoolTick:
    """Passage of time.

    validators: live validators, including us if we are one.  kept: the tips of the versions that our trainer process holds,
    by number.
    """

    validators: frozenset[PeerId]
    kept: Mapping[int, Hash]


@dataclass(frozen=True)
class FetchEnded:
    """End of a fetch.

    here: True if we have the batch's bytes, False if we could not get them, None if our disk failed or we ended the fetch.
    """

    author: PeerId
    root: Hash
    here: bool | None


@dataclass(frozen=True)
class BatchVerified:
    """Verification of a batch by our trainer process.

    codes: verdicts, one byte a rollout; None without a result.  scores: as in `Judgement`.  exact: places of the rollouts
    whose score is the same on every computer.  sure: True if every honest computer comes to the same opinion.  died: True if
    the process died while it verified the batch.  growth: growth of the bets against the maker's honesty; empty without a
    measurement.
    """

    author: PeerId
    root: Hash
    codes: bytes | None
    scores: bytes | None = None
    exact: frozenset[int] = frozenset()
    sure: bool = True
    died: bool = False
    growth: Growth = ()


@dataclass(frozen=True)
class TrainerIdle:
    """Readiness of our trainer process to verify a batch; the pool returns at most one `VerifyBatch`."""


@dataclass(frozen=True)
class Ejected:
    """Proof that a peer has lied."""

    peer: PeerId
    reason: str


PoolEvent = (
    BatchHeard | DealHeard | JudgementHeard | TipChanged | PoolTick | FetchEnded | BatchVerified | TrainerIdle | Ejected
)

# -- effects --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardBatch:
    """Request to forward the received message, because it is new."""


@dataclass(frozen=True)
class ContradictoryBatches:
    """Two batches that one peer stated in one slot."""

    first: bytes
    second: bytes


@dataclass(frozen=True)
class GossipDeal:
    """Request to sign and gossip the deal of a batch, and then to pass it to the pool as `DealHeard`."""

    batch: PooledBatch


@dataclass(frozen=True)
class FetchBatch:
    """Request to fetch the bytes of a batch."""

    batch: PooledBatch


@dataclass(frozen=True)
class VerifyBatch:
    """Request to verify a batch."""

    batch: PooledBatch


@dataclass(frozen=True)
class GossipVerdicts:
    """Request to sign and gossip our verdicts."""

    body: Judgement


@dataclass(frozen=True)
class DiscardBytes:
    """Request to remove the bytes of a batch, which are no longer needed."""

    root: Hash


@dataclass(frozen=True)
class CompareScores:
    """Request to compare our scores for a batch with another peer's scores (one byte a rollout each)."""

    batch: PooledBatch
    ours: bytes
    theirs: bytes


@dataclass(frozen=True)
class EmitEvent:
    """Request to emit an event."""

    event: Event


PoolEffect = (
    ForwardBatch
    | ContradictoryBatches
    | GossipDeal
    | FetchBatch
    | VerifyBatch
    | GossipVerdicts
    | DiscardBytes
    | CompareScores
    | EmitEvent
)
