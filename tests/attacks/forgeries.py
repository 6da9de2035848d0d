"""Well-formed statements about things that never happened, signed with the keys that one has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from protocol.chain.base import Base, fragment_of
from protocol.chain.records import genesis_tip, index_root, record_hash
from protocol.run.manifest import RunManifest
from protocol.wire.envelope import Body, Envelope, _signed_bytes, rebuild
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Member,
    Plan,
    Ready,
    Record,
    Signature,
    Step,
    Vote,
    mask_of,
    member_of,
    pack,
)
from tests.protocol.peers import a_first_ready

LATE_INCARNATION = 10**6
"""Beyond those of real lives: what is signed under it contradicts nothing."""


def keys(count: int, mark: str = "key") -> list[Identity]:
    """So many identities, sorted by peer ID."""
    made = [Identity.from_seed(hashlib.sha256(f"{mark} {number}".encode()).digest()) for number in range(count)]
    return sorted(made, key=lambda identity: identity.peer_id)


def ready(base: Base, digest: bytes, *, root: bytes = ZERO_HASH, serial: int = 0, tokens: int = 8) -> Ready:
    """A READY for the round on `base`, of a contribution that may not exist."""
    return a_first_ready(
        round=base.round,
        fragment=base.fragment,
        base=base.tip,
        incarnation=LATE_INCARNATION,
        serial=serial,
        tokens=tokens,
        root=root,
        state_digest=digest,
    )


def member(identity: Identity, run: Hash, base: Base, digest: bytes, serial: int = 0) -> Member:
    """A place in a plan or a record, truly signed."""
    said = ready(base, digest, serial=serial)
    return member_of(identity.peer_id, said, pack(identity, run, said).signature)


@dataclass(frozen=True)
class Invention:
    """A record with its index, and the bytes of the result that it names; `data` is None where nobody has any."""

    record: Record
    index: list[ChunkEntry]
    data: memoryview | None = None


def record_of(plan: Plan, index: list[ChunkEntry]) -> Record:
    """The record that the exchange of this plan would have made."""
    return Record(
        round=plan.round,
        fragment=plan.fragment,
        previous=plan.base,
        members=plan.members,
        codec="int4",
        result_root=index_root(index),
        state_digest=plan.state_digest,
    )


def invented(
    manifest: RunManifest, base: Base, members: Sequence[Member], digest: bytes, value: float | None = 1000.0
) -> Invention:
    """The next record on `base` with a result of this value everywhere; None: with hashes of nothing."""
    layout = manifest.layouts.result
    ordered = sorted(members, key=lambda member: member.peer)
    mask = mask_of(range(len(ordered)), len(ordered))
    data: memoryview | None = None
    if value is None:
        hashes = [chunk_hash(f"{base.tip.hex()} {chunk}".encode()) for chunk in range(len(layout))]
    else:
        data = memoryview(bytearray(layout.payload_bytes))
        for span in layout:
            layout.format.encode(np.full(span.count, value, np.float32), data[span.encoded])
        hashes = [chunk_hash(data[span.encoded]) for span in layout]
    index = [ChunkEntry(hash=hash, mask=mask) for hash in hashes]
    record = Record(
        round=base.round,
        fragment=base.fragment,
        previous=base.tip,
        members=ordered,
        codec=manifest.codec,
        result_root=index_root(index),
        state_digest=digest,
    )
    return Invention(record, index, data)


def vote(record: Record, step: Step, attempt: int, absent: Iterable[str]) -> Vote:
    """For this record."""
    return Vote(
        round=record.round,
        base=record.previous,
        attempt=attempt,
        step=step,
        absent=sorted(absent),
        record_hash=record_hash(record),
    )


def certificate(
    run: Hash,
    record: Record,
    signers: Iterable[Identity],
    *,
    attempt: int = 0,
    absent: Iterable[str] = (),
    step: Step = Step.SECOND,
) -> Certificate:
    """Signed by those whose keys we have."""
    cast = vote(record, step, attempt, absent)
    signed = [Signature(peer=one.peer_id, signature=pack(one, run, cast).signature) for one in signers]
    return Certificate(attempt=attempt, absent=list(cast.absent), votes=sorted(signed, key=lambda one: one.peer))


def commit(invention: Invention, proof: Certificate) -> Commit:
    """The record with its certificate, whatever that is worth."""
    return Commit(record=invention.record, index=invention.index, certificate=proof)


def chain_of_keys(
    manifest: RunManifest,
    run: Hash,
    signers: Sequence[Identity],
    length: int,
    *,
    digest: bytes = ZERO_HASH,
    start: Sequence[Commit] = (),
) -> list[Commit]:
    """A chain that continues `start` (from genesis, where it is empty), made by these keys as if nobody else existed."""
    made = list(start)
    while len(made) < length:
        round = len(made)
        tip = record_hash(made[-1].record) if made else genesis_tip(run)
        base = Base(round, fragment_of(round, manifest.fragments), tip, ())
        members = [member(key, run, base, digest) for key in signers]
        invention = invented(manifest, base, members, digest, None)
        made.append(commit(invention, certificate(run, invention.record, signers)))
    return made


# -- nonces -----------------------------------------------------------------------------------------------------------------
#
# Ed25519 signatures under a nonce of one's choice: two valid signatures of one key over the same bytes.  Slow, straight from
# RFC 8032; for lies only.

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int]


def _x_of(y: int) -> int:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P)
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    return P - x if x % 2 else x


BASE: Point = (_x_of(4 * pow(5, P - 2, P) % P), 4 * pow(5, P - 2, P) % P)


def _add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + k, P - 2, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - k, P - 2, P) % P,
    )


def _times(point: Point, factor: int) -> Point:
    result: Point = (0, 1)
    while factor:
        if factor & 1:
            result = _add(result, point)
        point, factor = _add(point, point), factor >> 1
    return result


def _encoded(point: Point) -> bytes:
    return (point[1] | ((point[0] & 1) << 255)).to_bytes(32, "little")


def sign_with_nonce(seed: bytes, message: bytes, nonce: int) -> bytes:
    """A valid signature of the key of this seed."""
    secret = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    public, commitment = _encoded(_times(BASE, secret)), _encoded(_times(BASE, nonce))
    challenge = int.from_bytes(hashlib.sha512(commitment + public + message).digest(), "little") % ORDER
    return commitment + ((nonce + challenge * secret) % ORDER).to_bytes(32, "little")


def sealed_with_nonce(identity: Identity, run: Hash, body: Body, nonce: int) -> Envelope:
    """The statement in an envelope with such a signature."""
    raw = body.encode()
    signed = _signed_bytes(run, body.KIND, identity.peer_id, raw)
    return rebuild(run, body.KIND, identity.peer_id, raw, sign_with_nonce(identity.seed, signed, nonce))
