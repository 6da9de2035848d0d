"""READY, the statement that commits to a contribution, and what a plan and a record keep of it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.wire.body import (
    MAX_ADMISSION_BYTES,
    Count,
    FragmentNumber,
    Growing,
    HashField,
    Number,
    PeerField,
    SignatureField,
)
from protocol.wire.identity import PeerId


class Ready(Growing):
    """A finished contribution, committed by its root before anybody shows theirs.

    fragment: of the state, which the contribution covers.  serial: grows with every READY of an incarnation; two different
    ones under one serial are a lie.  admission: proof that the sender was admitted; empty where the run asks for none.
    rollouts: in a run of reinforcement learning, the root over the names of the batches that the contribution was made of.
    """

    KIND: ClassVar[str] = "ready"
    LATER: ClassVar[frozenset[str]] = frozenset({"rollouts"})
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
    state_digest: HashField
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)] = b""
    rollouts: HashField | None = None


class Member(Growing):
    """A member of a round: its READY, less what the round says of all of them, with the READY's signature."""

    LATER: ClassVar[frozenset[str]] = frozenset({"rollouts"})
    peer: PeerField
    incarnation: Count
    serial: Count
    tokens: Annotated[int, Field(ge=1, le=2**40)]
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    loss: Number
    norm: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    root: HashField
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)] = b""
    rollouts: HashField | None = None
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
        signature=signature,
    )


def ready_of(member: Member, round: int, fragment: int, base: bytes, state_digest: bytes) -> Ready:
    """The READY that a member of a round on the tip `base` must have signed."""
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
        state_digest=state_digest,
        admission=member.admission,
        rollouts=member.rollouts,
    )
