"""Statements about rollouts: the commitment to a batch, its deal to validators, and a validator's verdicts.

The bytes of a batch are a blob, which only trainer processes can read; here it has a name and a size.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.body import Body, Count, HashField, PeerField
from protocol.wire.questions import MAX_LEAVES

MAX_ROLLOUTS = 4096
"""Rollouts in a batch, at most."""
ROLLOUT_CHUNK_BYTES = 1 << 16
"""Bytes of a chunk of a batch."""
MAX_BATCH_BYTES = MAX_LEAVES * ROLLOUT_CHUNK_BYTES
MAX_BATCHES = 1 << 16
"""Batches of one peer at one version, at most."""


class Verdict(str, Enum):
    """Verdict of a validator on a rollout.  INCONCLUSIVE: it could not tell, and nobody is to blame."""

    ACCEPT = "accept"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class Reason(str, Enum):
    """Reason for the rejection of a rollout."""

    NONE = ""
    MALFORMED = "malformed"
    WRONG_PROMPT = "wrong prompt"
    WRONG_REPLY = "wrong reply"
    WRONG_COMPUTATION = "wrong computation"
    BAD_SAMPLING = "bad sampling"
    BAD_TERMINATION = "bad termination"
    WITHHELD = "withheld"


CODES: tuple[tuple[Verdict, Reason], ...] = (
    (Verdict.ACCEPT, Reason.NONE),
    (Verdict.INCONCLUSIVE, Reason.NONE),
    *((Verdict.REJECT, reason) for reason in Reason if reason is not Reason.NONE),
)
"""Verdicts with their reasons; the index here is the code in one byte."""
UNSCORED = 255
"""Byte in place of a score, if there is none."""


class RolloutBatch(Body):
    """A peer commits to rollouts that it made with the weights of `version`, before their validators are known.

    version, tip: the rounds committed, and the tip, of the weights.  number: of the batch, from 0 at each tip; the tip, the
    maker and the number draw its problems and its trainer.  incarnation: of its maker's life; in one life a batch is stated
    once.  rollouts: in the batch.  tokens: made by the model, in all.
    size, root: of its bytes (tokens and proofs), cut into chunks of `ROLLOUT_CHUNK_BYTES`.
    """

    KIND: ClassVar[str] = "rollout batch"
    BY_GOSSIP: ClassVar[bool] = True
    version: Count
    tip: HashField
    number: Annotated[int, Field(ge=0, lt=MAX_BATCHES)]
    incarnation: Count
    rollouts: Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)]
    tokens: Annotated[int, Field(ge=0, le=2**40)]
    size: Annotated[int, Field(ge=1, le=MAX_BATCH_BYTES)]
    root: HashField

    @property
    def chunks(self) -> int:
        """Number of chunks of the batch."""
        return -(-self.size // ROLLOUT_CHUNK_BYTES)


class Deal(Body):
    """The trainer that a batch is for deals the batch to validators: this statement's signature draws them."""

    KIND: ClassVar[str] = "deal"
    BY_GOSSIP: ClassVar[bool] = True
    author: PeerField
    root: HashField


class Judgement(Body):
    """A validator's findings on a batch.  codes: one byte a rollout, an index into `CODES`.

    scores: if the batch has problems of the crowd, one byte a rollout: 254 times its score, 255 for none.
    """

    KIND: ClassVar[str] = "judgement"
    BY_GOSSIP: ClassVar[bool] = True
    author: PeerField
    root: HashField
    codes: Annotated[bytes, Field(min_length=1, max_length=MAX_ROLLOUTS)]
    scores: Annotated[bytes | None, Field(min_length=1, max_length=MAX_ROLLOUTS, exclude_if=lambda value: value is None)] = (
        None
    )
