"""Statements between peers: the body of every envelope, with its schema and its limits.

Each statement has a frozen class.  `pack` seals one; `unpack` opens an envelope and returns the typed body, or raises
`Malformed`.  No other module decodes these bodies; `protocol.wire.envelope` defines the field types and their limits.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field

from protocol.formats.model import MAX_CHUNKS
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import (
    MAX_ADMISSION_BYTES,
    MAX_ELECTORS,
    MAX_ENVELOPE_BYTES,
    MAX_MEMBERS,
    MAX_NUMBER,
    MAX_VIEW_CHANGE_BYTES,
    Absent,
    Body,
    Count,
    Envelope,
    FragmentNumber,
    HashField,
    LaterHash,
    Number,
    PeerField,
    SignatureField,
    decode_body,
    open_envelope,
    seal,
)
from protocol.wire.hashes import HASH_BYTES, Hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import MAX_LOSSES, Goodbye, Heartbeat
from protocol.wire.rollouts import Amendment, AmendmentField, Deal, Judgement, RolloutBatch, SlotMask, TaskSet

# ------------------------------------------------------------------------------------------------------------------------
# The batches from which a contribution was made in a run with rollouts: their authors, tokens and reward.
#
# READY, the plan and the record name these batches, so every holder of the chain knows whose rollouts were used.  A batch
# takes only `ENTRY_BYTES`, not a map of its own, because a record may name `MAX_USED_BY_ALL` batches.


MAX_USED = 512
"""Most batches from which one member learns in a round."""
MAX_USED_BY_ALL = 2048
"""Most batches from which all members of a round together learn."""
TOKENS_BYTES = 5
"""Bytes of a batch's number of tokens, big-endian."""
ENTRY_BYTES = HASH_BYTES + TOKENS_BYTES


class UsedBatch(NamedTuple):
    """A batch from which a member learned.  tokens: tokens that the model made, according to the maker's statement."""

    author: PeerId
    root: Hash
    tokens: int


class UsedOfAuthor(Body):
    """Batches of one rollout peer.  batches: root and tokens of each batch, in `ENTRY_BYTES` each, sorted."""

    author: PeerField
    batches: Annotated[bytes, Field(min_length=ENTRY_BYTES, max_length=ENTRY_BYTES * MAX_USED)]


class Learned(Body):
    """The batches from which a member learned.

    used: batches by author, sorted.  reward: mean reward of the rollouts as the member states it; None if it states none.
    """

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
        """Tokens of all the batches, at least one: the most that a member that learned from them can claim."""
        return max(1, sum(batch.tokens for batch in self.batches))

    @property
    def root(self) -> Hash:
        """Tree root over the sorted names of the batches."""
        return tree_root(sorted(batch.root for batch in self.batches))


LaterLearned = Annotated[Learned | None, Field(exclude_if=lambda value: value is None)]
"""A field that is not written if it is None, as for `protocol.wire.envelope.LaterHash`."""


def learned_from(batches: Iterable[UsedBatch], reward: float | None) -> Learned:
    """Return the statement that a contribution makes about these batches, at least one."""
    entries: dict[PeerId, list[bytes]] = {}
    for batch in batches:
        entries.setdefault(batch.author, []).append(batch.root + batch.tokens.to_bytes(TOKENS_BYTES, "big"))
    used = [UsedOfAuthor(author=author, batches=b"".join(sorted(entries[author]))) for author in sorted(entries)]
    is_said = reward is not None and abs(reward) <= MAX_NUMBER  # False for NaN
    return Learned(used=used, reward=reward if is_said else None)


def check_learned(learned: Learned, most_batches: int, most_tokens: int) -> None:
    """Raise `Malformed` for ill-formed batches, for more than `most_batches`, or for one of more than `most_tokens`."""
    if any(len(each.batches) % ENTRY_BYTES for each in learned.used):
        raise Malformed("the list of rollout batches ends in the middle of a batch")
    named = [(batch.author, batch.root) for batch in learned.batches]
    if named != sorted(set(named)) or len({each.author for each in learned.used}) != len(learned.used):
        raise Malformed("the batches of rollouts are named twice, or not in order")
    if len(named) > most_batches:
        raise Malformed(f"{len(named)} batches of rollouts, but a member may name at most {most_batches} in a round")
    if any(batch.tokens > most_tokens for batch in learned.batches):
        raise Malformed("a batch of rollouts has more tokens than the run allows")


# ------------------------------------------------------------------------------------------------------------------------
# The losses of a member on the sources of its run, if the run mixes several sources.
#
# READY and the record have an entry of `LOSS_BYTES` for each source that the member read, not a map, because a record may
# have `MAX_MEMBERS` members.


MAX_CLAIMED = 2**40
"""Most tokens that a member can claim."""
_LOSS = struct.Struct(">BQf")
LOSS_BYTES = _LOSS.size


class SourceMean(NamedTuple):
    """Mean training loss of a member on the rows of one source.

    source: its number among the sources of the run's data.  tokens: tokens that count in the loss.  loss: nats a token.
    """

    source: int
    tokens: int
    loss: float


Losses = Annotated[bytes, Field(max_length=LOSS_BYTES * MAX_LOSSES, exclude_if=lambda value: not value)]
"""Entries of the sources, ascending; empty, and not written, if there is one source."""


def losses_from(means: Iterable[SourceMean]) -> bytes:
    """Return the statement about these sources, at most `MAX_LOSSES`."""
    return b"".join(_LOSS.pack(*mean) for mean in sorted(means))


def losses_in(stated: bytes) -> list[SourceMean]:
    """Return the losses in a statement that `check_losses` accepted."""
    return [SourceMean(*entry) for entry in _LOSS.iter_unpack(stated)]


def check_losses(stated: bytes, sources: int) -> None:
    """Raise `Malformed` if these cannot be losses of a run with so many sources."""
    if len(stated) % LOSS_BYTES:
        raise Malformed("the list of losses ends in the middle of a source")
    means = losses_in(stated)
    numbers = [mean.source for mean in means]
    if numbers != sorted({*numbers}) or any(number >= sources for number in numbers):
        raise Malformed("the losses name a source that the run does not have, or are not in order")
    if not all(1 <= mean.tokens <= MAX_CLAIMED and abs(mean.loss) <= MAX_NUMBER for mean in means):
        raise Malformed("the loss of a source is not a number, or is a mean over no tokens")


# ------------------------------------------------------------------------------------------------------------------------
# READY, the statement that commits to a contribution, and the part of it that plans and records contain.


class OnState(Body):
    """A statement that stands on an outer state.

    weights: in a run with rollouts, the root of the state's parameters in bf16, for peers that have only the bf16 weights;
    it follows from the state.
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


MAX_STRETCHES = 6
"""Most stretches of its column that a member reads in a round."""
STRETCH_BYTES = 8
StretchesField = Annotated[bytes, Field(max_length=STRETCH_BYTES * MAX_STRETCHES, exclude_if=lambda value: not value)]
"""Stretches of a member's column that it read (`protocol.chain.leases`).

Each is two big-endian numbers of 32 bits, its first step and the step after its last one.  Empty, and not written, for the
first steps.
"""


ReceiptsField = Annotated[HashField | None, Field(exclude_if=lambda value: value is None)]
"""Hash of the receipts of the rows that a member trained on; None, and not written, in runs without receipts."""


class Pledge(Body):
    """The fields of a READY that its entry in plans and records repeats; `Ready` explains them."""

    incarnation: Count
    serial: Count
    tokens: Annotated[int, Field(ge=1, le=MAX_CLAIMED)]
    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    loss: Number
    norm: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    root: HashField
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)] = b""
    rollouts: LaterLearned = None
    against: SlotMask = None
    losses: Losses = b""
    stretches: StretchesField = b""
    receipts: ReceiptsField = None

    def pledge(self) -> dict[str, Any]:
        """Return these fields by name."""
        return {name: getattr(self, name) for name in Pledge.model_fields}


class Ready(OnState, Pledge):
    """Commitment to a finished contribution by its root, before any contribution is sent.

    fragment: part of the state that the contribution covers.  serial: grows with every READY of an incarnation; two
    different READYs with one serial prove a lie.  admission: proof that the sender was admitted; empty if the run needs
    none. rollouts: in a run of reinforcement learning, the batches from which the contribution was made.
    against: the sets of tasks that the sender's counts exclude.  losses: the losses on the sources, in a run that mixes
    several.  stretches: the stretches of its column that the sender read, if it lacked blocks of its first steps.
    receipts: in a run that audits, the hash of the receipts of the rows that the sender trained on.
    """

    KIND: ClassVar[str] = "ready"
    BY_GOSSIP: ClassVar[bool] = True
    round: Count
    fragment: FragmentNumber
    base: HashField


class Member(Pledge):
    """A member of a round: its READY without the fields that all members share, with the READY's signature."""

    peer: PeerField
    signature: SignatureField


def member_of(peer: PeerId, ready: Ready, signature: bytes) -> Member:
    """Return the entry in a plan of the peer that signed this READY."""
    return Member(peer=peer, signature=signature, **ready.pledge())


def ready_of(member: Member, round: int, fragment: int, base: bytes, state: bytes) -> Ready:
    """Return the READY that a member of a round on the tip `base` and on this state (its name) must have signed."""
    return Ready(
        round=round,
        fragment=fragment,
        base=base,
        state_digest=digest_in(state),
        weights=weights_in(state),
        **member.pledge(),
    )


# ------------------------------------------------------------------------------------------------------------------------
# Masks of the members of a record whose parts are in a chunk, with one bit for each member.


def mask_of(indices: Sequence[int], members: int) -> bytes:
    """Return the mask of these members: bit i % 8 of byte i // 8."""
    bits = sum(1 << index for index in indices)
    return bits.to_bytes((members + 7) // 8, "little")


def members_in(mask: bytes, members: int) -> list[int]:
    """Return the indices of the members in a mask (`mask_of`); raise `Malformed` for an empty or ill-sized one."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (members + 7) // 8 or bits == 0 or bits >> members:
        raise Malformed("a chunk mask does not fit the members")
    return [index for index in range(members) if bits >> index & 1]


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's statement that extends a run beyond the total in its manifest.


MAX_TOTAL = 1 << 53
"""Most tokens or rounds of a run."""
Total = Annotated[int, Field(ge=1, le=MAX_TOTAL)]


class Extension(Body):
    """The run's new total from the record with this statement on, in the unit of the manifest's total.

    A chain accepts an extension only if it raises the total, so an older extension, or a repeated one, is refused.
    """

    KIND: ClassVar[str] = "extension"
    BY_GOSSIP: ClassVar[bool] = True
    total: Total


# ------------------------------------------------------------------------------------------------------------------------
# The statements of a round.


REMEMBERED_BYTES = 2048
"""Statements up to this size are decoded once, however often they arrive."""


class Plan(OnState):
    """Plan of an exchange.  Its hash names the exchange; a later attempt may carry the same plan.

    fragment: the fragment of the state to average.  members: sorted by peer ID (the canonical order of summation).
    owners: one byte for each chunk of the fragment, the index of its owner in `members`.  amendment: as in the record.
    """

    round: Count
    fragment: FragmentNumber
    base: HashField
    members: Annotated[list[Member], Field(min_length=1, max_length=MAX_MEMBERS)]
    owners: Annotated[bytes, Field(min_length=1, max_length=MAX_CHUNKS)]
    amendment: AmendmentField = None


class LockName(Body):
    """Name of an elector's lock: the record of the ballot in which it last cast a second vote."""

    attempt: Count
    absent: Absent
    record_hash: HashField


class ViewChange(Body):
    """View change of an elector: it takes part in this attempt and in no lower one.

    absent: the electors that it counts as absent.  held: the electors whose READY it holds, bit i for the i-th elector.
    plan: the plan that it has adopted, while its contribution to that plan is alive.  lock, reduced: its locks, by a quorum
    of the whole electorate and by a quorum of the rest.
    """

    KIND: ClassVar[str] = "view_change"
    round: Count
    base: HashField
    attempt: Count
    absent: Absent
    held: Annotated[bytes, Field(max_length=MAX_ELECTORS // 8)]
    plan: HashField | None
    lock: LockName | None
    reduced: LockName | None


ViewChanges = Annotated[
    list[Annotated[bytes, Field(max_length=MAX_VIEW_CHANGE_BYTES)]], Field(min_length=1, max_length=MAX_ELECTORS)
]
"""Signed view changes of different voters for one ballot, in the bytes that were received."""


class Proposal(Body):
    """Proposal of this plan for attempt `attempt` of a round.  view_changes: those from which the plan follows."""

    KIND: ClassVar[str] = "proposal"
    attempt: Count
    absent: Absent
    plan: Plan
    view_changes: ViewChanges


class ChunkEntry(Body):
    """One chunk of a result.  hash: the hash of its codec bytes.  mask: the averaged members (bit i: members[i])."""

    hash: HashField
    mask: Annotated[bytes, Field(min_length=1, max_length=MAX_MEMBERS // 8)]


class Record(OnState):
    """One committed round.  Its hash is the new tip.

    Each member's `tokens` weigh its contribution; the weights in a chunk follow from the tokens of the members in its mask
    (`kernels.aggregate.weights_of`).  result_root: `index_root` of the chunk entries.  state_digest: the outer state before
    this round.  amendment: the organiser's new statement about sets of tasks, or about the run's total; in force from the
    version after this record on.
    """

    KIND: ClassVar[str] = "record"
    round: Count
    fragment: FragmentNumber
    previous: HashField
    members: Annotated[list[Member], Field(min_length=1, max_length=MAX_MEMBERS)]
    codec: Annotated[str, Field(max_length=16)]
    result_root: HashField
    amendment: AmendmentField = None

    @property
    def loss(self) -> float:
        """Mean training loss of the members, by tokens, as they claim it; nats a token."""
        return sum(member.loss * member.tokens for member in self.members) / sum(member.tokens for member in self.members)

    @property
    def losses(self) -> dict[int, float]:
        """Mean training loss of the members on each source, by tokens, as they claim it; empty without several sources."""
        sums: dict[int, tuple[int, float]] = {}
        for each in (each for member in self.members for each in losses_in(member.losses)):
            tokens, loss = sums.get(each.source, (0, 0.0))
            sums[each.source] = tokens + each.tokens, loss + each.loss * each.tokens
        return {source: loss / tokens for source, (tokens, loss) in sorted(sums.items())}


class Provenance(Body):
    """The members that answer for the chunks of a result.

    owners: as in the plan.  signers: for each chunk, one byte: the index of the member that averaged it.  signatures: that
    member's signature over the chunk's `ChunkResult`.
    """

    owners: Annotated[bytes, Field(min_length=1, max_length=MAX_CHUNKS)]
    signers: Annotated[bytes, Field(min_length=1, max_length=MAX_CHUNKS)]
    signatures: Annotated[list[SignatureField], Field(min_length=1, max_length=MAX_CHUNKS)]


class Signature(Body):
    """One voter's signature in a certificate."""

    peer: PeerField
    signature: SignatureField


class Certificate(Body):
    """A quorum of equal votes of one attempt, in one step.

    absent: the electors without which the ballot was held.  They are in the certificate, not in the record, so a record that
    is carried into another ballot stays the same record.
    """

    attempt: Count
    absent: Absent
    votes: Annotated[list[Signature], Field(min_length=1, max_length=MAX_ELECTORS)]


class Report(Body):
    """Result of an exchange, sent to a proposer that has none.  plan: hash of the plan."""

    KIND: ClassVar[str] = "report"
    round: Count
    base: HashField
    plan: HashField
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    provenance: Provenance


class Lock(Body):
    """A record with its proof of lock: a quorum of first votes."""

    KIND: ClassVar[str] = "lock"
    record: Record
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    provenance: Provenance
    proof: Certificate


class RecordProposal(Body):
    """Record proposal: the proposer puts a record to the vote.

    view_changes: the view changes of a quorum for this ballot.  proof: proof of the highest lock that they name; None
    if they name none.
    """

    KIND: ClassVar[str] = "record_proposal"
    attempt: Count
    absent: Absent
    record: Record
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    provenance: Provenance
    view_changes: ViewChanges
    proof: Certificate | None


class Step(IntEnum):
    """The two votes of a ballot."""

    FIRST = 1
    SECOND = 2


class Vote(Body):
    """Vote of an elector that holds the record's result on disk and agrees that these electors are absent.

    FIRST: the record may be committed.  SECOND: the elector has seen a quorum of first votes, and is locked on the record.
    """

    KIND: ClassVar[str] = "vote"
    round: Count
    base: HashField
    attempt: Count
    step: Annotated[Step, Field(strict=False)]
    absent: Absent
    record_hash: HashField


class PrevoteCertificate(Body):
    """Quorum of first votes for a proposed record: an elector that holds the record's result may cast a second vote."""

    KIND: ClassVar[str] = "proof"
    round: Count
    base: HashField
    record_hash: HashField
    certificate: Certificate


class VoterState(Body):
    """Statements that bind an elector at one tip; written to disk before a statement that follows from them is sent.

    attempt: attempt of the last view change or vote.  absent, first, second: the votes in that attempt.
    """

    KIND: ClassVar[str] = "kept"
    round: Count
    base: HashField
    attempt: Count
    absent: Absent
    first: HashField | None
    second: HashField | None
    lock: Lock | None
    reduced: Lock | None


class Commit(Body):
    """A record with its certificate, a quorum of second votes; every peer applies it."""

    KIND: ClassVar[str] = "commit"
    record: Record
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    certificate: Certificate

    def averaged(self) -> list[int]:
        """Return for each member the number of chunks whose averages contain its part."""
        counts = [0] * len(self.record.members)
        for mask, chunks in Counter(entry.mask for entry in self.index).items():  # most chunks have the same mask
            for member in members_in(mask, len(counts)):
                counts[member] += chunks
        return counts


class ChunkResult(Body):
    """An owner's signed average of one chunk."""

    KIND: ClassVar[str] = "chunk"
    plan: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    entry: ChunkEntry


class Accusation(Body):
    """Statement that the sender holds proof that `accused` lied.  evidence: name of the proof.  size: its size in bytes."""

    KIND: ClassVar[str] = "accusation"
    BY_GOSSIP: ClassVar[bool] = True
    accused: PeerField
    evidence: HashField
    size: Annotated[int, Field(ge=1, le=64 << 20)]


class Finish(Body):
    """A ready peer's request to a late one to stop at its current step and contribute."""

    KIND: ClassVar[str] = "finish"
    round: Count
    base: HashField


M = TypeVar("M", bound=Body)


STATEMENTS: dict[str, type[Body]] = {
    cls.KIND: cls
    for cls in (
        Heartbeat,
        Goodbye,
        Ready,
        ViewChange,
        Proposal,
        Report,
        Lock,
        RecordProposal,
        Vote,
        PrevoteCertificate,
        Commit,
        ChunkResult,
        Finish,
        Accusation,
        RolloutBatch,
        Deal,
        Judgement,
        TaskSet,
        Amendment,
        Extension,
    )
}


def pack(identity: Identity, run: Hash, body: Body) -> Envelope:
    """Sign `body` as a statement within `run`."""
    return seal(identity, run, body.KIND, body.encode())


def unpack(data: bytes | memoryview, run: Hash, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> tuple[PeerId, Body, Envelope]:
    """Return sender, typed body and envelope of a statement; raise `Malformed` for all other bytes."""
    if len(data) > max_bytes:
        raise Malformed(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    if len(data) <= REMEMBERED_BYTES:
        return _unpack_again(bytes(data), run)
    return _unpack(data, run, max_bytes)


@lru_cache(maxsize=2048)
def _unpack_again(data: bytes, run: Hash) -> tuple[PeerId, Body, Envelope]:
    """Unpack short bytes, with a cache: gossip delivers the same bytes several times, and their meaning never changes."""
    return _unpack(data, run, REMEMBERED_BYTES)


def _unpack(data: bytes | memoryview, run: Hash, max_bytes: int) -> tuple[PeerId, Body, Envelope]:
    envelope = open_envelope(data, run, max_bytes=max_bytes)
    cls = STATEMENTS.get(envelope.kind)
    if cls is None:
        raise Malformed(f"statement of unknown kind {envelope.kind!r:.40}")
    return envelope.sender, decode_body(cls, envelope.body), envelope
