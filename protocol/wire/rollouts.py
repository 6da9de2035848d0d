"""Statements in runs with rollouts: sets of tasks, batches of rollouts, and verdicts on these.

The bytes of a batch are a blob, which only trainer processes can read; a statement contains only its name and size.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.formats.rl import Precision
from protocol.wire.envelope import Body, Count, HashField, PeerField
from protocol.wire.hashes import Hash
from protocol.wire.questions import MAX_LEAVES

# ------------------------------------------------------------------------------------------------------------------------
# Statements about sets of tasks from the crowd: a publisher's offer, and the organiser's amendment that admits sets.
#
# The bytes of a set are lines of JSON, which only trainer processes read; a statement contains only the set's name and size.


TASK_CHUNK_BYTES = 1 << 16
"""Bytes of a chunk of a set."""
MAX_SET_BYTES = 16 << 20
MAX_SET_TASKS = 1 << 16
MAX_SETS = 16
"""Most sets that are admitted at a time."""
MAX_ADMITTED_BYTES = 64 << 20
"""Most bytes of all sets that are admitted at a time."""
MAX_SLOT = 1 << 20
MAX_AMENDMENT_BYTES = 6144
"""Most bytes of a signed `Amendment` in its envelope; with `MAX_SETS` sets it has about 4000."""

SetName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\x20-\x7e]+$")]
SetTasks = Annotated[int, Field(ge=1, le=MAX_SET_TASKS)]
SetBytes = Annotated[int, Field(ge=1, le=MAX_SET_BYTES)]
Slot = Annotated[int, Field(ge=1, lt=MAX_SLOT)]
SlotMask = Annotated[int | None, Field(ge=1, lt=1 << MAX_SETS, exclude_if=lambda value: value is None)]
"""Mask of sets: bit i is the i-th set of the newest amendment.  None, and not written, if no bit is set."""
AmendmentField = Annotated[
    bytes | None, Field(min_length=1, max_length=MAX_AMENDMENT_BYTES, exclude_if=lambda value: value is None)
]
"""A signed `Amendment`; None, and not written, if there is none."""

SetKey = tuple[int, Hash]
"""A slot, and the root of the set in it."""


class TaskSet(Body):
    """A peer's offer of a set of tasks.

    name: a name for people.  count: number of tasks.  size, root: size of the bytes, and root over their chunks of
    `TASK_CHUNK_BYTES`; the root names the set.
    """

    KIND: ClassVar[str] = "task set"
    BY_GOSSIP: ClassVar[bool] = True
    name: SetName
    count: SetTasks
    size: SetBytes
    root: HashField

    @property
    def chunks(self) -> int:
        """Number of chunks of the set."""
        return -(-self.size // TASK_CHUNK_BYTES)


class AdmittedSet(TaskSet):
    """A set in an amendment.  slot: its number, which no other set ever gets; the numbers of its problems follow from it."""

    KIND: ClassVar[str] = ""
    slot: Slot
    publisher: PeerField

    @property
    def key(self) -> SetKey:
        """Slot and root of the set: on another branch of the chain, the slot may belong to another set."""
        return self.slot, Hash(self.root)


class Amendment(Body):
    """The organiser's choice of sets, in force from the version that the record with this amendment makes.

    number: higher than the number of every earlier amendment in the chain.  percent: percentage of the problems that come
    from these sets.  sets: in the order of their slots.
    """

    KIND: ClassVar[str] = "amendment"
    BY_GOSSIP: ClassVar[bool] = True
    number: Annotated[int, Field(ge=1, le=1 << 40)]
    percent: Annotated[int, Field(ge=1, le=90)]
    sets: Annotated[list[AdmittedSet], Field(max_length=MAX_SETS)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        slots = [each.slot for each in self.sets]
        if slots != sorted(set(slots)) or len({each.root for each in self.sets}) != len(slots):
            raise ValueError("the sets are not in the order of their slots, or a slot occurs twice")
        if sum(each.size for each in self.sets) > MAX_ADMITTED_BYTES:
            raise ValueError("the sets have too many bytes")
        return self


# ------------------------------------------------------------------------------------------------------------------------
# Statements about rollouts: the commitment to a batch, its deal to validators, and a validator's verdicts.


MAX_ROLLOUTS = 4096
"""Most rollouts in a batch."""
ROLLOUT_CHUNK_BYTES = 1 << 16
"""Bytes of a chunk of a batch."""
MAX_BATCH_BYTES = MAX_LEAVES * ROLLOUT_CHUNK_BYTES
MAX_BATCHES = 1 << 16
"""Most batches of one peer at one version."""


class Verdict(str, Enum):
    """Verdict of a validator on a rollout.  INCONCLUSIVE: the validator could not decide, and no peer is at fault."""

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
"""Byte for a rollout without a score."""


class RolloutBatch(Body):
    """Commitment of a peer to rollouts that it made with the weights of `version`, before their validators are known.

    version, tip: number of committed rounds, and tip, of the weights.  number: number of the batch, from 0 at each tip; the
    tip, the maker and the number draw its problems and its trainer.  incarnation: incarnation of its maker, in which the
    batch is stated only once.  rollouts: number of rollouts.  tokens: number of tokens that the model made.  precision: of
    the maker's matrix products; a peer that computes in the same precision holds the batch to the rates for it.
    size, root: size of its bytes (tokens and proofs), and root over their chunks of `ROLLOUT_CHUNK_BYTES`.
    """

    KIND: ClassVar[str] = "rollout batch"
    BY_GOSSIP: ClassVar[bool] = True
    version: Count
    tip: HashField
    number: Annotated[int, Field(ge=0, lt=MAX_BATCHES)]
    incarnation: Count
    rollouts: Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)]
    tokens: Annotated[int, Field(ge=0, le=2**40)]
    precision: Annotated[Precision, Field(strict=False)]
    size: Annotated[int, Field(ge=1, le=MAX_BATCH_BYTES)]
    root: HashField

    @property
    def chunks(self) -> int:
        """Number of chunks of the batch."""
        return -(-self.size // ROLLOUT_CHUNK_BYTES)


class Deal(Body):
    """Statement of the trainer for which a batch is meant; the statement's signature draws the batch's validators."""

    KIND: ClassVar[str] = "deal"
    BY_GOSSIP: ClassVar[bool] = True
    author: PeerField
    root: HashField


class Judgement(Body):
    """A validator's findings on a batch.  codes: one byte for each rollout, an index into `CODES`.

    scores: if the batch has problems from the crowd, one byte for each rollout: 254 times its score, or 255 for no score.
    """

    KIND: ClassVar[str] = "judgement"
    BY_GOSSIP: ClassVar[bool] = True
    author: PeerField
    root: HashField
    codes: Annotated[bytes, Field(min_length=1, max_length=MAX_ROLLOUTS)]
    scores: Annotated[bytes | None, Field(min_length=1, max_length=MAX_ROLLOUTS, exclude_if=lambda value: value is None)] = (
        None
    )
