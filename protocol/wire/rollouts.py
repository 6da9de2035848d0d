"""What peers say about rollouts: the statement that commits to a batch of them, and a validator's verdicts.

The bytes of a batch are a blob, which only trainer processes can read; here it has a name and a size.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.body import Body, Count, HashField, PeerField
from protocol.wire.questions import MAX_LEAVES

MAX_ROLLOUTS = 4096
"""In a batch."""
ROLLOUT_CHUNK_BYTES = 1 << 16
"""How the bytes of a batch are cut into chunks."""
MAX_BATCH_BYTES = MAX_LEAVES * ROLLOUT_CHUNK_BYTES
MAX_BATCHES = 1 << 16
"""Of one peer at one version."""


class Verdict(str, Enum):
    """What a validator says of a rollout.  INCONCLUSIVE: it could not tell, and nobody is to blame."""

    ACCEPT = "accept"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class Reason(str, Enum):
    """Why a rollout is rejected."""

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
"""A verdict with its reason, in one byte: its place here."""
UNSCORED = 255
"""In place of a score in one byte, where there is none."""


class RolloutBatch(Body):
    """A peer commits to rollouts that it made with the weights of `version`, before it is known who will judge them.

    version, tip: the rounds committed, and the tip, of the weights.  number: of the batch, from 0 at each tip; the tip, the
    maker and the number draw its problems and its trainer.  incarnation: of its maker's life; in one life a batch is stated
    once.  rollouts: in the batch.  tokens: that
    the model made, in all.
    size, root: of its bytes, tokens and proofs, cut into chunks of `ROLLOUT_CHUNK_BYTES`.
    """

    KIND: ClassVar[str] = "rollout batch"
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
        """Chunks of its bytes."""
        return -(-self.size // ROLLOUT_CHUNK_BYTES)


class Deal(Body):
    """The trainer that a batch is for has heard of it, and deals it to validators: this statement's signature draws them."""

    KIND: ClassVar[str] = "deal"
    author: PeerField
    root: HashField


class Judgement(Body):
    """What a validator found out about a batch.  codes: one byte a rollout, of `CODES`.

    scores: where the batch has problems of the crowd, one byte a rollout: 254 times its score, 255 for none.
    """

    KIND: ClassVar[str] = "judgement"
    author: PeerField
    root: HashField
    codes: Annotated[bytes, Field(min_length=1, max_length=MAX_ROLLOUTS)]
    scores: Annotated[bytes | None, Field(min_length=1, max_length=MAX_ROLLOUTS, exclude_if=lambda value: value is None)] = (
        None
    )
