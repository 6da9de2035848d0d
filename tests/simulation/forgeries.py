"""Well-formed statements about things that never happened, signed with the keys that one has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import trio

from kernels.layout import Layout
from protocol.blobs.blob import BlobReply, BlobRequest, ChunkHeader, ChunksReply, ChunksRequest, to_bitmap
from protocol.chain.base import Base, fragment_of
from protocol.chain.records import genesis_tip, index_root, record_hash
from protocol.run.manifest import RunManifest
from protocol.transport.interface import NetworkError
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Member,
    Ready,
    Record,
    Signature,
    Step,
    Vote,
    mask_of,
    member_of,
    pack,
)
from protocol.wire.questions import (
    CommitsReply,
    CommitsRequest,
    HaveReply,
    TipsReply,
    TipsRequest,
)
from tests.protocol.peers import a_first_ready
from tests.simulation.liars import Ghost

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


class Historian(Ghost):
    """Shows others a chain of records, and the results that it has; its heartbeats say how long the chain is."""

    chain: Sequence[Commit] = ()
    inventions: Sequence[Invention] = ()
    checkpoints: Sequence[int] = ()

    async def beat_on(self, every_s: float = 2.0) -> None:
        """Claim the end of the chain, until cancelled."""
        seq = 10**6
        while True:
            seq += 1
            tip = record_hash(self.chain[-1].record)
            beat = self.beat(seq, len(self.chain), tip).model_copy(update={"incarnation": LATE_INCARNATION})
            await self.gossip(beat)
            await trio.sleep(every_s)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if kind == "tips":
            question = decode_body(TipsRequest, data)
            tips: list[bytes] = [genesis_tip(self._world.signed.run), *(record_hash(commit.record) for commit in self.chain)]
            return TipsReply(length=len(self.chain), tips=tips[question.start : question.start + question.count]).encode()
        if kind == "commits":
            asked = decode_body(CommitsRequest, data)
            shown = self.chain[asked.start : asked.start + asked.count]
            return CommitsReply(commits=[commit.encode() for commit in shown]).encode()
        if kind == "have":
            return HaveReply(length=len(self.chain), oldest_result=0, checkpoints=list(self.checkpoints)).encode()
        if kind == "blob":
            count = len(self._layout) if self._bytes_of(decode_body(BlobRequest, data).blob) is not None else 0
            return BlobReply(chunks=to_bitmap((1 << count) - 1, count), more=True, apart=False, neighbours=[]).encode()
        if kind == "want":
            self._world.spawn(self._push, peer, decode_body(ChunksRequest, data))
            return ChunksReply(chunks=[], busy=[]).encode()
        return await super().on_request(peer, kind, data)

    @property
    def _layout(self) -> Layout:
        return self._world.signed.manifest.layouts.result

    def _bytes_of(self, root: bytes) -> memoryview | None:
        return next((each.data for each in self.inventions if each.record.result_root == root), None)

    async def _push(self, peer: PeerId, wanted: ChunksRequest) -> None:
        data = self._bytes_of(wanted.blob)
        for chunk in wanted.chunks:
            if data is not None and chunk < len(self._layout):
                header = ChunkHeader(blob=wanted.blob, chunk=chunk).encode()
                with suppress(NetworkError):
                    await self.network.push(peer, header, memoryview(data)[self._layout[chunk].encoded], timeout_s=60)
