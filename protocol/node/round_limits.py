"""Limits on the loss and the norm of our next contribution, from those of our own last ones: a pure function.

Damaged memory, moments or parameters cause numbers that no training gives.  A trainer whose round exceeds the limits does
not contribute it: it says so, ends, forgets its moments and residual, and does the round again with the same limits.  If
that exceeds them too, the peer contributes nothing to this round, and from the next one on earlier rounds set no limits.  So
a peer whose run has honestly changed misses one round, and no peer stays out for longer.  A trainer that ends otherwise
does its round again with the same limits.

Only our own entries in records count, because others can claim any number.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log, sqrt
from typing import NamedTuple

from kernels.outer_step import SHARING_MOST
from protocol.run.manifest import RunManifest
from protocol.wire.identity import PeerId
from protocol.wire.messages import Member, Record

LOOKED_BACK = 16
"""Last records in which our entries are looked for."""
LOSS_FACTOR, NORM_FACTOR = 2.0, 32.0
RATES = 4.0
"""Least limit on the norm, in steps of the peak learning rate by every parameter, of which AdamW and Muon take about one."""


class RoundLimits(NamedTuple):
    """Upper limits on a round's mean loss (nats a token) and on the norm of its difference."""

    loss: float = inf
    norm: float = inf


def limits_from(manifest: RunManifest, records: Iterable[Record], me: PeerId, steps: int) -> RoundLimits:
    """Return the limits on a round of `steps` inner steps; none before our first record.

    The loss may be twice the largest of ours, or twice that of a model that knows nothing (ln of the vocabulary).  The norm
    may be 32 times the largest of ours, which grows at most linearly with the steps, and anything that the peak learning
    rate explains, to which the run may return after a cooldown.
    """
    ours: list[Member] = [member for record in records for member in record.members if member.peer == me and member.norm]
    if not ours:
        return RoundLimits()
    rate = max(manifest.inner.lr, manifest.rl.lr * sqrt(SHARING_MOST) if manifest.rl is not None else 0.0)
    norm = NORM_FACTOR * max(member.norm * max(1.0, steps / member.steps) for member in ours)
    explained = RATES * rate * steps * sqrt(manifest.parameters)
    loss = max(log(manifest.model.vocab), *(member.loss for member in ours))
    return RoundLimits(LOSS_FACTOR * loss, max(norm, explained))
