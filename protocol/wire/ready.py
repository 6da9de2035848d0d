"""READY, the statement that commits to a contribution, and the part of it that a plan and a record keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from protocol.wire.body import (
    MAX_ADMISSION_BYTES,
    MAX_NUMBER,
    Body,
    Count,
    FragmentNumber,
    HashField,
    LaterHash,
    Number,
    PeerField,
    SignatureField,
)
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.tasks import SlotMask

# ------------------------------------------------------------------------------------------------------------------------
# The batches that a contribution was made of in a run with rollouts: their authors, their tokens and their reward.
#
# READY names them, and so do the plan and the record: every holder of the chain knows whose rollouts were learned from.  A
# batch takes `ENTRY_BYTES`, not a map of its own, for a record has up to `MAX_USED_BY_ALL` of them.


MAX_USED = 512
"""Batches that one member learns from in a round."""
MAX_USED_BY_ALL = 2048
"""Batches that all members of a round learn from."""
TOKENS_BYTES = 5
"""Bytes of a batch's number of tokens, big-endian."""
ENTRY_BYTES = HASH_BYTES + TOKENS_BYTES


class UsedBatch(NamedTuple):
    """A batch that was learned from.  tokens: made by the model, as its maker's statement has them."""

    author: PeerId
    root: Hash
    tokens: int


class UsedOfAuthor(Body):
    """Batches of one rollout peer.  batches: root and tokens of each, `ENTRY_BYTES` a batch, sorted."""

    author: PeerField
    batches: Annotated[bytes, Field(min_length=ENTRY_BYTES, max_length=ENTRY_BYTES * MAX_USED)]


class Learned(Body):
    """The batches that a member learned from.  used: by author, sorted.  reward: mean of the rollouts as the member states
    it; None if it states none."""

    used: Annotated[list[UsedOfAuthor], Field(min_length=1, max_length=MAX_USED)]
    reward: Number | None

    @property
    def batches(self) -> Iterator[UsedBatch]:
        """The batches of all authors."""
        for each in self.used:
            for at in range(0, len(each.batches), ENTRY_BYTES):
                entry = each.batches[at : at + ENTRY_BYTES]
                tokens = int.from_bytes(entry[HASH_BYTES:], "big")
                yield UsedBatch(PeerId(each.author), Hash(entry[:HASH_BYTES]), tokens)

    @property
    def tokens(self) -> int:
        """Tokens of all the batches: a member that learned from them can claim no more, and at least one."""
        return max(1, sum(batch.tokens for batch in self.batches))

    @property
    def root(self) -> Hash:
        """Tree root over the sorted names of the batches."""
        return tree_root(sorted(batch.root for batch in self.batches))


LaterLearned = Annotated[Learned | None, Field(exclude_if=lambda value: value is None)]
"""As `protocol.wire.body.LaterHash`: not written if there is none."""


def learned_from(batches: Iterable[UsedBatch], reward: float | None) -> Learned:
    """Return the statement that a contribution makes about these batches, at least one."""
    entries: dict[PeerId, list[bytes]] = {}
    for batch in batches:
        entries.setdefault(batch.author, []).append(batch.root + batch.tokens.to_bytes(TOKENS_BYTES, "big"))
    used = [UsedOfAuthor(author=author, batches=b"".join(sorted(entries[author]))) for author in sorted(entries)]
    is_said = reward is not None and abs(reward) <= MAX_NUMBER  # NaN is not
    return Learned(used=used, reward=reward if is_said else None)


def check_learned(learned: Learned, most_batches: int, most_tokens: int) -> None:
    """Raise `Malformed` if a member cannot have learned from this.  most_batches: a member's.  most_tokens: a batch's."""
    if any(len(each.batches) % ENTRY_BYTES for each in learned.used):
        raise Malformed("batches of rollouts that end in the middle of one")
    named = [(batch.author, batch.root) for batch in learned.batches]
    if named != sorted(set(named)) or len({each.author for each in learned.used}) != len(learned.used):
        raise Malformed("batches of rollouts that are named twice, or not in order")
    if len(named) > most_batches:
        raise Malformed(f"{len(named)} batches of rollouts, and a round has {most_batches} of a member at most")
    if any(batch.tokens > most_tokens for batch in learned.batches):
        raise Malformed("a batch of rollouts with more tokens than the run allows")


# ------------------------------------------------------------------------------------------------------------------------


class OnState(Body):
    """A statement that stands on an outer state.

    weights: in a run with rollouts, the root of the state's parameters in bf16, for peers that have only these; it follows
    from the state.
    """

    state_digest: HashField
    weights: LaterHash = None

    @property
    def state(self) -> bytes:
        """Name of the state, which peers compare: the digest, then the root of the weights if there is one."""
        return self.state_digest + (self.weights or b"")


def digest_in(state: bytes) -> bytes:
    """Return the digest in the name of a state."""
    return state[:HASH_BYTES]


def weights_in(state: bytes) -> bytes | None:
    """Return the root of the weights in the name of a state; None if it has none."""
    return state[HASH_BYTES:] or None


class Ready(OnState):
    """A finished contribution, committed by its root before anybody shows theirs.

    fragment: part of the state that the contribution covers.  serial: grows with every READY of an incarnation; two
    different ones under one serial are a lie.  admission: proof that the sender was admitted; empty if the run needs none.
    rollouts: in a run of reinforcement learning, the batches that the contribution was made of.
    against: the sets of tasks that the sender's counts exclude.
    """

    KIND: ClassVar[str] = "ready"
    BY_GOSSIP: ClassVar[bool] = True
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
    """A member of a round: its READY without the fields that all members share, with the READY's signature."""

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
    """Return the entry in a plan of the peer that signed this READY."""
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
    """Return the READY that a member of a round on the tip `base` and on this state (its name) must have signed."""
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
