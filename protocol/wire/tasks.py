"""Statements about sets of tasks from the crowd: a publisher's offer, and the organiser's amendment that admits sets.

The bytes of a set are lines of JSON, which only trainer processes read; here a set has a name and a size.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.wire.body import Body, HashField, PeerField
from protocol.wire.hashes import Hash

TASK_CHUNK_BYTES = 1 << 16
"""Bytes of a chunk of a set."""
MAX_SET_BYTES = 16 << 20
MAX_SET_TASKS = 1 << 16
MAX_SETS = 16
"""Sets that are admitted at a time."""
MAX_ADMITTED_BYTES = 64 << 20
"""Bytes of all sets that are admitted at a time."""
MAX_SLOT = 1 << 20
MAX_AMENDMENT_BYTES = 6144
"""Bytes of a signed `Amendment` as it travels; with `MAX_SETS` sets it has about 4000."""
MAX_OFFER_BYTES = 1024
"""Bytes of a signed `TaskSet` as it travels; it has about 350."""

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

Place = tuple[int, Hash]
"""A slot, and the root of the set in it."""


class TaskSet(Body):
    """A peer offers a set of tasks.  name: for people.  count: number of tasks.  size, root: of the bytes, in chunks of
    `TASK_CHUNK_BYTES`; the root names the set."""

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
    """A set in an amendment.  slot: its number, which no other set ever has; it gives the problems their numbers."""

    KIND: ClassVar[str] = ""
    slot: Slot
    publisher: PeerField

    @property
    def place(self) -> Place:
        """Slot and root of the set: on another branch of the chain the slot may be another set's."""
        return self.slot, Hash(self.root)


class Amendment(Body):
    """The organiser's choice of sets, in force from the version that the record with this amendment makes.

    number: a record takes no amendment with a lower number than its chain has.  percent: share of the problems that come
    from these sets.  sets: by slot.
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
            raise ValueError("sets that are not in the order of their slots, or twice")
        if sum(each.size for each in self.sets) > MAX_ADMITTED_BYTES:
            raise ValueError("sets with too many bytes")
        return self
