"""READY, the statement that commits to a contribution, and what a plan and a record keep of it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.body import (
    MAX_ADMISSION_BYTES,
    Body,
    Count,
    FragmentNumber,
    HashField,
    LaterHash,
    Number,
    PeerField,
    SignatureField,
)
from protocol.wire.hashes import HASH_BYTES
from protocol.wire.identity import PeerId
from protocol.wire.learned import LaterLearned
from protocol.wire.tasks import SlotMask


class OnState(Body):
    """A statement that stands on an outer state.

    weights: in a run with rollouts, the root of the state's parameters in bf16, for whoever has only these; it follows from
    the state.
    """

    state_digest: HashField
    weights: LaterHash = None

    @property
    def state(self) -> bytes:
        """The digest and the root of the weights, if it is there, as one name: what peers compare."""
        return self.state_digest + (self.weights or b"")


def digest_in(state: bytes) -> bytes:
    """The digest in the name of a state."""
    return state[:HASH_BYTES]


def weights_in(state: bytes) -> bytes | None:
    """The root of the weights in the name of a state."""
    return state[HASH_BYTES:] or None


class Ready(OnState):
    """A finished contribution, committed by its root before anybody shows theirs.

    fragment: of the state, which the contribution covers.  serial: grows with every READY of an incarnation; two different
    ones under one serial are a lie.  admission: proof that the sender was admitted; empty where the run asks for none.
    rollouts: in a run of reinforcement learning, the batches that the contribution was made of.
    against: the sets of tasks that fall out by what the sender has counted.
    """

    KIND: ClassVar[str] = "ready"
    round: Count
    fragment: FragmentNumber
    base: HashField
    incarnation: Count
    serial: Count
    tokens: Annotated[int, Field(ge=1, le=2**40)]
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    loss: Number
    norm: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    root: HashField
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)] = b""
    rollouts: LaterLearned = None
    against: SlotMask = None


class Member(Body):
    """A member of a round: its READY, less what the round says of all of them, with the READY's signature."""

    peer: PeerField
    incarnation: Count
    serial: Count
    tokens: Annotated[int, Field(ge=1, le=2**40)]
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    loss: Number
    norm: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    root: HashField
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)] = b""
    rollouts: LaterLearned = None
    against: SlotMask = None
    signature: SignatureField


def member_of(peer: PeerId, ready: Ready, signature: bytes) -> Member:
    """The place in a plan of the peer that signed this READY."""
    return Member(
        peer=peer,
        incarnation=ready.incarnation,
        serial=ready.serial,
        tokens=ready.tokens,
        steps=ready.steps,
        loss=ready.loss,
        norm=ready.norm,
        root=ready.root,
        admission=ready.admission,
        rollouts=ready.rollouts,
        against=ready.against,
        signature=signature,
    )


def ready_of(member: Member, round: int, fragment: int, base: bytes, state: bytes) -> Ready:
    """The READY that a member of a round on the tip `base` and on this state (its name) must have signed."""
    return Ready(
        round=round,
        fragment=fragment,
        base=base,
        incarnation=member.incarnation,
        serial=member.serial,
        tokens=member.tokens,
        steps=member.steps,
        loss=member.loss,
        norm=member.norm,
        root=member.root,
        state_digest=digest_in(state),
        weights=weights_in(state),
        admission=member.admission,
        rollouts=member.rollouts,
        against=member.against,
    )
