"""Statements between peers: the body of every envelope, with its schema and its limits.

Each statement has a frozen class.  `pack` seals one; `unpack` opens an envelope and returns the typed body, or raises
`Malformed`.  Nothing else decodes a body; `protocol.wire.body` has the fields and their limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from protocol.wire.body import (
    MAX_CHUNKS,
    MAX_ELECTORS,
    MAX_MEMBERS,
    MAX_VIEW_CHANGE_BYTES,
    Absent,
    Body,
    Count,
    FragmentNumber,
    HashField,
    PeerField,
    SignatureField,
    decode_body,
)
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, Envelope, open_envelope, seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Goodbye, Heartbeat
from protocol.wire.ready import Member as Member
from protocol.wire.ready import OnState
from protocol.wire.ready import Ready as Ready
from protocol.wire.ready import member_of as member_of
from protocol.wire.ready import ready_of as ready_of
from protocol.wire.rollouts import Deal, Judgement, RolloutBatch
from protocol.wire.tasks import Amendment, AmendmentField, TaskSet
from protocol.wire.versions import Version

# ------------------------------------------------------------------------------------------------------------------------
# Masks of the members of a record whose parts are in a chunk, one bit a member.


def mask_of(indices: Sequence[int], members: int) -> bytes:
    """Return the mask of these members: bit i % 8 of byte i // 8."""
    bits = sum(1 << index for index in indices)
    return bits.to_bytes((members + 7) // 8, "little")


def members_in(mask: bytes, members: int) -> list[int]:
    """Return the indices of the members in a mask (`mask_of`); raise `Malformed` for an empty or ill-sized one."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (members + 7) // 8 or bits == 0 or bits >> members:
        raise Malformed("a chunk mask that does not fit the members")
    return [index for index in range(members) if bits >> index & 1]


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's statement that a run goes on for longer than its manifest says.


MAX_TOTAL = 1 << 53
"""Tokens or rounds of a run at most."""
Total = Annotated[int, Field(ge=1, le=MAX_TOTAL)]


class Extension(Body):
    """The run's new total from its record on, in the unit of the manifest's total.

    The total serves as its number: a chain takes only an extension that raises the total, so an older one, or the same one
    again, is refused.
    """

    KIND: ClassVar[str] = "extension"
    BY_GOSSIP: ClassVar[bool] = True
    total: Total


# ------------------------------------------------------------------------------------------------------------------------


REMEMBERED_BYTES = 2048
"""Statements up to this size are decoded once, however often they arrive."""


class Plan(OnState):
    """Plan of an exchange.  Its hash names the exchange; a later attempt may carry the same plan.

    fragment: the fragment of the state to average.  members: sorted by peer ID (the canonical order of summation).
    owners: one byte a chunk of the fragment, the index of its owner in `members`.  amendment: as in the record.
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
    """Roll of an elector: it takes part in this attempt and in no lower one.

    absent: the electors that it goes on without.  held: the electors whose READY it holds, bit i for the i-th of them.
    plan: the one it has taken up, while its contribution to it is alive.  lock, reduced: its locks, by a quorum of the
    whole electorate and by a quorum of the rest.
    """

    KIND: ClassVar[str] = "roll"
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
"""Signed view changes of different voters for one ballot, as they travelled."""


class Proposal(Body):
    """Attempt `attempt` of a round: this plan, which follows from these rolls."""

    KIND: ClassVar[str] = "proposal"
    attempt: Count
    absent: Absent
    plan: Plan
    rolls: ViewChanges


class ChunkEntry(Body):
    """One chunk of a result: hash of its codec bytes, and which members (bit i: members[i]) were averaged."""

    hash: HashField
    mask: Annotated[bytes, Field(min_length=1, max_length=MAX_MEMBERS // 8)]


class Record(OnState):
    """One committed round.  Its hash is the new tip.

    Each member's `tokens` count its contribution; the weights in chunk c follow from the tokens of the members in its mask
    (`kernels.aggregate.weights_of`).  result_root: `index_root` of the chunk entries.  state_digest: the outer state before
    this round.  amendment: the organiser's new statement about sets of tasks, or about the run's total; it holds from the
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


class Provenance(Body):
    """The members that answer for the chunks of a result.

    owners: as in the plan.  signers: one byte a chunk, the index of the member that averaged it; signatures: the signature
    of that member over the chunk's `ChunkResult`.
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

    absent: the electors that the ballot went on without.  It is here and not in the record, so that a record carried into
    another ballot stays the same record.
    """

    attempt: Count
    absent: Absent
    votes: Annotated[list[Signature], Field(min_length=1, max_length=MAX_ELECTORS)]


class Report(Body):
    """Result of an exchange, sent to a proposer that is no member of its plan.  plan: its hash."""

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
    """Motion of the proposer: it puts a record to the vote.

    rolls: from a quorum, for this ballot.  proof: of the highest lock that they name; None when they name none.
    """

    KIND: ClassVar[str] = "motion"
    attempt: Count
    absent: Absent
    record: Record
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    provenance: Provenance
    rolls: ViewChanges
    proof: Certificate | None


class Step(IntEnum):
    """The two votes of a ballot."""

    FIRST = 1
    SECOND = 2


class Vote(Body):
    """I hold the result of this record on disk, and agree that these electors are absent.

    FIRST: the record may be committed.  SECOND: I have seen a quorum of first votes, and am locked on it.
    """

    KIND: ClassVar[str] = "vote"
    round: Count
    base: HashField
    attempt: Count
    step: Annotated[Step, Field(strict=False)]
    absent: Absent
    record_hash: HashField


class PrevoteCertificate(Body):
    """Quorum of first votes for the record put to the vote: an elector that holds its result may cast a second vote."""

    KIND: ClassVar[str] = "proof"
    round: Count
    base: HashField
    record_hash: HashField
    certificate: Certificate


class VoterState(Body):
    """Statements that bind an elector at one tip; on disk before any statement that follows from them is sent.

    attempt: of the last roll or vote.  absent, first, second: of the votes in that attempt.
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
    """A record with its certificate, a quorum of second votes, to be applied by every peer."""

    KIND: ClassVar[str] = "commit"
    record: Record
    index: Annotated[list[ChunkEntry], Field(min_length=1, max_length=MAX_CHUNKS)]
    certificate: Certificate


class ChunkResult(Body):
    """An owner's signed average of one chunk."""

    KIND: ClassVar[str] = "chunk"
    plan: HashField
    chunk: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    entry: ChunkEntry


class Accusation(Body):
    """I hold proof that `accused` lied.  evidence: its name; size: its bytes, to be fetched from me."""

    KIND: ClassVar[str] = "accusation"
    BY_GOSSIP: ClassVar[bool] = True
    accused: PeerField
    evidence: HashField
    size: Annotated[int, Field(ge=1, le=64 << 20)]


class Finish(Body):
    """The proposer asks a late peer to stop at its current step and contribute."""

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
        Version,
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
    """Return sender, typed body and envelope of a statement; raise `Malformed` for anything that is not one of ours."""
    if len(data) > max_bytes:
        raise Malformed(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    if len(data) <= REMEMBERED_BYTES:
        return _unpack_again(bytes(data), run)
    return _unpack(data, run, max_bytes)


@lru_cache(maxsize=2048)
def _unpack_again(data: bytes, run: Hash) -> tuple[PeerId, Body, Envelope]:
    """Unpack short bytes, with a cache: gossip brings the same bytes by several ways, and their meaning never changes."""
    return _unpack(data, run, REMEMBERED_BYTES)


def _unpack(data: bytes | memoryview, run: Hash, max_bytes: int) -> tuple[PeerId, Body, Envelope]:
    envelope = open_envelope(data, run, max_bytes=max_bytes)
    cls = STATEMENTS.get(envelope.kind)
    if cls is None:
        raise Malformed(f"statement of unknown kind {envelope.kind!r:.40}")
    return envelope.sender, decode_body(cls, envelope.body), envelope
