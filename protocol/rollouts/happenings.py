"""What the pool of batches is told, and what it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.events.events import Event
from protocol.rollouts.batch import Batch
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import Judgement, RolloutBatch

# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """The statement of a batch.  raw: as it travelled."""

    author: PeerId
    body: RolloutBatch
    raw: bytes


@dataclass(frozen=True)
class DealHeard:
    """The trainer has dealt a batch.  beacon: what its signature draws with."""

    trainer: PeerId
    author: PeerId
    root: Hash
    beacon: Hash


@dataclass(frozen=True)
class JudgementHeard:
    """A validator's verdicts, or an elector's."""

    validator: PeerId
    body: Judgement


@dataclass(frozen=True)
class Moved:
    """The state is another one.  tips: of the newest versions, by number.  trainers: of their records, likewise.  electors:
    of the tip.  makers: rollout peers that we know by now.  before: the tip that our chain has now at the version of the
    last `Moved`; None where it is shorter, or there was none."""

    version: int
    tips: Mapping[int, Hash]
    trainers: Mapping[int, tuple[PeerId, ...]]
    electors: tuple[PeerId, ...]
    makers: frozenset[PeerId] = frozenset()
    before: Hash | None = None


@dataclass(frozen=True)
class Tick:
    """Time has passed.  validators: that live now, we among them if we are one.  kept: the tips of versions that our
    trainer process holds, by number."""

    validators: frozenset[PeerId]
    kept: Mapping[int, Hash]


@dataclass(frozen=True)
class Fetched:
    """The bytes of a batch are here, or not to be had.  here: None where our disk did not take them."""

    author: PeerId
    root: Hash
    here: bool | None


@dataclass(frozen=True)
class Checked:
    """Our trainer process has verified a batch; codes: None where it found nothing.  scores: as in `Judgement`.
    exact: rollouts whose scores every computer comes to.  sure: whether every honest computer comes to the same opinion.
    died: it did, over it."""

    author: PeerId
    root: Hash
    codes: bytes | None
    scores: bytes | None = None
    exact: frozenset[int] = frozenset()
    sure: bool = True
    died: bool = False


@dataclass(frozen=True)
class Idle:
    """Our trainer process could verify a batch now: answered with at most one `Check`."""


@dataclass(frozen=True)
class Ejected:
    """This peer is proven to have lied."""

    peer: PeerId
    reason: str


PoolEvent = Heard | DealHeard | JudgementHeard | Moved | Tick | Fetched | Checked | Idle | Ejected

# -- effects --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forward:
    """What was heard is news, and handed on."""


@dataclass(frozen=True)
class Contrary:
    """One peer stated two batches in one slot."""

    first: bytes
    second: bytes


@dataclass(frozen=True)
class Deal:
    """Sign and gossip that this batch is dealt; then tell it as `DealHeard`."""

    batch: Batch


@dataclass(frozen=True)
class Fetch:
    """Get the bytes of a batch."""

    batch: Batch


@dataclass(frozen=True)
class Check:
    """Have a batch verified."""

    batch: Batch


@dataclass(frozen=True)
class Judge:
    """Sign and gossip our verdicts."""

    body: Judgement


@dataclass(frozen=True)
class Discard:
    """The bytes of a batch are not needed any more."""

    root: Hash


@dataclass(frozen=True)
class Compare:
    """Another peer scored the rollouts of a batch that we scored, too: one byte a rollout."""

    batch: Batch
    ours: bytes
    theirs: bytes


@dataclass(frozen=True)
class Tell:
    """Something to be seen."""

    event: Event


PoolEffect = Forward | Contrary | Deal | Fetch | Check | Judge | Discard | Compare | Tell
