"""Batches, verdicts and decisions as events."""

from __future__ import annotations

from protocol.event import Event
from protocol.events import BatchDecided, BatchJudged, RolloutPeerSetAside, ValidatorSetAside
from protocol.rollouts.batch import Batch
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, Reason, Verdict


def judged(batch: Batch, validator: PeerId, codes: bytes) -> BatchJudged:
    """What a validator said of a batch."""
    verdicts = [CODES[code][0] for code in codes]
    reasons = sorted({CODES[code][1].value for code in codes} - {Reason.NONE.value})
    return BatchJudged(
        batch.author,
        batch.body.version,
        batch.body.number,
        batch.root.hex(),
        validator,
        verdicts.count(Verdict.ACCEPT),
        verdicts.count(Verdict.REJECT),
        verdicts.count(Verdict.INCONCLUSIVE),
        reasons,
    )


def decided(batch: Batch, reason: Reason) -> BatchDecided:
    """The final verdict on a batch."""
    assert batch.decision is not None
    body = batch.body
    return BatchDecided(
        batch.author,
        body.version,
        body.number,
        batch.root.hex(),
        batch.decision.value,
        reason.value,
        body.rollouts,
        batch.own is not None,
    )


def set_aside(peer: PeerId, reason: str, role: Role) -> Event:
    """Nothing of this peer is used any more, as what it is."""
    return ValidatorSetAside(peer, reason) if role is Role.VALIDATOR else RolloutPeerSetAside(peer, reason)
